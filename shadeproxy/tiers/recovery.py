"""Finding the intact records of a segment file after a clean stop or a crash.

The record header is the only truth: no footer and no catalogue is needed. A record is where a header proves
itself by its hash (store, address, every field); the walk jumps over its body, over holes, and otherwise
steps by 64 bytes. Bodies are not read here: their hash is checked by ``load`` before a page is first used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shadeproxy.core.errors import TierError
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.extents import Extent
from shadeproxy.tiers.location import address_of
from shadeproxy.tiers.record import MAGIC, MOST_HEADER_BYTES, UNIT_BYTES, unpack_header
from shadeproxy.tiers.segment import BLOCK_BYTES, Segment
from shadeproxy.tiers.space import Space

# A header with its meta fits into this nearly always; else it is read again, longer.
_PEEK_BYTES = 512
_SCAN_BYTES = 256 * 1024
_MAGIC_WORD = int.from_bytes(MAGIC, "little")


class Found(NamedTuple):
    """An intact header at ``unit``; the record takes ``units``."""

    unit: int
    units: int
    header: RecordHeader


@dataclass(slots=True)
class Walk:
    """One pass over a segment. ``damaged`` counts what began like a record but did not prove itself."""

    segment: Segment
    store_id: int
    base: int
    """Address of the segment's first unit."""

    damaged: int = 0

    def __iter__(self) -> Iterator[Found]:
        """Records in order of address. Raises OSError."""
        offset = 0
        while (run := self.segment.next_data(offset)) is not None:
            offset = max(offset, run[0] // UNIT_BYTES * UNIT_BYTES)
            while offset < run[1]:
                found = self._record_at(offset)
                if found is not None:
                    yield found
                    offset += found.units * UNIT_BYTES
                else:
                    offset = self._next_magic(offset + UNIT_BYTES, run[1])

    def _record_at(self, offset: int) -> Found | None:
        raw = self.segment.read(offset, _PEEK_BYTES)
        if raw[: len(MAGIC)] != MAGIC:
            return None
        unit = offset // UNIT_BYTES
        for peek_bytes in (_PEEK_BYTES, MOST_HEADER_BYTES):
            try:
                header, layout = unpack_header(raw, store_id=self.store_id, address=self.base + unit)
            except TierError:
                if peek_bytes == _PEEK_BYTES:
                    raw = self.segment.read(offset, MOST_HEADER_BYTES)
                continue
            if offset + layout.record_bytes <= self.segment.size_bytes:
                return Found(unit, layout.record_bytes // UNIT_BYTES, header)
        self.damaged += 1
        return None

    def _next_magic(self, offset: int, stop: int) -> int:
        """Offset of the next unit in ``[offset, stop)`` that begins like a header, else ``stop``."""
        while offset < stop:
            raw = self.segment.read(offset, min(_SCAN_BYTES, stop - offset))
            units = len(raw) // UNIT_BYTES
            if units == 0:
                break
            words = np.frombuffer(raw, "<u4", count=units * UNIT_BYTES // 4)[:: UNIT_BYTES // 4]
            hits = np.flatnonzero(words == _MAGIC_WORD)
            if hits.size:
                return offset + int(hits[0]) * UNIT_BYTES
            offset += units * UNIT_BYTES
        return stop


def restore(
    path: Path, number: int, *, store_id: int, space: Space
) -> tuple[list[tuple[Extent, RecordHeader]], int]:
    """Take a segment file into ``space``: its records with their addresses, and how many were dropped.

    Blocks that no kept record touches are returned to the file system; a file without records is deleted.
    Raises OSError when the file cannot be opened, which says nothing about its records.
    """
    if path.stat().st_size < BLOCK_BYTES:
        # Created by a process that died before giving it a size.
        path.unlink()
        return [], 0
    segment = Segment(path, number)
    walk = Walk(segment, store_id, address_of(number, 0))
    found: list[Found] = []
    unreadable = 0
    try:
        found.extend(walk)
    except OSError:
        unreadable = 1
    taken = space.add_segment(segment, [Extent(record.unit, record.units) for record in found])
    kept = [
        (Extent(walk.base + extent.start, extent.length), record.header)
        for extent, record in zip(taken, found, strict=True)
        if extent is not None
    ]
    for extent, record in zip(taken, found, strict=True):
        if extent is None:
            segment.erase(record.unit * UNIT_BYTES)
    if kept:
        for blocks in segment.holes():
            segment.punch(blocks)
    else:
        space.remove_segment(segment)
        segment.destroy()
    return kept, walk.damaged + unreadable + len(found) - len(kept)
