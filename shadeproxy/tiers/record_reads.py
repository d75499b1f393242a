"""Reads of the records of a store, by location.

``pin``, ``pin_window`` and ``window`` belong to the store's thread. The other methods do I/O on their own
record only, and may run on any thread.
"""

from shadeproxy.core.errors import TierError
from shadeproxy.tiers.base import Location, Place, RecordHeader
from shadeproxy.tiers.location import address_at, bytes_of, shares_block
from shadeproxy.tiers.pins import ViewPins
from shadeproxy.tiers.record import HEADER_BYTES, body_place, check_record, read_layout
from shadeproxy.tiers.segment import Segment
from shadeproxy.tiers.space import Space


class RecordReads:
    """Reads the records in the segments of ``space``. ``name``: the name of the store. tiers/tier.py
    describes the methods.
    """

    def __init__(self, name: str, space: Space) -> None:
        self.name = name
        self._space = space
        self._pins = ViewPins()
        self._store_id = 0

    def pin(self, location: Location) -> memoryview:
        """Return a read-only view of the body. Raises TierError when no record is at ``location``."""
        _, start, length = self._place_of(location)
        return self.pin_window(location, start, start + length)

    def pin_window(self, location: Location, start: int, stop: int) -> memoryview:
        """Return a view of the body that ``window`` found, without reading the header again."""
        body = self._pins.find(location)
        if body is None:
            body = self._resolve(location)[0].body(start, stop - start)
            self._pins.add(location, body)
        return body.data

    def window(self, location: Location) -> tuple[memoryview, int, int]:
        """Return the segment's mapped bytes, and start and end of the body in them; see ``Tier.window``."""
        segment, start, length = self._place_of(location)
        return segment.view, start, start + length

    def header(self, location: Location) -> RecordHeader:
        """Return the proven header. Raises TierError."""
        segment, offset, most_bytes = self._resolve(location)
        return segment.read_header(offset, most_bytes, store_id=self._store_id, address=address_at(location))

    def is_hot(self, location: Location) -> bool:
        """Return whether header and body are in the page cache. If the record shares a block, its hashes must
        be right too.
        """
        return self.is_resident(location) and (not shares_block(location) or self._is_right(location))

    def is_resident(self, location: Location) -> bool:
        """Return whether header and body are in the page cache; see ``Tier.is_resident``."""
        segment, offset, most_bytes = self._resolve(location)
        try:
            return segment.is_resident(offset, most_bytes)
        except OSError:
            return False

    def hash_to_check(self, location: Location) -> int | None:
        """Return the hash of the body of a record that shares a block; see ``Tier.hash_to_check``."""
        if not shares_block(location):
            return None
        segment, offset, _ = self._resolve(location)
        return read_layout(segment.view[offset : offset + HEADER_BYTES]).body_hash

    def load(self, location: Location) -> RecordHeader:
        """Read and prove the record; see ``Tier.load``."""
        segment, offset, most_bytes = self._resolve(location)
        return segment.read_whole(offset, most_bytes, store_id=self._store_id, address=address_at(location))

    def locate(self, location: Location) -> Place:
        """Return the record's place for another process; see ``Tier.locate``."""
        segment, start, length = self._place_of(location)
        offset = bytes_of(location)[1]
        return Place(segment.path, offset, bytes(segment.body(offset, HEADER_BYTES)), start, length)

    def _is_right(self, location: Location) -> bool:
        """Return whether both hashes of a record that is in the page cache are right."""
        segment, offset, most_bytes = self._resolve(location)
        raw = segment.view[offset : offset + most_bytes]
        try:
            check_record(raw, store_id=self._store_id, address=address_at(location))
        except TierError:
            return False
        return True

    def _place_of(self, location: Location) -> tuple[Segment, int, int]:
        """Return a record's segment, and start and length of its body. Raises TierError if the record is
        gone.
        """
        segment, offset, most_bytes = self._resolve(location)
        start, length = body_place(segment.mapping, offset)
        if start + length > offset + most_bytes:
            raise TierError("record header is damaged")
        return segment, start, length

    def _resolve(self, location: Location) -> tuple[Segment, int, int]:
        """Return a location's segment, and the location's offset and length in bytes. Raises TierError."""
        number, offset, most_bytes = bytes_of(location)
        segment = self._space.segments.get(number)
        if segment is None:
            raise TierError(f"tier {self.name} has no location {location}")
        return segment, offset, most_bytes
