"""Decides, for a read of part of a missing page, between fetching the page and fetching the part only.

Laws: plain defs; decided before a flight starts, by the facts of that moment: a page that would win a place
is fetched whole; a part of a short page, or of nearly all of it, saves little.
"""

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.placement.candidates import RECORD_BYTES
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.hints.hashing import object_hash

_LEAST_SAVED_BYTES = 64 * 1024
"""A request costs as much as this many bytes; and a short object that is read whole is verified."""


class PartialReads:
    """Decides with ``placement`` on pages that are neither resident nor on their way."""

    def __init__(self, placement: Placement, pins: Pins) -> None:
        self._placement = placement
        self._pins = pins

    def alone(self, ref: ObjectRef, number: int, *, page_bytes: int, part_bytes: int) -> bool:
        """Return whether to fetch only ``part_bytes`` of a page of ``page_bytes``. Note the miss first."""
        if page_bytes - part_bytes < _LEAST_SAVED_BYTES:
            return False
        hashed, size = object_hash(ref), page_bytes + RECORD_BYTES
        part, pinned = part_bytes / page_bytes, self._pins.covers(ref)
        return not self._placement.admits(hashed, number, size, pinned=pinned, part=part)
