"""Reads records of pages. While a read waits, its slot may get another page.

Laws: bytes that were read from a place count only if the slot still has its page at this place afterwards. A
record that cannot be read is counted and logged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from shadeproxy.core.deadline import DEADLINE
from shadeproxy.core.errors import TierError
from shadeproxy.engine.index.columns import NO_TIER
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.storage.load_queue import LoadQueue
from shadeproxy.engine.storage.medium import Medium, RunIO, run_io
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.tier import Tier


class PagePosition(NamedTuple):
    """The place of a page, noted before a wait. After the wait, the slot or the location may belong to
    another page.
    """

    generation: int
    tier: int
    location: Location


class RecordReader:
    """Reads records of ``residents`` in ``media``. ``origin_s``: see ``LoadQueue``. ``failed``: called for
    each record that cannot be read.
    """

    def __init__(
        self,
        residents: Residents,
        media: Sequence[Medium],
        *,
        origin_s: Callable[[int], float],
        failed: Callable[[Tier, str, TierError], None],
    ) -> None:
        self._residents = residents
        self._media = media
        self._queues = [LoadQueue(origin_s) for _ in media]
        self._failed = failed
        self.closed = False
        """True once the media are closed, so that no record can be read."""

    def of(self, slot: int) -> PagePosition:
        table = self._residents
        return PagePosition(table.generations[slot], table.tiers[slot], Location(table.locations[slot]))

    def holds(self, slot: int, place: PagePosition) -> bool:
        """Return, after a wait, whether the slot still has the same page at the same place."""
        return self._residents.tiers[slot] != NO_TIER and self.of(slot) == place

    def require(self, slot: int, place: PagePosition) -> None:
        """Raise TierError if ``holds`` returns False."""
        if not self.holds(slot, place):
            raise TierError("the page left its tier while it was read")

    async def load(self, place: PagePosition) -> RecordHeader:
        """Read the record's body into the page cache and check its hash, because the medium may have damaged
        it since the last read. Return the record's header. Raises TierError.
        """
        medium, loaded = self._media[place.tier], list[RecordHeader]()
        await self._queues[place.tier].run(
            medium.load, lambda: loaded.append(medium.tier.load(place.location))
        )
        return loaded[0]

    def is_behind(self, slot: int) -> bool:
        """Return whether the origin would probably deliver a readable page sooner than the page's tier."""
        queue = self._queues[self._residents.tiers[slot]]
        return queue.is_behind(int(self._residents.body_bytes[slot])) and self.must_load(slot)

    def must_load(self, slot: int) -> bool:
        """Return whether the body of a readable page must be loaded before its bytes may be touched."""
        table = self._residents
        tier = self._media[table.tiers[slot]].tier
        return bool(table.unverified[slot]) or not tier.is_hot(Location(table.locations[slot]))

    async def headers(self, slots: Iterable[int], *, run: RunIO | None = None) -> dict[int, RecordHeader]:
        """Return the record headers of readable slots. Slots whose page moved meanwhile are left out. So are
        records that cannot be read; these are counted.
        """
        places = {slot: self.of(slot) for slot in slots}
        found, failures = dict[int, RecordHeader](), dict[int, TierError]()
        for index, medium in enumerate(self._media):
            inside = {slot: place.location for slot, place in places.items() if place.tier == index}
            if inside:
                work = partial(_read_headers, medium.tier, inside, found, failures)
                await run_io(run or medium.load, work)
        self.note_failures(failures, places)
        return {slot: header for slot, header in found.items() if self.holds(slot, places[slot])}

    async def header_in_time(self, slot: int) -> RecordHeader | None:
        """Return the header of one slot as ``headers`` does; None if it is left out. Raises DeadlineExceeded
        when half of the request's time is over: then the origin can still answer in time.
        """
        reading, deadline = self.headers([slot]), DEADLINE.get()
        found = await (reading if deadline is None else deadline.half().bound(reading))
        return found.get(slot)

    def note_failures(
        self, failures: Mapping[int, TierError], places: Mapping[int, PagePosition]
    ) -> set[int]:
        """Count records that could not be read at ``places``, by slot. Return the slots whose page has moved
        meanwhile: that is no fault of the tier, and the page may be readable at its new place.
        """
        moved = set[int]()
        for slot, error in failures.items():
            if not self.holds(slot, places[slot]):
                moved.add(slot)  # Its record may have been erased.
            elif not self.closed:
                self._failed(self._media[places[slot].tier].tier, "header", error)
        return moved


def _read_headers(
    tier: Tier,
    locations: Mapping[int, Location],
    found: dict[int, RecordHeader],
    failures: dict[int, TierError],
) -> None:
    for slot, location in locations.items():
        try:
            found[slot] = tier.header(location)
        except TierError as error:
            failures[slot] = error
