"""Recovers the records of a segment after a stop or a crash, on a separate thread. Also writes the catalogues
at a stop.

A segment with a complete catalogue is restored from the catalogue, without reading the segment. Any other
segment is scanned: a header whose hash is right (store, address, every field) proves a record. The scan jumps
over bodies and holes, and otherwise steps by 64 bytes. The scan reads no bodies: ``load`` checks the hash of
a body before the first use of its page. This module does not touch the store's counts.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import GroupName, etag_hash, group_name, object_hash
from shadeproxy.tiers import catalogue
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.catalogue import Key
from shadeproxy.tiers.directory import HeldDirectory
from shadeproxy.tiers.extents import Extent
from shadeproxy.tiers.location import (
    MOST_RECORD_UNITS,
    address_of,
    lengths_of,
    numbers_of,
    pack,
    pack_all,
    unit_of,
    units_of,
)
from shadeproxy.tiers.record import (
    LEAST_UNITS,
    MAGIC,
    MOST_HEADER_BYTES,
    PEEK_BYTES,
    UNIT_BYTES,
    WHOLE_BLOCKS_UNITS,
    read_facts,
)
from shadeproxy.tiers.rows import ROW, Contents, Rows
from shadeproxy.tiers.segment import BLOCK_BYTES, UNITS_PER_BLOCK, BlockRange, Counts, Segment

_logger = logging.getLogger(__name__)

# Read sizes of a scan. Where records are short, one system call reads many of them. Between long bodies, a
# read of one page is enough for a header.
_NEAR_BYTES = 64 * 1024
_FAR_BYTES = 4096
_SCAN_BYTES = 256 * 1024
_KEPT_BYTES = MOST_RECORD_UNITS * UNIT_BYTES // BLOCK_BYTES * BLOCK_BYTES
_MAGIC_WORD = int.from_bytes(MAGIC, "little")


class Halted(Exception):
    """Raised when the store is being closed, to stop recovery at once."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A recovered segment, ready to be added to the space.

    ``rows``: every record; its ``location`` has the length of the room that the record takes. ``gaps``: the
    free room. ``kept``: blocks that are not free, although they hold no record; see ``hold_back``.
    ``damaged``: number of places that begin like a record but have no valid header.
    """

    segment: Segment
    contents: Contents
    gaps: list[Extent]
    kept: list[Location]
    damaged: int
    catalogue_lost: bool

    @property
    def rows(self) -> Rows:
        return self.contents.rows


class FoundRecord(NamedTuple):
    """A record with a valid header. It begins at unit number ``unit`` and is ``units`` units long. The other
    fields are those of ``rows.ROW``.
    """

    unit: int
    units: int
    object_hash: int
    etag: int
    number: int
    group: int
    body_bytes: int
    validated_s: float


_FOUND = np.dtype(
    [("unit", "<i8"), ("units", "<i8")]
    + [(name, ROW[name]) for name in ("object_hash", "etag", "number", "group", "body_bytes", "validated_s")]
)
_PART = 1024


@dataclass(slots=True)
class SegmentScan:
    """One scan of a segment. ``damaged`` counts places that begin like a record but have no valid header.

    The scan calls ``halted`` before every read.
    """

    segment: Segment
    store_id: int
    halted: Callable[[], bool]
    damaged: int = 0
    names: dict[GroupName, int] = field(default_factory=dict)
    _window: memoryview = field(default_factory=lambda: memoryview(b""))
    _window_start: int = 0
    _near: bool = True

    def __iter__(self) -> Iterator[FoundRecord]:
        """Yield the records in order of address. Raises OSError, Halted."""
        offset = 0
        while (run := self.segment.next_data(offset)) is not None:
            offset = max(offset, run[0] // UNIT_BYTES * UNIT_BYTES)
            while offset < run[1]:
                found = self._record_at(offset)
                if found is not None:
                    yield found
                    offset += found.units * UNIT_BYTES
                    self._near = found.units * UNIT_BYTES < _NEAR_BYTES // 4
                else:
                    offset = self._next_magic(offset + UNIT_BYTES, run[1])

    def _record_at(self, offset: int) -> FoundRecord | None:
        raw = self._peek(offset)
        if raw[: len(MAGIC)] != MAGIC:
            return None
        unit = offset // UNIT_BYTES
        address = address_of(self.segment.number, unit)
        for longer in (False, True):
            if longer:
                raw = memoryview(self._read(offset, MOST_HEADER_BYTES))
            try:
                facts = read_facts(raw, store_id=self.store_id, address=address)
            except TierError:
                continue
            if offset + facts.units * UNIT_BYTES <= self.segment.size_bytes:
                ref, etag, number, body_bytes, validated_s, units = facts
                group = self.names.setdefault(group_name(ref), len(self.names))
                hashes = object_hash(ref), etag_hash(etag)
                return FoundRecord(unit, units, *hashes, number, group, body_bytes, validated_s)
        self.damaged += 1
        return None

    def _peek(self, offset: int) -> memoryview:
        start = offset - self._window_start
        if not 0 <= start <= len(self._window) - PEEK_BYTES:
            self._window = memoryview(self._read(offset, _NEAR_BYTES if self._near else _FAR_BYTES))
            self._window_start, start = offset, 0
        return self._window[start : start + PEEK_BYTES]

    def _read(self, offset: int, length: int) -> bytes:
        # The system call below also releases the interpreter's lock, so that the event loop can run.
        if self.halted():
            raise Halted
        return self.segment.read(offset, length)

    def _next_magic(self, offset: int, stop: int) -> int:
        """Return the offset of the next unit in ``[offset, stop)`` that begins like a header, or ``stop``."""
        while offset < stop:
            raw = self._read(offset, min(_SCAN_BYTES, stop - offset))
            units = len(raw) // UNIT_BYTES
            if units == 0:
                break
            words = np.frombuffer(raw, "<u4", count=units * UNIT_BYTES // 4)[:: UNIT_BYTES // 4]
            hits = np.flatnonzero(words == _MAGIC_WORD)
            if hits.size:
                return offset + int(hits[0]) * UNIT_BYTES
            offset += units * UNIT_BYTES
        return stop


def restore(segment: Segment, claim: HeldDirectory, *, sendfile: bool, halted: Callable[[], bool]) -> Arrival:
    """Recover a segment (blocking): find its records, mark their blocks as taken and free the other blocks.

    ``sendfile``: the medium allows sendfile, so an earlier process may have sent any block. Raises Halted.
    Raises OSError when the segment cannot be read, because a list that lacks records must not look complete.
    """
    contents, lost = _catalogued(segment, claim)
    # An existing catalogue must be emptied before the first change of the segment.
    segment.catalogued = segment.catalogue_path.exists()
    damaged = 0
    if contents is None:
        contents, damaged = _walked(segment, claim, halted)
    segment.stop_readahead()
    units, lengths = _layout(segment, contents.rows)
    gaps = gaps_between(segment, units, lengths)
    contents.rows["location"] = pack_all(segment.number, units, lengths)
    segment.fill(units, lengths)
    if segment.allocated_bytes > segment.held_blocks * BLOCK_BYTES:
        _punch_holes(segment)
    kept: list[Location] = []
    if sendfile and len(units):  # The caller deletes the file of a segment without records.
        gaps, kept = hold_back(segment, gaps)
    return Arrival(segment, contents, gaps, kept, damaged, lost)


def _punch_holes(segment: Segment) -> None:
    failure = None
    for blocks in segment.holes():
        try:
            segment.punch(blocks)
        except OSError as error:
            failure = error
    if failure is not None:
        _logger.warning("cannot return the free blocks of %s: %s", segment.path, failure.strerror)


def hold_back(segment: Segment, gaps: list[Extent]) -> tuple[list[Extent], list[Location]]:
    """Count the blocks that the medium keeps, although they were punched, as taken. Return the rest of the
    ``gaps`` between the records, and the locations of these blocks.

    Sockets may still hold the pages of these blocks, so no record may be written there.
    """
    free, kept = list[Extent](), list[Location]()
    runs = deque(_kept_units(segment))
    for gap in gaps:
        start, stop = gap.start, gap.start + gap.length
        while runs and runs[0].start < stop:
            run = runs.popleft()
            if run.start > start:
                free.append(Extent(start, run.start - start))
            start = run.start + run.length
            segment.occupy(unit_of(run.start), run.length)
            kept.append(pack(*run))
        if start < stop:
            free.append(Extent(start, stop - start))
    return free, kept


def _kept_units(segment: Segment) -> Iterator[Extent]:
    """Yield the runs of units, none longer than a record may be, that hold data in blocks without a record.

    Such blocks lie within the gaps between the records.
    """
    for first, stop in segment.holes():
        offset, end = first * BLOCK_BYTES, stop * BLOCK_BYTES
        while (data := _data_from(segment, offset)) is not None and data[0] < end:
            offset = min(data[1], end, data[0] + _KEPT_BYTES)
            yield Extent(address_of(segment.number, data[0] // UNIT_BYTES), (offset - data[0]) // UNIT_BYTES)


def _data_from(segment: Segment, offset: int) -> BlockRange | None:
    """Return as ``Segment.next_data``. A medium that cannot tell may keep all blocks from ``offset`` on."""
    try:
        return segment.next_data(offset)
    except OSError:
        return (offset, segment.size_bytes) if offset < segment.size_bytes else None


def _catalogued(segment: Segment, claim: HeldDirectory) -> tuple[Contents | None, bool]:
    """Return the contents that the catalogue lists, or None if they cannot be used. Also return whether there
    was a catalogue that is not valid.

    After a crash of the machine, only a catalogue written since the crash is used, because its rows say which
    pages must be checked.
    """
    key = Key(claim.store_id, segment.number, segment.size_bytes)
    try:
        found = catalogue.read(segment.catalogue_path, key, boot=claim.boot if claim.unflushed else None)
    except (TierError, OSError) as error:
        _logger.warning("%s is not used: %s; its segment is read instead", segment.catalogue_path, error)
        return None, True
    return (None if found is None else Contents(found.rows.copy(), found.names)), False


def _walked(segment: Segment, claim: HeldDirectory, halted: Callable[[], bool]) -> tuple[Contents, int]:
    walk = SegmentScan(segment, claim.store_id, halted)
    parts = [np.empty(0, _FOUND)]
    records = iter(walk)
    # Convert the records in parts: one long conversion would keep the interpreter's lock from the event loop.
    while part := list(itertools.islice(records, _PART)):
        parts.append(np.array(part, dtype=_FOUND))
    found = np.concatenate(parts)
    rows = np.zeros(len(found), ROW)
    for name in ("object_hash", "etag", "number", "group", "body_bytes", "validated_s"):
        rows[name] = found[name]
    rows["location"] = pack_all(segment.number, found["unit"], found["units"])
    rows["uses"] = 1.0
    if claim.unflushed:
        # Time 0 means that a page must be checked with the origin before it is used; see engine/rules.py.
        rows["validated_s"] = 0.0
    return Contents(rows, list(walk.names)), walk.damaged


def _layout(segment: Segment, rows: Rows) -> tuple[Counts, Counts]:
    """Return first unit and length of each record. A gap too short for any record is added to the record
    before it.

    A record that sendfile may send took the rest of its last block too, but its header does not say so. So
    every record that is long enough gets the rest of its last block again, where that rest is free.
    """
    units, lengths = units_of(rows["location"]), lengths_of(rows["location"])
    rests = np.append(units[1:], segment.units) - units - lengths
    to_block_end = -(units + lengths) % UNITS_PER_BLOCK
    own = np.where((lengths >= WHOLE_BLOCKS_UNITS) & (rests >= to_block_end), to_block_end, 0)
    lengths, rests = lengths + own, rests - own
    return units, lengths + np.where(rests < LEAST_UNITS, rests, 0)


def gaps_between(segment: Segment, units: Counts, lengths: Counts) -> list[Extent]:
    """Return the free gaps before, between and after the records of a segment. ``units``, ``lengths``: see
    ``Segment.fill``.
    """
    ends = np.append(0, units + lengths)
    starts = np.append(units, segment.units)
    free = np.flatnonzero(starts > ends)
    base = address_of(segment.number, 0)
    gaps = zip((base + ends[free]).tolist(), (starts - ends)[free].tolist(), strict=True)
    return [Extent(start, length) for start, length in gaps]


def write_catalogues(pages: Contents, segments: list[Segment], claim: HeldDirectory) -> None:
    """Write the catalogue of every segment whose records are exactly the ``pages`` in it (blocking).

    A segment gets no catalogue if it holds a record that is not in ``pages``, or a record whose erasure
    failed. The next start scans such a segment.
    """
    rows = pages.rows[np.argsort(pages.rows["location"])]
    numbers = numbers_of(rows["location"])
    for segment in segments:
        first, stop = np.searchsorted(numbers, [segment.number, segment.number + 1])
        part = rows[first:stop].copy()
        if len(part) != segment.records or segment.owed:
            continue
        groups, part["group"] = np.unique(part["group"], return_inverse=True)
        contents = Contents(part, [pages.names[group] for group in groups.tolist()])
        key = Key(claim.store_id, segment.number, segment.size_bytes)
        try:
            catalogue.write(segment.catalogue_path, contents, key, boot=claim.boot)
        except OSError as error:
            _logger.warning("cannot write %s: %s", segment.catalogue_path, error.strerror)
