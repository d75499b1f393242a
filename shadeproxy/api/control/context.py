"""The dependencies of the control listener, which the composition root passes in.

``CacheAdmin`` is the part of the engine that these calls use. Handlers run on the event loop. ``pool`` runs
work that would block the loop (manifests, big JSON bodies, bitmaps).
"""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from shadeproxy.api.control.bodies import Freshness, PageSummary, PinAnswer, PinList
from shadeproxy.api.control.ledgers import CallLedgers
from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.api.control.running import Operations, Work
from shadeproxy.cluster.status import ClusterStatus
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE, DEFAULT_BOUNDS, Deadline, ReadBounds
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectMeta, ObjectRef
from shadeproxy.engine.base import ReadPath
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams
from shadeproxy.engine.placement.pins import Prefix
from shadeproxy.hints.changes import Changes
from shadeproxy.hints.hint_memory import HintMemory, hint_bytes
from shadeproxy.hints.needs import NothingShared, SharesJobs
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.prefetch.warm import PrefixLister
from shadeproxy.telemetry.history import History
from shadeproxy.telemetry.metrics import Metrics
from shadeproxy.telemetry.stats import Stats

READY = "ready"
HELD_BYTES = 64 * 1024 * 1024

Args = ParamSpec("Args")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CachedObject:
    """A cached object. ``validated_s``: Unix time of the last check with the origin; None if unknown."""

    meta: ObjectMeta
    pages: tuple[PageSummary, ...]
    validated_s: float | None = None
    freshness: Freshness = "fresh"


@dataclass(frozen=True, slots=True)
class CachedListing:
    """A part of the cached objects, in the order of their keys. ``next``: the last key of the part; None if
    no object follows. ``more``: the number of objects that follow.
    """

    objects: tuple[tuple[ObjectRef, CachedObject], ...]
    more: int
    next: str | None


class CacheAdmin(Protocol):
    """Inspects, purges, warms and pins cached objects for the control listener."""

    def purging(self, place: Prefix, *, dry_run: bool) -> Work:
        """Return work, not started, that drops the pages and metadata of every object under ``place`` (prefix
        "": of the whole bucket).

        A reader that has begun before still gets all its bytes. The origin is not changed.
        """
        ...

    async def inspect(self, ref: ObjectRef) -> CachedObject | None:
        """Return the cached pages and the metadata of one object; None if nothing of it is cached."""
        ...

    async def list_cached(self, place: Prefix, *, start_after: str, limit: int) -> CachedListing:
        """Return at most ``limit`` cached objects under ``place``, whose keys come after ``start_after``."""
        ...

    async def pin(self, place: Prefix, *, dry_run: bool) -> PinAnswer:
        """Keep everything under ``place`` from eviction, even after a restart. Raises Conflict."""
        ...

    async def unpin(self, place: Prefix, *, dry_run: bool) -> PinAnswer:
        """Remove the pin of a prefix. Raises UnknownName if no call made it, Conflict if a rule did."""
        ...

    def pins(self) -> PinList:
        """Return the pins by calls and by rules."""
        ...

    def warming(self, place: Prefix, *, dry_run: bool) -> Work:
        """Return work, not started, that reads everything under ``place`` into the cache, as long as there is
        room.
        """
        ...


class LogLevels(Protocol):
    """Reads and sets the level of the log."""

    @property
    def log_level(self) -> str: ...

    async def set_log_level(self, level: Literal["debug", "info", "warning", "error"]) -> None:
        """Set the level that the log has until the configuration is read again."""
        ...


@dataclass(slots=True)
class Access:
    """The rights of callers of the control listener. A reload may change them.

    token: None if calls need no token, which is safe only on loopback. reads_allowed: True if callers may
    read objects with the proxy's own credentials.
    """

    token: str | None = field(default=None, repr=False)
    reads_allowed: bool = True


@dataclass(kw_only=True)
class ControlContext:
    """Everything that a handler may use.

    hint_memory: the memory that the hints may take. changes: makes every change of the hints. info: the
    content of GET /v1/info: "s3_endpoint", "page_size" and other facts for clients. readiness: returns READY,
    or why the proxy is not ready ("starting", "draining"). warnings: returns what a ready proxy cannot do
    now. doctor: makes the answer of GET /v1/doctor. resident_pages: returns new arrays, in any order, of the
    object hashes (u64) and page numbers (u32) of resident pages. allowed_hosts: names, besides those of
    loopback and IP addresses, by which a listener without a token may be called (a guard against DNS
    rebinding). count_reads: counts the reads that are still in the access log. upstreams: the upstream for
    each namespace. held: the budget, for all calls together, of bytes that are fetched before their turn in
    an answer. cluster: returns the object that answers calls about the cluster; None if there is none.
    started_s: Unix time of the start. sharing: decides which needs of jobs are feasible. ledgers: the memory
    that large calls may hold.
    """

    version: str
    hints: HintRegistry
    hint_memory: HintMemory
    changes: Changes
    stats: Stats
    count_reads: Callable[[], None]
    clock: Clock
    pool: Executor
    order_builder: OrderBuilder
    admin: CacheAdmin
    list_objects: PrefixLister
    resident_pages: Callable[[], tuple[NDArray[np.uint64], NDArray[np.uint32]]]
    engine: ReadPath
    page_size: int
    upstreams: Upstreams = field(default_factory=lambda: ONLY_OWN)
    readiness: Callable[[], str]
    log_levels: LogLevels
    warnings: Callable[[], list[str]]
    doctor: Callable[[], Awaitable[dict[str, Any]]]
    info: Mapping[str, Any] = field(default_factory=dict)
    access: Access = field(default_factory=Access)
    allowed_hosts: frozenset[str] = frozenset()
    bounds: ReadBounds = DEFAULT_BOUNDS
    held: Ledger = field(default_factory=lambda: Ledger(HELD_BYTES))
    ledgers: CallLedgers = field(default_factory=CallLedgers)
    cluster: Callable[[], ClusterStatus | None] = lambda: None
    sharing: SharesJobs = field(default_factory=NothingShared)
    started_s: float = field(init=False)
    metrics: Metrics = field(init=False, repr=False)
    history: History = field(init=False, repr=False)
    operations: Operations = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock.now_s()
        memory = self.hint_memory
        self.stats.watch("hint_bytes", lambda: float(hint_bytes(self.hints)))
        self.stats.watch("hint_limit_bytes", lambda: float(memory.limit_bytes))
        self.stats.watch("hints_refused", lambda: float(memory.refused))
        build = {name: str(self.info[name]) for name in ("policy", "lane") if name in self.info}
        build |= {"version": self.version, "python": platform.python_version()}
        self.metrics = Metrics(self.stats, build)
        self.history = History(self.stats, self.clock, before=self.counted_stats)
        self.operations = Operations(self.clock)

    def counted_stats(self) -> Stats:
        """Return the statistics. Reads that are still in the access log are counted first."""
        self.count_reads()
        return self.stats

    def begin_item(self) -> Deadline:
        """Give the calling task the deadline of one item of a batch, and return it."""
        deadline = Deadline(self.clock, self.bounds)
        DEADLINE.set(deadline)
        return deadline

    async def in_pool(
        self, function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result:
        """Return the result of ``function``, which runs in a thread of the pool.

        Neither the result nor an error passes through the future: a future of a pool refers to itself through
        its callbacks, and would keep a large result, or the locals of the function that failed, until the
        collector runs.
        """
        results: list[Result] = []
        errors: list[Exception] = []
        work = partial(_append, results, errors, function, args, kwargs)
        await asyncio.get_running_loop().run_in_executor(self.pool, work)
        if errors:
            raise errors.pop()
        return results.pop()


def _append(
    results: list[Result],
    errors: list[Exception],
    function: Callable[..., Result],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    try:
        results.append(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the task that awaits the work raises it
        errors.append(error)
