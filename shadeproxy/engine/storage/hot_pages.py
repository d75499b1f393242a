"""Hot pages: resident pages whose bytes can be touched without waiting. They are verified, and those on a
disk are also in the kernel's page cache.

Laws: plain defs. This module counts nothing and changes nothing. For a page that is not hot, it returns None.
``PageViews.view`` then finds the reason.
"""

from collections.abc import Sequence

from shadeproxy.core.errors import TierError
from shadeproxy.core.types import ObjectMeta, ObjectRef, Source
from shadeproxy.engine.base import LoadAgain, PageHandle
from shadeproxy.engine.index.residents import NO_TIER, Residents
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.tiers.base import Location, Place, RecordHeader, SendableBlocks

COPY_BYTES = 16 * 1024
"""Up to this size, copying a body costs less than pinning it or sending it by sendfile."""


class HotPages:
    """Gives access to the hot pages of ``residents``, for callers that cannot wait. ``load_again``: given to
    the handles of pages on disks.
    """

    def __init__(self, residents: Residents, media: Sequence[Medium], *, load_again: LoadAgain) -> None:
        self._residents = residents
        self._media = media
        self._load_again = load_again

    def is_ready(self, slot: int) -> bool:
        """Return whether ``view`` would return a body."""
        return self._at(slot) is not None

    def source(self, slot: int) -> Source:
        """Return the tier of a resident page, as source of an answer."""
        return self._media[self._residents.tiers[slot]].source

    def can_wait(self, slot: int) -> bool:
        """Return whether touching the body of a resident page may wait for a device, unless it is hot."""
        return self._media[self._residents.tiers[slot]].load is not None

    def view(self, slot: int) -> memoryview | None:
        """Return the body of a page, or None. The body is pinned while the view or a slice of it lives."""
        medium, location = self._at(slot), self._location(slot)
        try:
            return None if medium is None else medium.tier.pin(location)
        except TierError:
            return None

    def place(self, slot: int) -> Place | None:
        """Return the page's place, for other processes on this host, or None."""
        medium, location = self._at(slot), self._location(slot)
        try:
            return None if medium is None else medium.tier.locate(location)
        except TierError:
            return None

    def make_handle(
        self, slot: int, ref: ObjectRef, meta: ObjectMeta, *, first: int, fresh_until_s: float
    ) -> PageHandle | None:
        """Return a handle for a page of the object ``ref``, or None. ``first``: offset of the page in the
        object.
        """
        medium, location = self._at(slot), self._location(slot)
        if medium is None:
            return None
        try:
            window, start, stop = medium.tier.window(location)
        except TierError:
            return None
        table = self._residents
        handle = PageHandle(
            ref,
            meta,
            fresh_until_s,
            first=first,
            slot=slot,
            stamp=table.stamps[slot],
            object_hash=int(table.object_hash[slot]),
            location=location,
            tier=medium.tier,
            source=medium.source,
            can_wait=medium.load is not None,
            window=window,
            start=start,
            stop=stop,
        )
        if medium.load is not None:
            handle.load_again = self._load_again
            handle.body_hash = medium.tier.hash_to_check(location)
        if stop - start > COPY_BYTES:
            handle.sendable = medium.tier.sendable_blocks(location)
            if handle.sendable is None and medium.load is not None:
                # Even without sendfile, such a page is sent in slices, so that no byte of it waits in a
                # transport.
                handle.sendable = SendableBlocks(None, start, start)
        return handle

    def header(self, slot: int) -> RecordHeader | None:
        """Return the header of the page's record, or None. The header's checksum is verified; the body's may
        not be.
        """
        medium, location = self._at(slot, unverified=True), self._location(slot)
        if medium is None:
            return None
        try:
            header = medium.tier.header(location)
            self._residents.prove(slot, header)
        except TierError:
            return None
        return header

    def _location(self, slot: int) -> Location:
        return Location(int(self._residents.location[slot]))

    def _at(self, slot: int, *, unverified: bool = False) -> Medium | None:
        index = int(self._residents.tier[slot])
        if index == NO_TIER or (self._residents.unverified[slot] and not unverified):
            return None
        medium = self._media[index]
        return medium if medium.load is None or medium.tier.is_hot(self._location(slot)) else None
