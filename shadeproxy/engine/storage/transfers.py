"""Moves pages into tiers, between them and out of them: store, promote, demote, drop.

Laws: a slot without a tier has a write token, and only the write that has this token may place the page. A
page that is dropped while it is written loses its token, and is never placed. A location is released exactly
once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from shadeproxy.core.delegated_body import BodyWriter, WrittenBody
from shadeproxy.core.errors import TierError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectMeta, Page
from shadeproxy.engine.index.residents import Residents, Slots
from shadeproxy.engine.page_observer import PageObserver
from shadeproxy.engine.placement.disk_choice import DiskChoice
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.engine.storage.medium import Medium, RunIO
from shadeproxy.engine.storage.tier_failures import TierFailures
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.base import Location, RecordHeader

_WAITING_SHARE = 0.25  # of the memory budget, for pages that wait for the writes of disks


class NewPage(NamedTuple):
    """A page that came from the origin, to be stored if it earns a place.

    ``validated_s``: Unix time of the last check with the origin. ``wanted``: called after the write; False
    means that the page was invalidated meanwhile and must not be placed. ``stored``: called once, with
    whether the page is resident. ``writer``: lets another process, which has the body, write it; or None.
    """

    page: Page
    meta: ObjectMeta
    body: memoryview
    validated_s: float
    wanted: Callable[[], bool]
    stored: Callable[[bool], None]
    writer: BodyWriter | None = None

    @property
    def header(self) -> RecordHeader:
        """Header of the page's record."""
        return RecordHeader(self.page, self.meta, len(self.body), self.validated_s)


@dataclass(slots=True)
class Write:
    """A page on its way into a tier. ``token``: its write token; a page that was dropped has lost it."""

    slot: int
    token: object
    index: int
    location: Location
    record_bytes: int
    header: RecordHeader
    body: memoryview


class Transfers:
    """Carries out decisions of ``placement``: changes ``residents`` and the tiers of ``media``."""

    def __init__(
        self,
        residents: Residents,
        media: Sequence[Medium],
        placement: Placement,
        pins: Pins,
        *,
        stats: Stats,
        ledger: Ledger,
        observer: PageObserver,
    ) -> None:
        self._residents = residents
        self._media = media
        self._placement = placement
        self._pins = pins
        self._stats = stats
        self.note_failure = TierFailures(stats).note
        self._ledger = ledger
        self._observer = observer
        tiers, speeds = [one.tier for one in media], [one.read_speed for one in media[1:]]
        self.disks = DiskChoice(tiers, speeds, int(_WAITING_SHARE * ledger.capacity_bytes))
        self._unplaced: dict[int, object] = {}  # By slot: the token of the write that will place its page.
        self._tasks: set[asyncio.Future[bool]] = set()
        self.released = [0] * len(media)
        """Number of locations, by tier, that were or soon are released. Their erasures may be queued."""

    @property
    def idle(self) -> bool:
        """True if no page is on its way into a tier."""
        return not self._tasks and not self._unplaced

    async def drain(self) -> None:
        """Wait until no page is on its way into a tier."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def store(self, slot: int, new: NewPage) -> bool | None:
        """Write the page of a new slot to the fastest tier in which it wins a place.

        Return whether the page was stored. Return None if a task or another process writes it, and calls
        ``new.stored`` later. If the page is not stored, its slot is freed.
        """
        token = self._unplaced[slot] = object()
        index, location = self._first_place(slot)
        if location is None and self._residents.holds[slot]:
            # Pinned pages take their maximum already, so treat this page as an ordinary one.
            self._residents.holds[slot] = False
            index, location = self._first_place(slot)
        if location is None:
            self._forget(slot)
            self._stats.record_bypass()
            return False
        plan = Write(slot, token, index, location, self._residents.sizes[slot], new.header, new.body)
        run = self._media[index].write
        if run is None:
            return self._write_now(plan, new.wanted) if new.writer is None else self.begin_now(plan, new)
        write = self._start(plan, self._write(plan, new.wanted, run))
        write.add_done_callback(partial(_tell, new.stored))
        return None

    def unplaced_among(self, slots: Slots) -> list[int]:
        """Return those of ``slots`` whose page is on its way into a tier."""
        wanted = set(slots.tolist())
        return [slot for slot in self._unplaced if slot in wanted]

    def drop_unplaced(self, slot: int) -> None:
        """Remove a page that is on its way into a tier. Do nothing if the page is not."""
        if slot in self._unplaced:
            self._forget(slot)
            # Its location is released only when its write has ended.
            self.released = [count + 1 for count in self.released]

    def drop(self, slot: int, reason: str) -> None:
        """Remove a page. Readers that hold a view of it keep their bytes."""
        if slot in self._unplaced:
            self.drop_unplaced(slot)
            return
        index, location = self._residents.displace(slot)
        self._release(index, location)
        self._remove(slot)
        self._stats.record_eviction(self._media[index].tier.name, reason)

    def vacate(self, slots: list[int], index: int, reason: str) -> None:
        """Count pages as evicted: other pages are about to take over their slots and places."""
        for slot in self._residents.unread.intersection(slots):
            self._residents.unread.discard(slot)
            self._stats.record_prefetch("wasted")
        self.released[index] += len(slots)
        self._stats.record_eviction(self._media[index].tier.name, reason, len(slots))

    def settle_many(
        self, index: int, slots: list[int], locations: list[Location], written: list[bool]
    ) -> None:
        """Make the pages that were written readable, and remove the others. All have reserved places."""
        table = self._residents
        ready = np.array(written, np.bool_)
        table.ready_again(np.array(slots)[ready], index, np.array(locations)[ready])
        if stored := written.count(True):
            self._stats.record_admission(self._media[index].tier.name, stored)
        if stored == len(written):
            return
        for slot, location, one in zip(slots, locations, written, strict=True):
            if not one:
                table.abandon(slot, index)
                self._remove(slot)
                self._release(index, location)

    def note_first_uses(self, slots: Iterable[int]) -> None:
        """Note which of the pages just read had been prefetched and are read for the first time."""
        table = self._residents
        for slot in table.unread.intersection(slots):
            table.unread.discard(slot)
            self._stats.record_prefetch("used")
            self._observer.note_first_use(int(table.object_hash[slot]), int(table.number[slot]))

    def note_disk_reads(self, slots: Slots) -> None:
        """Count reads by disk, if there are several disks: the source of an answer does not name the disk."""
        if len(self._media) > 2 and len(slots):
            reads = np.bincount(self._residents.tier[slots], minlength=len(self._media)).tolist()
            self._stats.record_disk_reads(
                {one.tier.name: count for one, count in zip(self._media, reads, strict=True) if count}
            )

    def note_left_to_origin(self, slot: int) -> None:
        """Count a read that is left to the origin, because the page's disk is slower now (``LoadQueue``)."""
        self._stats.record_left_to_origin(self._media[self._residents.tiers[slot]].tier.name)

    def _first_place(self, slot: int) -> tuple[int, Location | None]:
        location, index = self._reserve(slot, 0), 0
        if location is None and (disk := self._disk_of(slot)) is not None:
            location, index = self._reserve(slot, disk), disk
        return index, location

    def _disk_of(self, slot: int) -> int | None:
        table = self._residents
        return self.disks.choose(int(table.object_hash[slot]), int(table.number[slot]), table.sizes[slot])

    def _reserve(self, slot: int, index: int) -> Location | None:
        try:
            return self._placement.find_place(slot, index, self._evict)
        except TierError as error:
            self.note_failure(self._media[index].tier, "reserve", error)
            return None

    def _start(self, plan: Write, write: Coroutine[None, None, bool]) -> asyncio.Task[bool]:
        self.disks.begin_write(plan.index, plan.record_bytes)
        task = asyncio.create_task(write)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, plan))
        return task

    def _ended(self, plan: Write, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        self.disks.end_write(plan.index, plan.record_bytes)

    def write_many(
        self, index: int, locations: Sequence[Location], pages: Sequence[NewPage], metas: Sequence[bytes]
    ) -> list[bool]:
        """Write pages, with encoded ``metas``, without a task. Return which are written and still wanted."""
        tier = self._media[index].tier
        errors = tier.write_many(locations, pages, [new.body for new in pages], metas)
        for error in filter(None, errors):
            self.note_failure(tier, "write", error)
        return [error is None and new.wanted() for error, new in zip(errors, pages, strict=True)]

    def note_bypasses(self, pages: int) -> None:
        """Count pages that were not stored."""
        self._stats.record_bypass(pages)

    def begin_now(self, plan: Write, new: NewPage) -> bool | None:
        """Write a page without a task, or let ``new.writer`` write it. Return the same as ``store``."""
        return self._write_now(plan, new.wanted)

    def write_now(
        self,
        index: int,
        location: Location,
        header: RecordHeader,
        body: memoryview | WrittenBody,
        wanted: Callable[[], bool],
    ) -> bool:
        """Write a page without a task. Return whether it was written, and is still wanted after the write."""
        tier = self._media[index].tier
        try:
            tier.write(location, header, body)
            return wanted()
        except TierError as error:
            self.note_failure(tier, "write", error)
            return False

    def _write_now(self, plan: Write, wanted: Callable[[], bool]) -> bool:
        stored = False
        try:
            stored = self.write_now(plan.index, plan.location, plan.header, plan.body, wanted)
        finally:
            stored = self._settle(plan, stored=stored)
        return stored

    async def _write(self, plan: Write, wanted: Callable[[], bool], run: RunIO) -> bool:
        tier, stored = self._media[plan.index].tier, False
        try:
            await run(partial(tier.write, plan.location, plan.header, plan.body))
            stored = wanted()
        except TierError as error:
            self.note_failure(tier, "write", error)
        except BaseException:
            # The bytes written so far are erased after this write, in the order of the same queue.
            self._settle(plan, stored=False)
            raise
        return self._settle(plan, stored=stored)

    def _settle(self, plan: Write, *, stored: bool) -> bool:
        """Place the page after its write, or release its location. Return whether the page is resident."""
        if self._unplaced.get(plan.slot) is not plan.token:
            stored = False  # The page was dropped meanwhile; another page may have the slot now.
        elif not stored:
            self._forget(plan.slot)
        if not stored:
            self._release(plan.index, plan.location)
            return False
        # Check again whether the page is pinned, because pins and their room may have changed.
        covered = self._pins.covers(plan.header.page.ref)
        fits = covered and plan.record_bytes <= self._placement.pin_room_bytes(plan.index)
        self._residents.holds[plan.slot] = fits
        # These lines repeat ``_place``: each miss comes here, and this saves a call.
        del self._unplaced[plan.slot]
        self._residents.place(plan.slot, plan.index, plan.location, plan.record_bytes)
        self._stats.record_admission(self._media[plan.index].tier.name)
        return True

    def _place(self, slot: int, index: int, location: Location, record_bytes: int) -> None:
        """Make the page of a slot readable from ``location``."""
        del self._unplaced[slot]
        self._residents.place(slot, index, location, record_bytes)

    def _release(self, index: int, location: Location) -> None:
        self._media[index].tier.release(location)
        self.released[index] += 1

    def _forget(self, slot: int) -> None:
        del self._unplaced[slot]
        self._remove(slot)

    def _remove(self, slot: int) -> None:
        if slot in self._residents.unread:
            self._residents.unread.discard(slot)
            self._stats.record_prefetch("wasted")
        self._placement.leave(slot)
        self._residents.remove(slot)

    def _evict(self, slot: int, reason: str) -> None:
        if reason != "policy" or self._residents.tiers[slot] > 0 or not self._demote(slot):
            self.drop(slot, reason)

    def _demote(self, slot: int) -> bool:
        """Move a page from RAM to a disk if it beats the pages that it displaces there, and return True."""
        size, lower = self._residents.sizes[slot], self._disk_of(slot)
        if lower is None or not self._ledger.try_take(size):
            return False
        target = self._reserve(slot, lower)
        if target is None:
            self._ledger.give(size)
            return False
        upper = self._media[0].tier
        try:
            place = Location(self._residents.locations[slot])
            header = upper.load(place) if self._residents.unverified[slot] else upper.header(place)
            self._residents.prove(slot, header)
            # Copy the body, so that another page can have this page's blocks in RAM at once.
            body = memoryview(bytes(upper.pin(place)))
        except TierError as error:
            self.note_failure(upper, "demote", error)
            self._ledger.give(size)
            self._release(lower, target)
            return False
        _, location = self._residents.displace(slot)
        self._release(0, location)
        token = self._unplaced[slot] = object()
        self._stats.record_eviction(upper.name, "demoted")
        plan = Write(slot, token, lower, target, size, header, body)
        self._start(plan, self._demoted(plan, self._media[lower].write))
        return True

    async def _demoted(self, plan: Write, run: RunIO | None) -> bool:
        try:
            if run is None:
                return self._write_now(plan, _always)
            return await self._write(plan, _always, run)
        finally:
            self._ledger.give(plan.record_bytes)

    def promote(self, slot: int, view: memoryview) -> None:
        """Move a page to the fastest tier, if it beats the pages that it displaces. ``view``: its body. If
        the page stays where it is, its page handles stay valid.
        """
        table, upper = self._residents, self._media[0].tier
        if upper.disabled_reason is not None:
            return
        stamp, record_bytes = table.stamps[slot], table.sizes[slot]
        lower, old = table.displace(slot)
        self._unplaced[slot] = object()
        target = self._reserve(slot, 0)
        if target is not None:
            try:
                upper.write(target, self._media[lower].tier.header(old), view)
            except TierError as error:
                self.note_failure(upper, "promote", error)
                self._release(0, target)
                target = None
        if target is None:
            self._place(slot, lower, old, record_bytes)
            table.stamps[slot] = stamp
            return
        self._place(slot, 0, target, record_bytes)
        self._release(lower, old)
        self._stats.record_eviction(self._media[lower].tier.name, "promoted")
        self._stats.record_admission(upper.name)


def _always() -> bool:
    return True


def _tell(stored: Callable[[bool], None], task: asyncio.Task[bool]) -> None:
    """Pass on the result of a write: False if the write was cancelled or raised an unforeseen error."""
    failed = task.cancelled() or task.exception() is not None
    stored(not failed and task.result())
    if not task.cancelled():
        task.result()  # Raises the unforeseen error, so that the loop reports it.
