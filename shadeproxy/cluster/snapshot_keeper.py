"""Keeps a snapshot of the shared hints in the log.

A proxy that joins takes it. Each proxy looks at it, and writes it when it is old, or at once into a log that
has lost its data.
"""

import asyncio
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from shadeproxy.cluster.applier import Applier
from shadeproxy.cluster.events import DatasetEvent, Event, PlaceEvent
from shadeproxy.cluster.known_events import KnownEvents
from shadeproxy.cluster.log import BEGINNING, ClusterLog
from shadeproxy.cluster.snapshot import NAME, Item, NamedSnapshot, Place, Snapshot, Snapshots
from shadeproxy.core.clock import Clock
from shadeproxy.hints.changes import DeleteDataset, DeleteJob, PutJob
from shadeproxy.hints.registry import HintRegistry

_log = structlog.get_logger(__name__)
STREAM = "k"
"""The stream of all changes except scores."""

_LOOK_S = 5.0
_SNAPSHOT_S = 60.0
_SPREAD_S = 10
_MOST_DELETED = 1024


class Node(NamedTuple):
    """This proxy. ``name``: its id in the cluster. ``boot`` grows with each start. ``origin``: the digest of
    the origin's name.
    """

    name: str
    boot: int
    origin: str


@dataclass(slots=True)
class Followed:
    """The events that were read from the log. ``after``: positions by stream. ``shared``: digests of datasets
    that every proxy has, by name. ``deleted``: positions in the stream of changes at which items were
    deleted. ``life``: see ``Snapshot``.
    """

    life: str = field(default_factory=lambda: secrets.token_hex(8))
    after: dict[str, str] = field(default_factory=lambda: {STREAM: BEGINNING})
    seen: KnownEvents = field(default_factory=KnownEvents)
    shared: dict[str, str] = field(default_factory=dict)
    deleted: dict[Item, str] = field(default_factory=dict)

    def keep(self, streams: set[str]) -> None:
        """Forget the positions in other streams."""
        self.after = {stream: position for stream, position in self.after.items() if stream in streams}

    def begin_again(self) -> None:
        """Read the log from its beginning: it has lost its data."""
        self.after = dict.fromkeys(self.after, BEGINNING)
        self.shared.clear()
        self.deleted.clear()
        self.life = secrets.token_hex(8)


class SnapshotKeeper:
    """Writes the snapshot of one cluster, and reads it when this proxy joins. ``pins`` returns the prefixes
    that calls have pinned.
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
        self._merges = self._lacks = False
        self.followed = Followed()
        self.look = asyncio.Event()
        """Set to let ``wait`` return at once."""

    async def wait(self) -> None:
        """Wait until it is time for a step."""
        try:
            async with asyncio.timeout(_LOOK_S):
                await self.look.wait()
        except TimeoutError:
            pass
        self.look.clear()

    def merge_soon(self) -> None:
        """Take what the hints lack from the snapshot in the next step."""
        self._merges = True
        self.look.set()

    def lacks(self) -> None:
        """Note that an event could not be applied: take the missing hints from the next snapshot of another
        proxy.
        """
        self._lacks = True

    def follow(self, event: Event) -> None:
        """Note an event that was applied, or refused by the hints."""
        if isinstance(event, DatasetEvent):
            self.followed.shared[event.name] = event.digest
            self.followed.deleted.pop(("datasets", event.name), None)
        elif isinstance(event, PutJob):
            self.followed.deleted.pop(("jobs", event.name), None)
        elif isinstance(event, DeleteDataset):
            self.followed.shared.pop(event.name, None)
            self._deleted(("datasets", event.name))
        elif isinstance(event, DeleteJob):
            self._deleted(("jobs", event.name))

    def _deleted(self, item: Item) -> None:
        deleted = self.followed.deleted
        deleted.pop(item, None)
        deleted[item] = self.followed.after[STREAM]
        if len(deleted) > _MOST_DELETED:
            del deleted[next(iter(deleted))]

    async def adopt(self) -> str:
        """Take the cluster's hints. If the cluster has none, give it the hints of this proxy. Return the
        position of the snapshot in the stream of changes. Raises ClusterUnavailable, PeerError.
        """
        sealed = (await self._log.names()).get(NAME)
        if sealed is None:
            sealed = (await self._write(None)).sealed
        snapshot = await self._snapshots.read(sealed)
        await self._merge(snapshot, joins=True)
        self.followed.life = snapshot.life
        self.followed.seen.restore(snapshot.seen)
        self.followed.after.update(snapshot.after)
        self._note(sealed, snapshot.after)
        return self.followed.after[STREAM]

    async def step(self) -> bool:
        """Look at the snapshot, and merge or write one if that is due. Return whether other proxies must
        merge the snapshot that was written. Raises ClusterUnavailable, PeerError.
        """
        sealed = (await self._log.names()).get(NAME)
        if sealed is None:
            return await self._give_back()
        if sealed != self._sealed or self._merges:
            merges, self._merges, self._lacks = self._merges or self._lacks, False, False
            snapshot = await self._snapshots.read(sealed)
            if snapshot.life != self.followed.life:
                return await self._give_back()
            if merges:
                await self._merge(snapshot, joins=False)
            self._note(sealed, snapshot.after)
        elif self._clock.monotonic_s() - self._seen_s > self._every_s and self.followed.after != self._at:
            await self._write(sealed)
        return False

    async def _give_back(self) -> bool:
        """Write a snapshot into a log that lost its data. If another proxy has written one before, merge
        both. Return whether the snapshot now has hints that the other proxy's lacked.
        """
        _log.warning("the cluster's engine has lost its data: hints are written to it again")
        self.followed.begin_again()
        written = await self._write(None)
        if written.is_own:
            return True
        snapshot = await self._snapshots.read(written.sealed)
        await self._merge(snapshot, joins=False)
        self.followed.life = snapshot.life
        self._note(written.sealed, snapshot.after)
        if {item[:2] for item in snapshot.items}.issuperset(self._snapshots.items()):
            return False
        await self._write(written.sealed)
        return True

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

    async def _merge(self, snapshot: Snapshot, *, joins: bool) -> None:
        end = order_of_position(snapshot.after.get(STREAM, BEGINNING))
        gone = {item for item, at in self.followed.deleted.items() if order_of_position(at) >= end}
        unbuilt = await self._snapshots.merge(snapshot, joins=joins, without=gone)
        for kind, name, _ in snapshot.items:
            if kind == "datasets" and (dataset := self._hints.datasets.get(name)) is not None:
                self.followed.shared[name] = dataset.digest
        for place in snapshot.pins:
            self._applier.apply(PlaceEvent("pin", *msgspec.structs.astuple(place)), here=False)
        for job in unbuilt:
            self._applier.settle_soon(job)


def order_of_position(position: str) -> tuple[int, ...]:
    """Return a value that orders the positions of a stream."""
    return tuple(int(part) for part in position.split("-"))
