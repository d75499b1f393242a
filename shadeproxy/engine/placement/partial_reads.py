"""Decides for a read of a part of a missing page: fetch the whole page, or only the part?

Laws: plain defs. The decision is made before the flight starts, from the state at that moment. The page is
fetched whole if fetching only the part would save less than 64 KiB. A page that would win a place is also
fetched whole, unless that would hold up its reader: the rest of the page is long, and nothing shows that it
will be read soon (docs/adr/0081).
"""

from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.engine.placement.candidates import RECORD_BYTES
from shadeproxy.engine.placement.density import REQUEST_BYTES, PageDensity
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.hints.hashing import object_hash

LONG_BYTES = 512 * 1024
"""On slow links of today so many bytes take about as long as a request. A reader is not made to wait for
more bytes that are none of its own.
"""


class PartialReads:
    """Decides whether a read of a part of a page fetches only that part. Call it only for a page that is not
    resident, and for a part that is not on its way.
    """

    def __init__(self, placement: Placement, pins: Pins) -> None:
        self._placement = placement
        self._pins = pins
        self._density = PageDensity()

    def alone(
        self,
        ref: ObjectRef,
        number: int,
        group: int,
        *,
        page_bytes: int,
        part: Span,
        explained: bool,
        busy: bool,
    ) -> bool:
        """Return whether to fetch only ``part`` of a page of ``page_bytes``. Note the miss before this call.

        ``explained``: True if an order or scores explain the read. ``busy``: True if other parts of the page
        are on their way.
        """
        saved_bytes = page_bytes - part.length
        # The checksum of a short object can be verified only if it is read whole.
        if saved_bytes < REQUEST_BYTES or (busy and saved_bytes < LONG_BYTES):
            return False
        hashed, size = object_hash(ref), page_bytes + RECORD_BYTES
        share, pinned = part.length / page_bytes, self._pins.covers(ref)
        if not self._placement.admits(hashed, number, size, pinned=pinned, part=share):
            return True
        if pinned or explained or saved_bytes < LONG_BYTES:
            return False
        page = page_hash(hashed, number)
        return self._density.reads_alone(page, group, page_bytes=page_bytes, part=part)
