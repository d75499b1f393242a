"""The body of a page on a disk, given out in copies.

Law: the kernel may drop the page from the page cache at any time. A later touch would read the disk again: it
would wait inside the event loop, and its bytes would not be checked. So each piece is a private copy, made
while the page is in memory.
"""

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import TierError
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.segment import BLOCK_BYTES
from shadeproxy.tiers.tier import Tier

MOST_COPIED_BYTES = 256 * 1024
"""The most bytes of a page on a disk that are copied at once, and so the memory that a slow client takes."""

EDGE_BYTES = BLOCK_BYTES
"""Bytes at each end of a page that may share a block of the file with another record. A read of the other
record may bring the block into memory unchecked, so these bytes are copied as long as the page is known to be
right.
"""


class DiskPage:
    """The body of a page on a disk, which was just loaded and checked. ``view``: the body, pinned."""

    __slots__ = ("_edge", "_head", "_is_fresh", "_location", "_tail", "_tier", "view")

    doubtful = False

    def __init__(self, view: memoryview, tier: Tier, location: Location) -> None:
        self.view = view
        self._tier = tier
        self._location = location
        self._edge = max(EDGE_BYTES, len(view) - EDGE_BYTES)
        self._head, self._tail = bytes(view[:EDGE_BYTES]), bytes(view[self._edge :])
        # The first piece is taken without another look, so that a read goes on even if the kernel drops the
        # page after each load.
        self._is_fresh = True

    @property
    def is_resident(self) -> bool:
        """True if the body can still be touched without waiting."""
        return self._tier.is_resident(self._location)

    async def piece(self, position: int, stop: int, deadline: Deadline | None) -> memoryview:  # noqa: ARG002
        """Return a copy of the next bytes of ``[position, stop)``. ``deadline``: not used, as nothing waits.

        Raises TierError if the page has left the page cache. Then open the page again.
        """
        if not self._is_fresh and not self.is_resident:
            raise TierError("the page left the page cache while it was read")
        self._is_fresh = False
        until, edge = min(stop, position + MOST_COPIED_BYTES), self._edge
        head, tail = self._head[position:until], self._tail[max(position - edge, 0) : max(until - edge, 0)]
        middle = self.view[max(position, EDGE_BYTES) : min(until, edge)]
        return memoryview(b"".join((head, middle, tail)))


class StoredPart:
    """The body of a stored part of a page. Its positions count from the start of the page, as those of a page
    do. ``start``: position of its first byte.
    """

    __slots__ = ("_body", "_start")

    doubtful = False

    def __init__(self, body: memoryview | DiskPage, start: int) -> None:
        self._body = body
        self._start = start

    @property
    def view(self) -> memoryview:
        """The body of the part."""
        return self._body if isinstance(self._body, memoryview) else self._body.view

    @property
    def is_resident(self) -> bool:
        """True if the body can still be touched without waiting."""
        return isinstance(self._body, memoryview) or self._body.is_resident

    async def piece(self, position: int, stop: int, deadline: Deadline | None) -> memoryview:
        """Return the next bytes of ``[position, stop)``; see ``DiskPage.piece``."""
        position, stop = position - self._start, stop - self._start
        if isinstance(self._body, memoryview):
            return self._body[position:stop]
        return await self._body.piece(position, stop, deadline)


PageBody = memoryview | DiskPage | StoredPart
"""The body of a resident page, or of a stored part of it."""
