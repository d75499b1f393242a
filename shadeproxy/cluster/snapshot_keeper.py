"""Keeps a snapshot of the shared hints in the log.

A proxy that joins takes its hints from the snapshot. Each proxy looks at the snapshot, and writes a new one
when it is old, or at once if the log has lost its data.
"""

import asyncio
import secrets
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from shadeproxy.cluster.applier import Applier
from shadeproxy.cluster.events import (
    DatasetEvent,
    Event,
    FrozenEvent,
    MergeEvent,
    PlaceEvent,
    ScoresEvent,
    scores_stream,
)
from shadeproxy.cluster.known_events import KnownEvents
from shadeproxy.cluster.log import BEGINNING, STREAM, ClusterLog, order_of_position
from shadeproxy.cluster.snapshot import FROZEN, KEPT_S, NAME, Item, NamedSnapshot, Place, Snapshot, Snapshots
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import LostBlob
from shadeproxy.hints.changes import DeleteDataset, DeleteJob, EndRank, PutJob, WithdrawOrder
from shadeproxy.hints.order.announcements import order_of
from shadeproxy.hints.registry import HintRegistry

_log = structlog.get_logger(__name__)
_LOOK_S = 5.0
_SNAPSHOT_S = 60.0
_SPREAD_S = 10
_LACKING_S = 30.0  # A proxy that lacks hints leaves the others so much more time to write the snapshot.
_MOST_DELETED = _MOST_STREAMS = 1024


class Node(NamedTuple):
    """This proxy. ``name``: its id in the cluster. ``boot``: a number that grows with each start. ``origin``:
    the digest of the origin's name.
    """

    name: str
    boot: int
    origin: str


@dataclass(slots=True)
class Followed:
    """The part of the log that this proxy has read. ``after``: by stream, the position up to which events
    were read. ``shared``: by name, the digest of each dataset that every proxy has. ``deleted``: for each
    deleted dataset or job, the position of its deletion in the stream of changes. ``outdated``: the position
    before the last event by which hints in older snapshots became outdated, by a name for these hints (see
    ``_outdated_by`` and ``_names_of``). ``life``: the random name that the log's life has in ``Snapshot``.
    """

    life: str = field(default_factory=lambda: secrets.token_hex(8))
    after: dict[str, str] = field(default_factory=lambda: {STREAM: BEGINNING})
    seen: KnownEvents = field(default_factory=KnownEvents)
    shared: dict[str, str] = field(default_factory=dict)
    deleted: dict[Item, str] = field(default_factory=dict)
    outdated: dict[Item, str] = field(default_factory=dict)

    def streams(self, jobs: Iterable[str]) -> dict[str, str]:
        """Return the position after which to read each stream: that of changes, and those of ``jobs``."""
        live = {STREAM, *map(scores_stream, jobs)}
        for stream in live:
            self.after.setdefault(stream, BEGINNING)
        found = {stream: position for stream, position in self.after.items() if stream in live}
        if len(self.after) > _MOST_STREAMS:
            self.after = dict(found)
        return found

    def begin_again(self) -> None:
        """Begin to read each stream from its beginning, because the log has lost its data."""
        # A new dict: ``Replication._read`` may still note positions of events of the lost log in the old one.
        self.after = dict.fromkeys(self.after, BEGINNING)
        self.shared.clear()
        self.deleted.clear()
        self.outdated.clear()
        self.life = secrets.token_hex(8)


class SnapshotKeeper:
    """Writes snapshots of the hints of one cluster, and reads them when this proxy joins or lacks hints.
    ``pins`` returns the prefixes that calls have pinned.
    """

    def __init__(
        self,
        log: ClusterLog,
        node: Node,
        snapshots: Snapshots,
        applier: Applier,
        hints: HintRegistry,
        *,
        clock: Clock,
        pins: Callable[[], tuple[Place, ...]],
    ) -> None:
        self._log = log
        self._snapshots = snapshots
        self._applier = applier
        self._hints = hints
        self._clock = clock
        self._pins = pins
        self._every_s = _SNAPSHOT_S + zlib.crc32(node.name.encode()) % _SPREAD_S
        self._sealed = b""
        self._at: dict[str, str] = {}
        self._seen_s = 0.0
        self._merges = 0  # Number of calls of ``merge_soon`` that no ``step`` has followed yet.
        self._lacks: dict[str, str] = {}
        """The position before the last event that could not be applied here, by stream."""
        self._gives_back = self._asks = self._seals_again = False
        self._asked_for = b""  # The snapshot with dropped hints for which others were asked to write theirs.
        self.followed = Followed()
        self.look = asyncio.Event()
        """Set to make ``wait`` return at once."""

    async def wait(self) -> None:
        """Wait until the next ``step`` is due."""
        try:
            async with asyncio.timeout(_LOOK_S):
                await self.look.wait()
        except TimeoutError:
            pass
        self.look.clear()

    def merge_soon(self) -> None:
        """Let the next ``step`` take from the snapshot the hints that this proxy lacks."""
        self._merges += 1
        self.look.set()

    def lacks(self, event: Event) -> None:
        """Note that an event could not be applied here. The missing hints are taken from the next snapshot
        that contains the event. Until then, this proxy writes no snapshot, unless no other proxy does.
        """
        if isinstance(event, ScoresEvent) and ("jobs", event.job) in self.followed.deleted:
            return  # Other proxies may never read these scores, so no snapshot would contain them.
        stream = event.stream if isinstance(event, ScoresEvent) else STREAM
        self._lacks[stream] = self.followed.after.get(stream, BEGINNING)
        if len(self._lacks) > _MOST_STREAMS:
            del self._lacks[next(iter(self._lacks))]

    def follow(self, event: Event, position: str) -> None:
        """Note the event at a position of its stream, after its change was made here."""
        if (outdated := _outdated_by(event)) is not None:
            self._put_last(self.followed.outdated, outdated)
        if isinstance(event, DatasetEvent):
            self.followed.shared[event.name] = event.digest
            self.followed.deleted.pop(("datasets", event.name), None)
        elif isinstance(event, PutJob):
            self.followed.deleted.pop(("jobs", event.name), None)
        elif isinstance(event, DeleteDataset):
            self.followed.shared.pop(event.name, None)
            self._put_last(self.followed.deleted, ("datasets", event.name))
        elif isinstance(event, DeleteJob):
            self._put_last(self.followed.deleted, ("jobs", event.name))
            self._lacks.pop(scores_stream(event.name), None)
        elif isinstance(event, MergeEvent):
            self.merge_soon()
        elif isinstance(event, ScoresEvent) and event.job in self._hints.scoreboard:
            self._hints.scoreboard[event.job].position = position

    def _put_last(self, positions: dict[Item, str], item: Item) -> None:
        positions.pop(item, None)
        positions[item] = self.followed.after[STREAM]
        if len(positions) > _MOST_DELETED:
            del positions[next(iter(positions))]

    async def find(self, reached: str = "") -> tuple[bytes, Snapshot]:
        """Return the snapshot, after the value of the name that refers to it. If there is none, write one
        with the hints of this proxy. ``reached``: the position up to which an earlier process of this proxy
        applied all changes. Raises ClusterUnavailable, PeerError.
        """
        sealed = (await self._log.names()).get(NAME)
        if sealed is None:
            sealed = (await self._write(None)).sealed
        try:
            return sealed, await self._snapshots.read(sealed)
        except LostBlob:
            # All proxies were stopped for longer than the log keeps blobs. Events after ``reached`` follow.
            self.followed.after[STREAM] = reached or BEGINNING
            sealed = await self._replace(sealed)
            return sealed, await self._snapshots.read(sealed)

    async def adopt(self, sealed: bytes, snapshot: Snapshot) -> None:
        """Take the cluster's hints from the snapshot that ``find`` returned. Raises ClusterUnavailable."""
        await self._merge(snapshot, joins=True)
        self.followed.life = snapshot.life
        self.followed.seen.restore(snapshot.seen)
        self.followed.after.update(snapshot.after)
        self._note(sealed, snapshot.after)
        # While the proxies change to a new secret, the snapshot may have a seal of the old one, which some of
        # them will soon not accept.
        self._seals_again = not self._snapshots.has_first_seal(sealed)

    async def step(self) -> bool:
        """Look at the snapshot, and merge or write one if that is due. Return whether the other proxies must
        merge a snapshot that this step wrote, or write one because the log has dropped hints. Raises
        ClusterUnavailable, PeerError.
        """
        sealed = (await self._log.names()).get(NAME)
        if sealed is None or self._gives_back:
            return await self._give_back()
        if sealed != self._sealed or self._merges:
            merges = self._merges
            try:
                snapshot = await self._snapshots.read(sealed)
            except LostBlob:
                # If the log drops whatever it gets, do not send it all hints again and again.
                if not self._lacks and self._clock.monotonic_s() - self._seen_s > self._every_s:
                    await self._replace(sealed)
                return False
            if snapshot.life != self.followed.life:
                return await self._give_back()
            if merges or self._lacks:
                await self._merge(snapshot, joins=False)
                self._merges -= merges
                self._lacks = {
                    stream: position
                    for stream, position in self._lacks.items()
                    if not _is_past(snapshot, stream, position)
                }
            self._note(sealed, snapshot.after)
        elif self._is_due():
            await self._write(sealed)
        asks, self._asks = self._asks and sealed != self._asked_for, False
        if asks:
            self._asked_for = sealed
        return asks

    def _is_due(self) -> bool:
        # If nothing changes, write it again nevertheless before the log drops its blobs.
        every_s = self._every_s if self.followed.after != self._at else KEPT_S
        every_s = 0.0 if self._seals_again else every_s
        return self._clock.monotonic_s() - self._seen_s > every_s + _LACKING_S * bool(self._lacks)

    async def _give_back(self) -> bool:
        """Write a snapshot into a log that lost its data. If another proxy was first, merge its hints, and
        write a second snapshot if the first lacks hints of this proxy. Return whether the other proxies must
        merge what this proxy wrote.
        """
        _log.warning("the cluster's engine has lost its data: hints are written to it again")
        # If a call to the log fails below, the next ``step`` begins again. The log may have done that call.
        begins_again, self._gives_back = self._gives_back, True
        self.followed.begin_again()
        self._snapshots.store_again()
        self._lacks.clear()
        merges, written = True, await self._write(None)
        while merges and not written.is_own:
            snapshot = await self._snapshots.read(written.sealed)
            await self._merge(snapshot, joins=False)
            self.followed.life = snapshot.life
            self._note(written.sealed, snapshot.after)
            merges = not {item[:2] for item in snapshot.items}.issuperset(self._snapshots.items())
            if merges:
                written = await self._write(written.sealed)
        self._gives_back = False
        return merges or begins_again

    async def _replace(self, lost: bytes) -> bytes:
        """Write a snapshot of this proxy's hints in place of one whose blobs the log has dropped."""
        _log.warning("the cluster's engine dropped the shared hints: those of this proxy take their place")
        self._snapshots.store_again()
        return (await self._write(lost)).sealed

    async def _write(self, instead_of: bytes | None) -> NamedSnapshot:
        followed = self.followed
        shared = {name: dataset.digest for name, dataset in self._hints.datasets.items()}
        written = await self._snapshots.write(
            followed.life,
            followed.after,
            followed.seen.export(),
            self._pins(),
            instead_of=instead_of,
        )
        if written.is_own:
            followed.shared = shared
            self._note(written.sealed, written.after)
        return written

    def _note(self, sealed: bytes, after: dict[str, str]) -> None:
        self._sealed, self._at, self._seen_s = sealed, after, self._clock.monotonic_s()
        self._seals_again = False

    async def _merge(self, snapshot: Snapshot, *, joins: bool) -> None:
        end = order_of_position(snapshot.after.get(STREAM, BEGINNING))
        gone = {item for item, at in self.followed.deleted.items() if order_of_position(at) >= end}
        if outdated := {item for item, at in self.followed.outdated.items() if order_of_position(at) >= end}:
            gone |= {(kind, name) for kind, name, _ in snapshot.items if outdated & _names_of(kind, name)}
        unbuilt, dropped = await self._snapshots.merge(snapshot, joins=joins, without=gone)
        if dropped:
            # The proxies that have the hints store them again with the next snapshot. This one lacks them.
            self._asks, at = True, snapshot.after.get(STREAM, BEGINNING)
            self._lacks[STREAM] = max(at, self._lacks.get(STREAM, at), key=order_of_position)
        for kind, name, _ in snapshot.items:
            if kind == "jobs":
                self._applier.seen_now(name)
            elif kind == "datasets" and (dataset := self._hints.datasets.get(name)) is not None:
                self.followed.shared[name] = dataset.digest
                self._applier.used_now(name)
        for place in snapshot.pins:
            self._applier.apply(PlaceEvent("pin", *msgspec.structs.astuple(place)), here=False)
        for job in unbuilt:
            self._applier.settle_soon(job)


def _outdated_by(event: Event) -> Item | None:
    """Return a name for the hints of older snapshots that must not be taken after an event: withdrawn
    orders, orders of ended ranks, frozen columns from before a newer one or a new run, and all hints of a
    deleted job, which may be registered again. Return None if there are none.
    """
    match event:
        case WithdrawOrder(name, epoch, rank):
            return "orders", f"{name}/{epoch}/{'*' if rank is None else rank}"
        case EndRank(name, rank):
            return "orders", f"{name}/*/{rank}"
        case FrozenEvent():
            return FROZEN, event.job
        case PutJob() if event.begins is not None:
            return FROZEN, event.name
        case DeleteJob(name):
            return "jobs", name
    return None


def _names_of(kind: str, name: str) -> set[Item]:
    """Return the names that ``_outdated_by`` may return for a hint in a snapshot."""
    match kind:
        case "orders":
            job, epoch, rank = order_of(name)
            orders = name, f"{job}/{epoch}/*", f"{job}/*/{rank}"
            return {("jobs", job), *(("orders", order) for order in orders)}
        case "scores":
            return {("jobs", name)}
        case "frozen":
            job = name.partition(" ")[2]
            return {("jobs", job), (FROZEN, job)}
    return set()


def _is_past(snapshot: Snapshot, stream: str, position: str) -> bool:
    """Return whether a snapshot contains events after a position. If its writer does not know the stream, it
    has no hints of the stream's job either, and no event of the stream is missing in the snapshot.
    """
    reached = snapshot.after.get(stream)
    return reached is None or order_of_position(reached) > order_of_position(position)
