"""Decides for a read of a part of a missing page: fetch the whole page, or only the part?

Laws: plain defs. The decision is made before the flight starts, from the state at that moment. The page is
fetched whole if fetching only the part would save less than 64 KiB. A page that would win a place is also
fetched whole, unless that would hold up its reader: the rest of the page is long, and nothing shows that it
will be read soon. Then the part is stored alone (docs/adr/0081).
"""

from enum import Enum

from shadeproxy.core.ranges import part_number
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.engine.index.other_pages import OtherPages
from shadeproxy.engine.placement.candidates import RECORD_BYTES
from shadeproxy.engine.placement.density import REQUEST_BYTES, PageDensity
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.hints.hashing import object_hash

LONG_BYTES = 512 * 1024
"""A link of some 50 MB/s carries these bytes in the time of a request. A reader does not wait for more bytes
that are none of its own.
"""


_MOST_RECORDS = 1024
"""An object with so many records gets no further stored parts, because all are dropped in one step."""


class Fetch(Enum):
    """The choices for a read of a part of a page. ``STORED_PART``: fetch the part alone, and store it."""

    PAGE = "page"
    PART = "part"
    STORED_PART = "stored part"


class PartialReads:
    """Decides what a read of a part of a page fetches. Call it only for a page and a part that are not
    resident, and for a part that is not on its way.
    """

    def __init__(
        self, placement: Placement, pins: Pins, other_pages: OtherPages, *, capacity_bytes: int
    ) -> None:
        self._placement = placement
        self._pins = pins
        self._other_pages = other_pages
        self._density = PageDensity(capacity_bytes)

    def takes_page(
        self, ref: ObjectRef, number: int, *, page_bytes: int, part_bytes: int, explained: bool
    ) -> bool:
        """Return whether a read of ``part_bytes`` of a page probably fetches all of it. The arguments are as
        for ``fetch``.
        """
        saved_bytes = page_bytes - part_bytes
        # The checksum of a short object can be verified only if it is read whole.
        if saved_bytes < REQUEST_BYTES:
            return True
        pinned = self._pins.covers(ref)
        if saved_bytes >= LONG_BYTES and not explained and not pinned:
            return False
        share = part_bytes / page_bytes
        return self._admits(ref, number, page_bytes, share, explained=explained, pinned=pinned)

    def _admits(
        self, ref: ObjectRef, number: int, page_bytes: int, share: float, *, explained: bool, pinned: bool
    ) -> bool:
        """Return whether a page would win a place for a read of ``share`` of it."""
        # To fetch the page costs 1/share times as many bytes as the part. Unless an order or scores say that
        # the page will be read, it must also be worth so many times more than the page that would leave.
        worth = share if explained else share * share
        size = page_bytes + RECORD_BYTES
        return self._placement.admits(object_hash(ref), number, size, pinned=pinned, part=worth)

    def fetch(
        self,
        ref: ObjectRef,
        number: int,
        group: int,
        *,
        first: int,
        page_bytes: int,
        part: Span,
        explained: bool,
        busy: bool,
    ) -> Fetch:
        """Decide what to fetch for ``part`` of a page of ``page_bytes``, which begins at byte ``first`` of
        the object. Note the miss before this call.

        ``explained``: True if an order or scores explain the read. ``busy``: True if other parts of the page
        are on their way.
        """
        saved_bytes = page_bytes - part.length
        if (busy and saved_bytes < LONG_BYTES) or self.takes_page(
            ref, number, page_bytes=page_bytes, part_bytes=part.length, explained=explained
        ):
            return Fetch.PAGE
        if saved_bytes < LONG_BYTES:
            self._placement.histories.waits_no_more(object_hash(ref), number)
            return Fetch.PART
        pinned = self._pins.covers(ref)
        admitted = not (explained or pinned) and self._admits(
            ref, number, page_bytes, part.length / page_bytes, explained=False, pinned=False
        )
        if admitted:
            alone = self._density.reads_alone(
                page_hash(object_hash(ref), number),
                group,
                page_bytes=page_bytes,
                part=part,
                stored=self._stored_as(ref, first, part) is not None,
                full=not self._placement.free_bytes(page_bytes + RECORD_BYTES),
            )
            if not alone:
                return Fetch.PAGE
        return self.fetch_part(ref, number, group, first, part)

    def fetch_part(self, ref: ObjectRef, number: int, group: int, first: int, part: Span) -> Fetch:
        """Decide whether to store ``part`` if it is fetched alone. The arguments are as for ``fetch``."""
        hashed, pinned, stored = object_hash(ref), self._pins.covers(ref), self._stored_as(ref, first, part)
        self._placement.histories.waits_no_more(hashed, number)
        if stored is None:
            return Fetch.PART
        # The part has a history of its own, so that it is kept if it is read again, although its page is not.
        self._placement.note_part(hashed, stored, group)
        size = part.length + RECORD_BYTES
        return (
            Fetch.STORED_PART if self._placement.admits(hashed, stored, size, pinned=pinned) else Fetch.PART
        )

    def note_page(self, ref: ObjectRef, number: int) -> None:
        """Note that a page was fetched whole although no reader asked for that."""
        self._density.forget(page_hash(object_hash(ref), number))

    def _stored_as(self, ref: ObjectRef, first: int, part: Span) -> int | None:
        """Return the number of the record that would hold ``part`` alone; None if it cannot be stored."""
        if len(self._other_pages.get(object_hash(ref), ())) >= _MOST_RECORDS:
            return None
        return part_number(first + part.start)
