"""The page cache: resident pages over one or two tiers, exclusive (their capacities add up).

Laws: decide synchronously, then await; between a decision and its I/O a page is either findable with
its bytes readable, or not findable. A page dropped while it is being written is never placed. A tier's
failure is a miss, a counter and a log line.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from shadeproxy.core.errors import TierError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page, Source
from shadeproxy.engine.groups import PrefixGroups
from shadeproxy.engine.knowledge.hashing import object_hash
from shadeproxy.engine.placement import Placement, WeightSource
from shadeproxy.engine.residents import NO_TIER, Residents, Slots, etag_hash
from shadeproxy.policy.base import Policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.base import Location, RecordHeader, Recovered, Tier

_log = structlog.get_logger(__name__)

RunIO = Callable[[Callable[[], None]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Medium:
    """A tier, the name its hits carry, and how its I/O is run (None: inline, it cannot block).

    ``write`` runs in the order of the tier's ``submit``; ``load`` may overtake it.
    """

    tier: Tier
    source: Source
    write: RunIO | None = None
    load: RunIO | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """A page on its way into a tier. ``ticket`` tells whether the slot is still this page's afterwards."""

    slot: int
    ticket: object
    index: int
    location: Location
    record_bytes: int
    header: RecordHeader
    body: memoryview
    staged: bool = False


class PageCache:
    """Pages by identity; used from the event loop only."""

    def __init__(
        self,
        media: Sequence[Medium],
        *,
        policy: Policy,
        weights: WeightSource,
        stats: Stats,
        ledger: Ledger,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.media = media
        self.residents = Residents(len(media))
        self._groups = PrefixGroups()
        self._stats = stats
        self._ledger = ledger
        self._placement = Placement(
            self.residents,
            [medium.tier for medium in media],
            policy=policy,
            weights=weights,
            rng=rng or np.random.default_rng(),
        )
        self._unplaced: dict[int, object] = {}  # slot -> ticket of the write that will place it
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ reading

    def find(self, page: Page) -> int | None:
        """The slot of a readable page."""
        return self.residents.find(object_hash(page.ref), page.number, etag_hash(page.etag))

    def source(self, slot: int) -> Source:
        return self.media[int(self.residents.tier[slot])].source

    async def view(self, slot: int) -> memoryview:
        """The body of a page, pinned while the view or a slice of it lives; never faults in the loop.

        Raises TierError when the record is damaged; it is then dropped and counted.
        """
        medium, location = self.media[int(self.residents.tier[slot])], self._location(slot)
        key = (int(self.residents.object_hash[slot]), int(self.residents.number[slot]))
        try:
            view = medium.tier.pin(location)
            verify = bool(self.residents.unverified[slot])
            if verify or not medium.tier.is_hot(location):
                await _io(medium.load, lambda: medium.tier.load(location, verify=verify))
                if self.residents.occupant(*key) == slot:
                    self.residents.unverified[slot] = False
        except TierError as error:
            _log.warning("page damaged", tier=medium.tier.name, error=str(error))
            self._stats.record_tier_error(medium.tier.name, "read")
            if self.residents.occupant(*key) == slot and self._location(slot) == location:
                self.drop(slot, "damaged")
            raise
        return view

    def use(self, page: Page, view: memoryview) -> None:
        """A demand read of a resident page: recency, reuse, and promotion when it earned one."""
        slot = self.find(page)
        if slot is None:
            return
        self._placement.note_use(slot)
        if self.residents.tier[slot] > 0:
            self._promote(slot, view)

    def miss(self, ref: ObjectRef, number: int) -> None:
        """A demand read of a page that is not resident."""
        self._placement.note_miss(object_hash(ref), number, self._groups.of(ref))

    def recall(self, ref: ObjectRef) -> tuple[ObjectMeta, float] | None:
        """Metadata and time of validation of a resident object, from its first page's record."""
        slot = self.residents.first_page(object_hash(ref))
        if slot is None:
            return None
        try:
            header = self.media[int(self.residents.tier[slot])].tier.header(self._location(slot))
        except TierError:
            self._stats.record_tier_error(self.media[int(self.residents.tier[slot])].tier.name, "header")
            self.drop(slot, "damaged")
            return None
        if header.page.ref != ref:
            return None
        return header.meta, float(self.residents.validated_s[slot])

    def resident_hashes(self) -> NDArray[np.uint64]:
        """Hashes of the objects that have a readable page, in no order."""
        return self.residents.object_hash[self.residents.ready()]

    def pages(self, ref: ObjectRef, etag: str) -> list[tuple[int, str, int]]:
        """Readable pages of one version as (number, tier, bytes), in order."""
        table = self.residents
        return sorted(
            (
                int(table.number[slot]),
                self.media[int(table.tier[slot])].tier.name,
                int(table.body_bytes[slot]),
            )
            for slot in table.pages_of(object_hash(ref))
            if table.tier[slot] != NO_TIER and table.etag[slot] == etag_hash(etag)
        )

    # ------------------------------------------------------------------ writing

    async def insert(
        self, page: Page, meta: ObjectMeta, body: memoryview, validated_s: float, wanted: Callable[[], bool]
    ) -> bool:
        """Store a page if it earns a place; False when it was served without being stored.

        ``wanted`` is asked again after every wait: an invalidated page is not placed.
        """
        slot = self._add(page, len(body), validated_s)
        header = RecordHeader(page, meta, len(body), validated_s)
        self.residents.record_bytes[slot] = self.media[0].tier.record_bytes(page, meta, len(body))
        for index in range(len(self.media)):
            location = self._reserve(slot, index)
            if location is not None:
                return await self._write(self._plan(slot, index, location, header, body), wanted)
        location = self._placement.find_staging_place(slot, self._evict)
        if location is not None:
            return await self._write(self._plan(slot, 0, location, header, body, staged=True), wanted)
        self._placement.note_bypass(slot)
        self._forget_unplaced(slot)
        self._stats.record_bypass()
        return False

    def drop(self, slot: int, reason: str) -> None:
        """Remove a page; readers that hold a view keep their bytes."""
        if slot in self._unplaced:
            self._forget_unplaced(slot)
            return
        index, location = self.residents.displace(slot)
        self.media[index].tier.release(location)
        self.residents.remove(slot)
        self._stats.record_eviction(self.media[index].tier.name, reason)

    def drop_object(self, ref: ObjectRef, reason: str) -> None:
        """Remove every page of every version of an object, also those being written."""
        for slot in self.residents.pages_of(object_hash(ref)):
            self.drop(slot, reason)

    def confirm(self, ref: ObjectRef, validated_s: float) -> None:
        """The origin said at ``validated_s`` that the resident version is current."""
        slot = self.residents.first_page(object_hash(ref))
        if slot is not None:
            self.residents.validated_s[slot] = validated_s

    # ------------------------------------------------------------------ life

    def recover(self) -> int:
        """Open the tiers and take in what they still hold (blocking); the number of pages."""
        for index, medium in enumerate(self.media):
            for found in medium.tier.open():
                self._take_in(index, found)
            while medium.tier.used_bytes > medium.tier.capacity_bytes and self.residents.members[index].count:
                self.drop(int(self.residents.members[index].slots[-1]), "capacity lowered")
        return len(self.residents)

    async def drain(self) -> None:
        """Wait for writes between tiers."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        for medium in reversed(self.media):
            medium.tier.close()

    def candidates(self, bucket: str, prefix: str) -> Iterator[tuple[int, RecordHeader]]:
        """Readable pages of the objects in ``bucket`` under ``prefix``, with their record headers."""
        groups = self._groups.candidates(bucket, prefix)
        slots: Slots = self.residents.ready()
        for slot in slots[np.isin(self.residents.group[slots], groups)].tolist():
            if self.residents.tier[slot] == NO_TIER:
                continue
            try:
                header = self.media[int(self.residents.tier[slot])].tier.header(self._location(slot))
            except TierError:
                continue
            if header.page.ref.bucket == bucket and header.page.ref.key.startswith(prefix):
                yield slot, header

    def assert_quiescent(self) -> None:
        """Nothing in flight, and the books balance: for tests, after everything has settled."""
        assert not self._tasks, self._tasks
        assert not self._unplaced, self._unplaced
        for index, medium in enumerate(self.media):
            table, members = self.residents, self.residents.members[index]
            held = np.flatnonzero(table.tier == index)
            assert members.count + len(members.staged) == len(held)
            assert int(table.record_bytes[held].sum()) <= medium.tier.used_bytes <= medium.tier.capacity_bytes
            assert sum(members.staged.values()) == members.staged_bytes

    # ------------------------------------------------------------------ inside

    def _location(self, slot: int) -> Location:
        return Location(int(self.residents.location[slot]))

    def _add(self, page: Page, body_bytes: int, validated_s: float) -> int:
        hashed = object_hash(page.ref)
        occupant = self.residents.occupant(hashed, page.number)
        if occupant is not None:
            self.drop(occupant, "replaced")
        slot = self.residents.add(
            hashed,
            page.number,
            etag=etag_hash(page.etag),
            body_bytes=body_bytes,
            group=self._groups.of(page.ref),
            tick=self._placement.tick,
        )
        self.residents.validated_s[slot] = validated_s
        self._unplaced[slot] = object()
        return slot

    def _take_in(self, index: int, found: Recovered) -> None:
        header = found.header
        slot = self._add(header.page, header.body_bytes, header.validated_s)
        self.residents.unverified[slot] = True
        self._place(slot, index, found.location, found.record_bytes)

    def _reserve(self, slot: int, index: int) -> Location | None:
        try:
            return self._placement.find_place(slot, index, self._evict)
        except TierError as error:
            self._note_failure(self.media[index].tier, "reserve", error)
            return None

    def _plan(
        self,
        slot: int,
        index: int,
        location: Location,
        header: RecordHeader,
        body: memoryview,
        *,
        staged: bool = False,
    ) -> Write:
        record_bytes = int(self.residents.record_bytes[slot])
        ticket = self._unplaced[slot]
        return Write(slot, ticket, index, location, record_bytes, header, body, staged=staged)

    async def _write(self, plan: Write, wanted: Callable[[], bool]) -> bool:
        tier = self.media[plan.index].tier
        stored = False
        try:
            await _io(self.media[plan.index].write, lambda: tier.write(plan.location, plan.header, plan.body))
            stored = wanted()
        except TierError as error:
            self._note_failure(tier, "write", error)
        if self._unplaced.get(plan.slot) is not plan.ticket:
            stored = False  # dropped meanwhile; the slot may be another page's by now
        elif not stored:
            self._forget_unplaced(plan.slot)
        if not stored:
            tier.release(plan.location)
            return False
        self._place(plan.slot, plan.index, plan.location, plan.record_bytes, staged=plan.staged)
        self._stats.record_admission(tier.name)
        return True

    def _place(
        self, slot: int, index: int, location: Location, record_bytes: int, *, staged: bool = False
    ) -> None:
        del self._unplaced[slot]
        self.residents.place(slot, index, location, record_bytes, staged=staged)

    def _forget_unplaced(self, slot: int) -> None:
        del self._unplaced[slot]
        self.residents.remove(slot)

    def _evict(self, slot: int, reason: str) -> None:
        lower = int(self.residents.tier[slot]) + 1
        if reason != "policy" or lower >= len(self.media) or not self._demote(slot, lower):
            self.drop(slot, reason)

    def _demote(self, slot: int, lower: int) -> bool:
        """Move a page one tier down if it outranks what it displaces there."""
        size = int(self.residents.record_bytes[slot])
        if not self._ledger.try_take(size):
            return False
        target = self._reserve(slot, lower)
        if target is None:
            self._ledger.give(size)
            return False
        upper = self.media[lower - 1].tier
        try:
            header = upper.header(self._location(slot))
            # Copied, so that the upper tier's blocks are free for the newcomer now.
            body = memoryview(bytes(upper.pin(self._location(slot))))
        except TierError as error:
            self._note_failure(upper, "demote", error)
            self._ledger.give(size)
            self.media[lower].tier.release(target)
            return False
        _, location = self.residents.displace(slot)
        upper.release(location)
        self._unplaced[slot] = object()
        self._stats.record_eviction(upper.name, "demoted")
        plan = self._plan(slot, lower, target, header, body)
        task = asyncio.create_task(self._finish_demotion(plan))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _finish_demotion(self, plan: Write) -> None:
        try:
            await self._write(plan, lambda: True)
        finally:
            self._ledger.give(plan.record_bytes)

    def _promote(self, slot: int, view: memoryview) -> None:
        """Move a page to the fastest tier if it beats what it displaces there."""
        lower, old = self.residents.displace(slot)
        record_bytes = int(self.residents.record_bytes[slot])
        self._unplaced[slot] = object()
        target = self._reserve(slot, 0)
        if target is None:
            self._place(slot, lower, old, record_bytes)
            return
        upper = self.media[0].tier
        try:
            upper.write(target, self.media[lower].tier.header(old), view)
        except TierError as error:
            self._note_failure(upper, "promote", error)
            upper.release(target)
            self._place(slot, lower, old, record_bytes)
            return
        self._place(slot, 0, target, record_bytes)
        self.media[lower].tier.release(old)
        self._stats.record_eviction(self.media[lower].tier.name, "promoted")
        self._stats.record_admission(upper.name)

    def _note_failure(self, tier: Tier, kind: str, error: TierError) -> None:
        self._stats.record_tier_error(tier.name, kind)
        _log.warning("tier failed", tier=tier.name, doing=kind, error=str(error))


async def _io(run: RunIO | None, work: Callable[[], None]) -> None:
    if run is None:
        work()
    else:
        await run(work)
