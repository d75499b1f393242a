"""Resident pages that can be touched at once: verified, and for a medium that can fault, in the page cache.

Laws: plain defs, nothing is counted, nothing changes; None means "not now", and ``PageCache.view`` then
finds out why.
"""

from collections.abc import Sequence

from shadeproxy.core.errors import TierError
from shadeproxy.engine.residents import NO_TIER, Residents
from shadeproxy.engine.transfers import Medium
from shadeproxy.tiers.base import Location, Place, RecordHeader


class Ticket:
    """A page found once, to be found again at the cost of one comparison.

    Good as long as ``Residents.stamps[slot]`` is ``stamp``; then ``window[start:stop]`` is its body, to be
    copied, or pinned through ``tier``, before anything else runs. ``can_wait``: touching it may wait for a
    device, so ask ``tier.is_hot`` first.
    """

    __slots__ = ("can_wait", "location", "slot", "source", "stamp", "start", "stop", "tier", "window")

    def __init__(self, slot: int, stamp: int, location: Location, medium: Medium) -> None:
        self.slot = slot
        self.stamp = stamp
        self.location = location
        self.tier = medium.tier
        self.source = medium.source
        self.can_wait = medium.load is not None
        self.window, self.start, self.stop = medium.tier.window(location)


class HotPages:
    """The readable pages of ``residents``, for who cannot wait."""

    def __init__(self, residents: Residents, media: Sequence[Medium]) -> None:
        self._residents = residents
        self._media = media

    def view(self, slot: int) -> memoryview | None:
        """The body, pinned while the view or a slice of it lives."""
        medium, location = self._at(slot), self._location(slot)
        try:
            return None if medium is None else medium.tier.pin(location)
        except TierError:
            return None

    def place(self, slot: int) -> Place | None:
        """Where a process on this host finds the page."""
        medium, location = self._at(slot), self._location(slot)
        try:
            return None if medium is None else medium.tier.locate(location)
        except TierError:
            return None

    def ticket(self, slot: int) -> Ticket | None:
        """See ``Ticket``."""
        medium, location = self._at(slot), self._location(slot)
        try:
            return None if medium is None else Ticket(slot, self._residents.stamps[slot], location, medium)
        except TierError:
            return None

    def header(self, slot: int) -> RecordHeader | None:
        """The record's proven header; the body need not be verified for that."""
        medium, location = self._at(slot, unverified=True), self._location(slot)
        try:
            return None if medium is None else medium.tier.header(location)
        except TierError:
            return None

    def _location(self, slot: int) -> Location:
        return Location(int(self._residents.location[slot]))

    def _at(self, slot: int, *, unverified: bool = False) -> Medium | None:
        index = int(self._residents.tier[slot])
        if index == NO_TIER or (self._residents.unverified[slot] and not unverified):
            return None
        medium = self._media[index]
        return medium if medium.load is None or medium.tier.is_hot(self._location(slot)) else None
