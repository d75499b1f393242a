"""Reads of the records of a store, by location.

``pin``, ``pin_window`` and ``window`` belong to the store's thread. The other methods do I/O on their own
record only, and may run on any thread.
"""

from collections.abc import Iterable, Iterator

from shadeproxy.core.errors import TierError
from shadeproxy.core.types import ObjectRef
from shadeproxy.tiers.base import Location, Place, RecordHeader
from shadeproxy.tiers.location import address_at, bytes_of, shares_block
from shadeproxy.tiers.pins import ViewPins
from shadeproxy.tiers.record import (
    HEADER_BYTES,
    PEEK_BYTES,
    body_place,
    check_record,
    read_facts,
    read_layout,
)
from shadeproxy.tiers.segment import BLOCK_BYTES, Segment
from shadeproxy.tiers.space import Space

_MOST_RUN_BYTES = 128 * 1024


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

    def refs(self, locations: Iterable[Location]) -> Iterator[ObjectRef | TierError]:
        """Yield the objects of records, from their proven headers; see ``Tier.refs``."""
        for run in _runs(locations):
            start, raw = bytes_of(run[0])[1], self._read_run(run)
            for location in run:
                head = raw[bytes_of(location)[1] - start :][:PEEK_BYTES]
                try:
                    yield read_facts(head, store_id=self._store_id, address=address_at(location)).ref
                except TierError:
                    # Read it alone: its metadata may be longer, or another part of the run cannot be read.
                    yield self._ref(location)

    def _ref(self, location: Location) -> ObjectRef | TierError:
        try:
            return self.header(location).page.ref
        except TierError as error:
            return error

    def _read_run(self, run: list[Location]) -> memoryview:
        """Return the bytes from the first header of a run to its last; none if they cannot be read."""
        try:
            segment, start, _ = self._resolve(run[0])
            _, offset, most_bytes = bytes_of(run[-1])
            return memoryview(segment.read(start, offset + min(most_bytes, PEEK_BYTES) - start))
        except (OSError, TierError):
            return memoryview(b"")

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


def _runs(locations: Iterable[Location]) -> Iterator[list[Location]]:
    """Divide locations into runs. The headers of a run are read by one system call, which reads only blocks
    that have a part of a header. Other blocks of a disk would come into the page cache, where they count as
    checked (docs/adr/0066).
    """
    run: list[Location] = []
    number = start = last_block = 0
    for location in locations:
        segment, offset, most_bytes = bytes_of(location)
        stop = offset + min(most_bytes, PEEK_BYTES)
        is_near = segment == number and 0 <= offset // BLOCK_BYTES - last_block <= 1
        if run and not (is_near and stop - start <= _MOST_RUN_BYTES):
            yield run
            run = []
        if not run:
            number, start = segment, offset
        run.append(location)
        last_block = (stop - 1) // BLOCK_BYTES
    if run:
        yield run
