"""What the control listener needs of the rest, given by the composition root; nothing is looked up.

``CacheAdmin`` is the part of the engine that administration touches. All of it lives on the event loop;
``pool`` runs what would hold the loop (manifests, big JSON bodies, bitmaps).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from shadeproxy.api.control.bodies import Freshness
from shadeproxy.api.control.running import Operations, Work
from shadeproxy.api.control.settling import Settling
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE, DEFAULT_BOUNDS, Deadline, ReadBounds
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import OWN, ListPage, ObjectMeta, ObjectRef
from shadeproxy.engine.base import ReadPath
from shadeproxy.engine.knowledge.knowledge import Knowledge
from shadeproxy.engine.namespaces import ONLY_OWN, Upstreams
from shadeproxy.engine.pins import Prefix
from shadeproxy.telemetry.metrics import Metrics
from shadeproxy.telemetry.stats import Stats

READY = "ready"
HELD_BYTES = 64 * 1024 * 1024

Args = ParamSpec("Args")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge removed, or with ``dry_run`` would remove."""

    objects: int
    pages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """What is cached under a prefix. ``held``: pages of it that are pinned."""

    objects: int
    pages: int
    size_bytes: int
    held: int


@dataclass(frozen=True, slots=True)
class Pin:
    """``since_s``: Unix time of the call that pinned it; None where a rule of the configuration did."""

    uri: str
    by: str
    since_s: float | None
    namespace: str = OWN


@dataclass(frozen=True, slots=True)
class PinsNow:
    """``size_bytes``: of pinned pages; ``limit_bytes``: what they may take."""

    pins: tuple[Pin, ...]
    size_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class CachedPage:
    number: int
    tier: str
    size_bytes: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class CachedObject:
    """``validated_s``: Unix time of the last check against the origin, None where it is not known."""

    meta: ObjectMeta
    pages: tuple[CachedPage, ...]
    validated_s: float | None = None
    freshness: Freshness = "fresh"


@dataclass(frozen=True, slots=True)
class CachedListing:
    """Some objects in key order. ``more``: how many follow, after the key ``next``."""

    objects: tuple[tuple[ObjectRef, CachedObject], ...]
    more: int
    next: str | None


class CacheAdmin(Protocol):
    """Administration of what is cached."""

    async def purge(self, place: Prefix, *, dry_run: bool) -> Purged:
        """Drop pages and metadata of every object under ``place`` (prefix "": of the bucket).

        What is being read keeps its bytes until its readers are done. The origin is not touched.
        """
        ...

    async def inspect(self, ref: ObjectRef) -> CachedObject | None:
        """What is cached of one object; None when nothing is known of it."""
        ...

    async def list_cached(self, place: Prefix, *, start_after: str, limit: int) -> CachedListing:
        """List the cached objects under ``place``: at most ``limit`` of them, after key ``start_after``."""
        ...

    async def pin(self, place: Prefix, *, dry_run: bool) -> Pinned:
        """Evict nothing under ``place`` for anything else, now and after a restart. Raises Conflict."""
        ...

    async def unpin(self, place: Prefix, *, dry_run: bool) -> Pinned:
        """Take a pin back. Raises UnknownName where no call pinned that, Conflict where a rule did."""
        ...

    def pins(self) -> PinsNow:
        """All that is pinned."""
        ...

    def warming(self, place: Prefix, *, dry_run: bool) -> Work:
        """To be run: everything under ``place`` is read into the cache, where there is room for it."""
        ...


class ObjectLister(Protocol):
    """``Origin.list_objects`` with the credentials that read in ``namespace``. Raises OriginError."""

    async def __call__(
        self, bucket: str, prefix: str, *, start_after: str = "", namespace: str = OWN
    ) -> ListPage: ...


class LogLevels(Protocol):
    """The level of the log, which may be changed while running."""

    @property
    def log_level(self) -> str: ...

    async def set_log_level(self, level: Literal["debug", "info", "warning", "error"]) -> None:
        """Until the configuration is read again. Raises Conflict."""
        ...


@dataclass(kw_only=True)
class ControlContext:
    """Everything a handler may use. ``token`` and ``reads_allowed`` may change while it is used.

    info: what GET /v1/info shows: "s3_endpoint", "page_size" and what else clients may want to know.
    readiness: READY, or why not ("starting", "draining"). remarks: what a ready proxy cannot do now. doctor:
    the answer of GET /v1/doctor. resident_pages: fresh arrays of the object hashes (u64) and numbers (u32) of
    resident pages, in any order. token: None leaves the calls open, as is fit for loopback only.
    allowed_hosts: names, beside loopback and IP addresses, under which the listener may be called when it
    has no token (a guard against DNS rebinding). engine, page_size: for batch and locate; upstreams: with
    whose credentials in which namespace (engine/namespaces.py); reads_allowed: whether callers may read
    with them. held: bytes that were fetched ahead of their turn
    in an answer, over all calls.
    """

    version: str
    knowledge: Knowledge
    stats: Stats
    clock: Clock
    pool: Executor
    admin: CacheAdmin
    list_objects: ObjectLister
    resident_pages: Callable[[], tuple[NDArray[np.uint64], NDArray[np.uint32]]]
    engine: ReadPath
    page_size: int
    upstreams: Upstreams = field(default_factory=lambda: ONLY_OWN)
    readiness: Callable[[], str]
    log_levels: LogLevels
    remarks: Callable[[], list[str]]
    doctor: Callable[[], Awaitable[dict[str, Any]]]
    info: Mapping[str, Any] = field(default_factory=dict)
    token: str | None = field(default=None, repr=False)
    allowed_hosts: frozenset[str] = frozenset()
    reads_allowed: bool = True
    bounds: ReadBounds = DEFAULT_BOUNDS
    held: Ledger = field(default_factory=lambda: Ledger(HELD_BYTES))
    metrics: Metrics = field(init=False, repr=False)
    settling: Settling = field(init=False, repr=False)
    operations: Operations = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.stats)
        self.settling = Settling(self.knowledge.orders, self.pool)
        self.operations = Operations(self.clock)

    def begin_item(self) -> Deadline:
        """Give the calling task the time budget of one item of a batch."""
        deadline = Deadline(self.clock, self.bounds)
        DEADLINE.set(deadline)
        return deadline

    async def in_pool(
        self, function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result:
        """Run ``function`` off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, lambda: function(*args, **kwargs))
