"""Snapshots: all shared hints at one position of the log, for proxies that join, and for a log that lost its
data.

Laws: a snapshot contains the changes of all events up to its positions, and perhaps of some later events. A
proxy that takes it and then applies all later events has every change. The bytes of a snapshot are blobs of
the log. The log's name ``NAME`` has as its value the digests of these blobs, sealed. A proxy that joins
prefers the snapshot to the hints in its own state. A proxy that has joined already takes from the snapshot
only the hints that it lacks.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import structlog

from shadeproxy.cluster.contents import Contents
from shadeproxy.cluster.events import WIRE, Content, check_frozen, content_of, pack_dataset, unpack_dataset
from shadeproxy.cluster.known_events import KnownOf
from shadeproxy.cluster.log import BEGINNING, REPLACED_BLOB_S, ClusterLog, order_of_position
from shadeproxy.cluster.signed import Seals
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import LostBlob, PeerError, RequestError, StateError
from shadeproxy.hints import durable
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.growing import GrowingSet
from shadeproxy.hints.jobs import ignore
from shadeproxy.hints.order.announcements import order_of
from shadeproxy.hints.registry import HintRegistry

_log = structlog.get_logger(__name__)
NAME = "snapshot"
FROZEN = "frozen"
_MOST_SCORES = 1 << 16  # More of them would hold up the event loop.
KEPT_S = 6 * 3600.0
"""Items are stored again after a quarter of the time for which the log keeps blobs."""


Item = tuple[str, str]
"""Kind and name of a hint, as in the durable state."""

Result = TypeVar("Result")


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A prefix that is pinned because of a call."""

    bucket: str
    prefix: str
    namespace: str


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Shared hints at one position of the log. ``life``: a random name that was chosen when the log was
    empty, and stays until the log loses its data. ``after``: by stream, the position up to which events were
    applied. ``seen``: the events that were applied, in the form of ``KnownEvents.export``. ``items``: kind,
    name and durable form of each hint, in the order in which they must be restored.
    """

    life: str
    after: dict[str, str]
    seen: tuple[KnownOf, ...]
    pins: tuple[Place, ...]
    items: tuple[tuple[str, str, Content], ...]


class NamedSnapshot(NamedTuple):
    """The snapshot that the log has under ``NAME`` after a write: this proxy's (``is_own``), or a newer one
    of another proxy. ``sealed``: the signed value under ``NAME``. ``after``: up to which event of each stream
    this proxy's snapshot reaches.
    """

    sealed: bytes
    is_own: bool
    after: dict[str, str]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    wire: int
    origin: str
    content: Content


class Snapshots:
    """Writes, reads and merges snapshots. ``origin``: the digest of the name of the origin that has the
    objects of the hints. ``dirty`` is called with (kind, name) when scores were merged.
    """

    def __init__(
        self,
        log: ClusterLog,
        seals: Seals,
        contents: Contents,
        hints: HintRegistry,
        *,
        origin: str,
        clock: Clock,
        pool: Executor,
        dirty: Callable[[str, str], None] = ignore,
    ) -> None:
        self._dirty = dirty
        self._log = log
        self._seals = seals
        self._contents = contents
        self._hints = hints
        self._origin = origin
        self._clock = clock
        self._pool = pool
        self._versions: dict[Item, int] = {}
        self._written: dict[Item, tuple[int, float, Content]] = {}
        self._held: set[str] = set()
        """The blobs of the snapshots that this proxy has read or written, or could not write to the end. The
        log must still be told to drop those that are not in the present snapshot.
        """

    def note(self, kind: str, name: str) -> None:
        """Note that a hint has changed, so that the next snapshot stores it again."""
        self._versions[kind, name] = self._versions.get((kind, name), 0) + 1

    def store_again(self) -> None:
        """Let the next snapshot store all hints again, because the log has dropped blobs."""
        self._written.clear()

    def items(self) -> list[Item]:
        """Return kind and name of all shared hints, in the order in which a snapshot has them."""
        hints = self._hints
        orders = hints.orders.announced.names()
        return [
            *(("datasets", name) for name in hints.datasets),
            *(("jobs", job.name) for job in hints.jobs),
            *(("scores", name) for name in hints.scoreboard),
            *(("orders", name) for name in orders),
            *((FROZEN, f"{epoch} {job}") for job, epoch in hints.frozen.names()),
        ]

    # ------------------------------------------------------------------ writing

    async def write(
        self,
        life: str,
        after: Mapping[str, str],
        seen: tuple[KnownOf, ...],
        pins: tuple[Place, ...],
        *,
        instead_of: bytes | None,
    ) -> NamedSnapshot:
        """Store a snapshot of the present hints. Make the log's name ``NAME`` refer to it, if the name has no
        value, or still has the value ``instead_of``. Return the snapshot to which the name then refers.
        Raises ClusterUnavailable.
        """
        after, taken = dict(after), [(item, self._take(item)) for item in self.items()]
        items = []
        for item, known in taken:
            make = known
            if isinstance(known, Content) and not await self._contents.keep(known):
                del self._written[item]  # The log has dropped it, as under memory pressure.
                make = self._take(item)
            stored = make if isinstance(make, Content) else await self._put(item, make)
            if stored is not None:
                items.append((*item, stored))
        body = msgspec.msgpack.encode(Snapshot(life, after, seen, pins, tuple(items)))
        content, blobs = await self._in_pool(lambda: content_of(body))
        pieces = _pieces_of(content, items)
        self._held |= pieces
        await self._contents.put(blobs)
        sealed = self._seals.seal(NAME, msgspec.msgpack.encode(_Head(WIRE, self._origin, content)))
        named = await self._log.claim(NAME, sealed, instead_of=instead_of)
        if named == sealed:
            await self._let_go(pieces)
        return NamedSnapshot(named, named == sealed, after)

    def _take(self, item: Item) -> "Content | Callable[[], tuple[int, bytes | None]]":
        """Return the content of a hint, if the log has it already. Otherwise return a function that makes its
        bytes.
        """
        version, now_s = self._versions.get(item, 0), self._clock.monotonic_s()
        known = self._written.get(item)
        kind, name = item
        if kind == FROZEN:
            epoch, _, job = name.partition(" ")
            frozen = self._hints.frozen.get(job, int(epoch))
            return lambda: (version, None if frozen is None else durable.dump_frozen(frozen))
        if known is not None and known[0] == version and now_s - known[1] < KEPT_S:
            return known[2]
        if kind == "datasets":
            dataset = self._hints.datasets[name]
            return lambda: (version, pack_dataset(dataset))
        if kind == "orders":
            return lambda: (version, self._hints.export(kind, name))
        blob = self._hints.export(kind, name)
        return lambda: (version, blob)

    async def _put(self, item: Item, make: Callable[[], tuple[int, bytes | None]]) -> Content | None:
        version, data = await self._in_pool(make)
        if data is None:
            return None
        content, blobs = await self._in_pool(lambda: content_of(data))
        self._held.update(content.pieces)
        await self._contents.put(blobs)
        if item[0] != FROZEN:  # A later run of the job has other frozen columns with the same names.
            self._written[item] = (version, self._clock.monotonic_s(), content)
        return content

    # ------------------------------------------------------------------ reading

    def has_first_seal(self, sealed: bytes) -> bool:
        """Return whether the value of the name was sealed with the secret by which this proxy seals."""
        return self._seals.has_first_seal(NAME, sealed)

    async def read(self, sealed: bytes) -> Snapshot:
        """Return the snapshot to which ``sealed``, the value of the name, refers. Raises ClusterUnavailable,
        LostBlob if the snapshot must be replaced, and PeerError if it is of another cluster or of a later
        version, or cannot be read.
        """
        body = self._seals.unseal(NAME, sealed)
        try:
            wire = msgspec.msgpack.decode(body, type=tuple[Any, ...])[:1]
            if wire and isinstance(wire[0], int) and wire[0] < WIRE:
                raise LostBlob(f"the snapshot is of version {wire[0]}, which this proxy replaces")
            if wire != (WIRE,):
                raise PeerError(f"the cluster speaks version {wire[0] if wire else '?'}, this proxy {WIRE}")
            head = msgspec.msgpack.decode(body, type=_Head)
            if head.origin != self._origin:
                raise PeerError("the cluster is of another origin: give it another cluster.name")
            data = await self._contents.get(head.content)
            snapshot = msgspec.msgpack.decode(data, type=Snapshot)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PeerError(f"the snapshot cannot be decoded: {error}") from None
        await self._let_go(_pieces_of(head.content, snapshot.items))
        return snapshot

    async def _let_go(self, present: set[str]) -> None:
        """Let the log drop soon the blobs that only snapshots before the ``present`` one have. Each snapshot
        has new scores: without this, the log would fill up.
        """
        if stale := self._held - present:
            await self._log.keep_blobs(stale, REPLACED_BLOB_S)
        self._held = present

    async def merge(
        self, snapshot: Snapshot, *, joins: bool, without: Container[Item]
    ) -> tuple[list[str], bool]:
        """Take from the snapshot the hints that this proxy lacks. If this proxy ``joins``, also replace hints
        that differ from those in the snapshot. Do not take the hints in ``without``. Return the jobs whose
        orders must be built again, and whether the log has dropped hints. Raises ClusterUnavailable.
        """
        unbuilt, dropped = set(), False
        for kind, name, content in snapshot.items:
            if (kind, name) in without or (not joins and self._has(kind, name)):
                continue
            try:
                data = await self._contents.get(content)
                if kind == "datasets":
                    self._merge_dataset(
                        await self._in_pool(unpack_dataset, data, self._hints.page_size), joins
                    )
                elif kind == "jobs":
                    self._merge_job(data)
                elif kind == "scores":
                    await self._merge_scores(name, data, joins)
                elif kind == "orders":
                    unbuilt.add(self._merge_order(name, data))
                elif kind == FROZEN:
                    self._merge_frozen(name, data)
            except (PeerError, StateError, RequestError) as error:
                dropped |= isinstance(error, LostBlob)
                _log.warning("a shared hint was left out", kind=kind, name=name, error=str(error))
        return sorted(unbuilt), dropped

    def _has(self, kind: str, name: str) -> bool:
        hints = self._hints
        if kind == "datasets":
            return name in hints.datasets
        if kind == "jobs":
            return name in hints.jobs
        if kind == "orders":
            return name in hints.orders.announced.names()
        return False

    def _merge_dataset(self, dataset: Dataset, joins: bool) -> None:
        if joins:
            for job in self._hints.jobs.on(dataset.name):
                if self._hints.datasets[dataset.name].digest != dataset.digest:
                    self._hints.delete_job(job.name)
        self._hints.put_dataset(dataset)
        if self._hints.uses.get(dataset.name) is None:
            self._hints.uses.note(dataset.name, self._clock.now_s())

    def _merge_job(self, data: bytes) -> None:
        hints, job = self._hints, durable.load_job(data)
        if hints.check_job(job):
            hints.delete_job(job.name)
        was_in_use = job.in_use
        known = hints.put_job(job, job.last_sign_s(self._clock.now_s()))
        known.live = was_in_use
        known.ended, known.begun, known.resumes = job.ended, job.begun, job.resumes

    async def _merge_scores(self, name: str, data: bytes, joins: bool) -> None:
        hints, space, stored = self._hints, self._hints.space(name), durable.load_scores(data)
        if isinstance(space, GrowingSet):
            if stored.hashes is None:
                raise StateError(f"scores of job {name!r} are of a dataset")
            ids = space.add(stored.hashes.tolist())
        elif stored.digest != space.digest or len(stored.values) != space.count:
            raise StateError(f"scores of job {name!r} are of another dataset")
        else:
            ids = np.arange(space.count)
        position = hints.column(name, space).position
        # The log may have dropped later events that this proxy applied before it was stopped.
        replaces = joins and not _reaches(position, stored.position)
        for at in range(0, len(ids), _MOST_SCORES):
            await asyncio.sleep(0)  # To take all scores at once would hold up the event loop.
            if hints.space(name) is not space:
                raise StateError(f"job {name!r} was registered again")
            piece = slice(at, at + _MOST_SCORES)
            column, values = hints.column(name, space), stored.values[piece]
            known = ~np.isnan(values)
            new = known if replaces else known & np.isnan(column.values[ids[piece]])
            column.set(ids[piece][new], values[new])
            if stored.of_run is not None:
                marked = known if joins else new
                column.of_run[ids[piece][marked]] = stored.of_run[piece][marked]
        if replaces:
            hints.column(name, space).position = stored.position
        self._dirty("scores", name)

    def _merge_order(self, name: str, data: bytes) -> str:
        job, epoch, rank = order_of(name)
        digest, ids = durable.load_order(data)
        new = self._hints.check_order(job, ids, epoch=epoch, rank=rank)._replace(digest=digest)
        known = self._hints.orders.announced.ids(job, epoch, rank)
        if known is None or not np.array_equal(known, new.ids):
            self._hints.orders.put(new, self._clock.now_s())
        return job

    def _merge_frozen(self, name: str, data: bytes) -> None:
        number, _, job = name.partition(" ")
        frozen = durable.load_frozen(data)
        check_frozen(job, frozen.column, self._hints)
        self._hints.frozen.merge(job, int(number), frozen)

    async def _in_pool(self, function: Callable[..., Result], *args: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args))


def _reaches(position: str, other: str) -> bool:
    """Return whether a position is known, and not before another one. If the other one is not known, the
    scores that have it were not read from the log yet, or come from a time before positions were kept.
    """
    return bool(position) and order_of_position(position) >= order_of_position(other or BEGINNING)


def _pieces_of(content: Content, items: Iterable[tuple[str, str, Content]]) -> set[str]:
    """Return the digests of all blobs of a snapshot."""
    return {*content.pieces, *(piece for _, _, item in items for piece in item.pieces)}
