"""Decides for a read of a part of a missing page: fetch the whole page, or only the part?

Laws: plain defs. The decision is made before the flight starts, from the state at that moment. The page is
fetched whole if it would win a place, or if fetching only the part would save less than 64 KiB.
"""

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.placement.candidates import RECORD_BYTES
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.hints.hashing import object_hash

_LEAST_SAVED_BYTES = 64 * 1024
"""A request costs about as much as this many bytes. Besides, the checksum of a short object can be verified
only if it is read whole.
"""


class PartialReads:
    """Decides whether a read of a part of a page fetches only that part. Call it only for a page that is
    neither resident nor on its way.
    """

    def __init__(self, placement: Placement, pins: Pins) -> None:
        self._placement = placement
        self._pins = pins

    def alone(self, ref: ObjectRef, number: int, *, page_bytes: int, part_bytes: int) -> bool:
        """Return whether to fetch only ``part_bytes`` of a page of ``page_bytes``. Note the miss before this
        call.
        """
        if page_bytes - part_bytes < _LEAST_SAVED_BYTES:
            return False
        hashed, size = object_hash(ref), page_bytes + RECORD_BYTES
        part, pinned = part_bytes / page_bytes, self._pins.covers(ref)
        return not self._placement.admits(hashed, number, size, pinned=pinned, part=part)
