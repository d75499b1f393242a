"""Space of a store: where the next record goes, and how many blocks may be taken. This module only counts; it
does no I/O.

Law: live blocks + slack + fixed overhead + rows of catalogues + pending segments <= limit_bytes, at every
moment. A catalogue is written only at the stop, but its rows count as long as their records. Slack is blocks
that hold bytes but no record. Slack is kept for the next record: returning 100 KB of blocks and taking them
again costs 36 us of CPU, and overwriting them costs 7 us (bench suite "tiers"). Slack is returned as soon as
records need its room, or when it exceeds ``slack_bytes``. Some methods return blocks. Their caller must punch
these blocks in the order in which they were returned.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from shadeproxy.tiers import catalogue
from shadeproxy.tiers.extents import Extent, FreeExtents
from shadeproxy.tiers.location import address_of, number_of, unit_of
from shadeproxy.tiers.record import LEAST_UNITS
from shadeproxy.tiers.rows import ROW
from shadeproxy.tiers.segment import BLOCK_BYTES, UNITS_PER_BLOCK, BlockRange, Counts, Segment

# If an ext4 file lies in many pieces on the disk, a tree of blocks lists the pieces, and these blocks take
# room too. One block of the tree lists this many pieces.
_EXTENTS_PER_BLOCK = 340
_INLINE_EXTENTS = 4
_SLACK_RANGES = 4096
_ROW_BYTES = ROW.itemsize

Punch = tuple[Segment, BlockRange]
"""Blocks of a segment that the caller must return to the file system."""


class Space:
    """The segments of a store, their free extents and the count of blocks. Only one thread may use it."""

    def __init__(self, capacity_bytes: int, *, slack_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self.limit_bytes = capacity_bytes
        self.used_bytes = 0
        self.rows_bytes = 0
        """Bytes of the rows that catalogues have at the stop. They are not part of ``used_bytes``."""
        self.slack_bytes = 0
        self.pending_bytes = 0
        self.segments: dict[int, Segment] = {}
        self.empty_segments = 0
        self._most_slack_bytes = slack_bytes
        self._free = FreeExtents()
        self._slack: deque[Punch] = deque()

    @property
    def claimed_bytes(self) -> int:
        """Bytes that count against the limit: those of records, of overhead, of rows of catalogues, and of
        pending segments.
        """
        return self.used_bytes + self.rows_bytes + self.pending_bytes

    @property
    def _room_bytes(self) -> int:
        return self.limit_bytes - self.claimed_bytes

    def overhead_bytes(self, segment: Segment) -> int:
        """Return the bytes that the file system needs to describe a segment file, if the file is in as many
        pieces as possible.
        """
        blocks = min(segment.size_bytes, self._capacity_bytes) // BLOCK_BYTES
        extents = blocks // 2 + 1
        return 0 if extents <= _INLINE_EXTENTS else -(-extents // _EXTENTS_PER_BLOCK) * BLOCK_BYTES

    def can_add(self, segment: Segment, units: int) -> bool:
        """Return whether the limit leaves room for one more segment with a record of ``units``."""
        blocks = -(-units // UNITS_PER_BLOCK)
        added_bytes = self.overhead_bytes(segment) + blocks * BLOCK_BYTES + _ROW_BYTES
        return added_bytes <= self._room_bytes

    def add_segment(self, segment: Segment) -> None:
        """Add an empty segment."""
        self._count_in(segment)
        self.empty_segments += 1
        self._free.add(address_of(segment.number, 0), segment.units)

    def _count_in(self, segment: Segment) -> None:
        self.segments[segment.number] = segment
        self.used_bytes += self.overhead_bytes(segment)

    def pending_bytes_of(self, segment: Segment) -> int:
        """Return the bytes by which a pending segment counts: at least what the segment will take once it is
        recovered. Raises OSError.
        """
        listed_bytes = catalogue.size_bytes(segment.catalogue_path)
        return segment.allocated_bytes + listed_bytes + self.overhead_bytes(segment)

    def fitting(self, segment: Segment, units: Counts, lengths: Counts) -> int:
        """Return how many of a segment's records, in order, fit the limit beside the records that are
        recovered already, and beside the blocks of this segment that the medium keeps.
        """
        room_bytes = self.limit_bytes - self.used_bytes - self.rows_bytes - self.overhead_bytes(segment)
        firsts, stops = units // UNITS_PER_BLOCK, -(-(units + lengths) // UNITS_PER_BLOCK)
        blocks = stops - firsts
        blocks[1:] -= stops[:-1] > firsts[1:]
        room_bytes -= (segment.held_blocks - int(blocks.sum())) * BLOCK_BYTES
        return int(np.searchsorted(np.cumsum(blocks * BLOCK_BYTES + _ROW_BYTES), room_bytes, side="right"))

    def restore_segment(self, segment: Segment) -> None:
        """Add a recovered segment. Its free room is used only after ``restore_free`` lists it."""
        self._count_in(segment)
        self.used_bytes += segment.held_blocks * BLOCK_BYTES
        self.rows_bytes += segment.records * _ROW_BYTES

    def restore_free(self, gaps: Iterable[Extent]) -> None:
        """Add the gaps between the records of a segment to the free room. Call ``restore_segment`` before."""
        for gap in gaps:
            self._free.add(gap.start, gap.length)

    def remove_segment(self, segment: Segment) -> list[Punch]:
        """Forget a segment without records. Return the blocks of the segment that must be punched."""
        self._free.take(address_of(segment.number, 0), segment.units)
        self.slack_bytes -= segment.slack_blocks * BLOCK_BYTES
        runs = segment.give_back((0, -(-segment.size_bytes // BLOCK_BYTES)))
        self.used_bytes -= self.overhead_bytes(segment)
        self.empty_segments -= 1
        del self.segments[segment.number]
        return [(segment, run) for run in runs]

    def fits_somewhere(self, units: int) -> bool:
        """Return whether any free extent is long enough, whatever the capacity is."""
        return next(self._free.candidates(units), None) is not None

    def place(self, units: int, *, to_block_end: bool = False) -> tuple[int, int] | None:
        """Take room for a record. Return its address and its length (which may be a little longer). Return
        None if there is no room.

        ``to_block_end``: add the rest of the last block, if that rest is free.
        """
        # Count only blocks that no neighbour can share. If even these blocks do not fit, refuse without a
        # search: most refusals end here.
        own_blocks = max(0, units - 2 * UNITS_PER_BLOCK + 2) // UNITS_PER_BLOCK
        room_bytes = self._room_bytes
        if own_blocks * BLOCK_BYTES > room_bytes:
            return None
        for start, free in self._free.candidates(units):
            segment, unit = self.segments[number_of(start)], unit_of(start)
            taken = units + (-(unit + units) % UNITS_PER_BLOCK if to_block_end else 0)
            if taken > free:
                taken = units
            if free - taken < LEAST_UNITS:
                taken = free
            holes, slack = segment.cost(unit, taken)
            added_bytes = (holes + slack) * BLOCK_BYTES
            if added_bytes + _ROW_BYTES > room_bytes:
                continue
            self._free.take(start, taken)
            self.empty_segments -= segment.records == 0
            segment.occupy(unit, taken)
            self.used_bytes += added_bytes
            self.rows_bytes += _ROW_BYTES
            self.slack_bytes -= slack * BLOCK_BYTES
            return start, taken
        return None

    def place_run(self, lengths: Sequence[int], own_from: int) -> tuple[int, list[int]] | None:
        """Take room for records that follow each other in one piece. Return the address of the first record,
        and the length of each; None if there is no such room.

        ``lengths``: in units. ``own_from``: a record of at least this many units also gets the rest of its
        last block.
        """
        padded = sum([units >= own_from for units in lengths])
        most = sum(lengths) + padded * (UNITS_PER_BLOCK - 1)
        for start, free in self._free.candidates(most):
            segment, unit = self.segments[number_of(start)], unit_of(start)
            taken = list(lengths)
            end = unit
            for place, units in enumerate(lengths if padded else ()):
                end += units
                if units >= own_from:
                    taken[place] += -end % UNITS_PER_BLOCK
                    end += -end % UNITS_PER_BLOCK
            used = sum(taken)
            if free - used < LEAST_UNITS:
                taken[-1] += free - used
                used = free
            holes, slack = segment.cost(unit, used)
            added_bytes, rows_bytes = (holes + slack) * BLOCK_BYTES, len(taken) * _ROW_BYTES
            if added_bytes + rows_bytes > self._room_bytes:
                continue
            self._free.take(start, used)
            self.empty_segments -= segment.records == 0
            segment.occupy(unit, *taken)
            self.used_bytes += added_bytes
            self.rows_bytes += rows_bytes
            self.slack_bytes -= slack * BLOCK_BYTES
            return start, taken
        return None

    def shorten(self, address: int, units: int, kept: int) -> int:
        """Free the end of a record's room, unless that end is too short for any record. Return how many units
        the record keeps.

        ``kept``: the least number of units to keep. No byte of the freed end may have been sent by sendfile.
        """
        kept = max(kept, LEAST_UNITS)
        if units - kept < LEAST_UNITS:
            return units
        self._free.add(address + kept, units - kept)
        segment, unit = self.segments[number_of(address)], unit_of(address)
        # The block in which the shorter record ends is still in use.
        own_stop = -(-(unit + kept) // UNITS_PER_BLOCK) * UNITS_PER_BLOCK
        if own_stop < unit + units:
            blocks = segment.vacate(own_stop, unit + units - own_stop)
            segment.records += 1  # The shorter record is still there.
            freed_bytes = (blocks[1] - blocks[0]) * BLOCK_BYTES
            self.used_bytes -= freed_bytes
            self.slack_bytes += freed_bytes
            self._slack.append((segment, blocks))
        return kept

    def free(self, address: int, units: int) -> tuple[Segment, list[Punch]]:
        """Free the room of a record. Return its segment, and the blocks that must be punched at once."""
        segment = self.segments[number_of(address)]
        blocks = segment.vacate(unit_of(address), units)
        self._free.add(address, units)
        freed_bytes = slack_bytes = (blocks[1] - blocks[0]) * BLOCK_BYTES
        punches: list[Punch] = []
        for run in segment.give_back_sent(blocks):
            slack_bytes -= (run[1] - run[0]) * BLOCK_BYTES
            punches.append((segment, run))
        self.used_bytes -= freed_bytes
        self.rows_bytes -= _ROW_BYTES
        self.slack_bytes += slack_bytes
        self.empty_segments += segment.records == 0
        if slack_bytes:
            self._slack.append((segment, blocks))
        return segment, punches

    def trim(self) -> list[Punch]:
        """Turn slack into holes until the module's law holds. Return the blocks to punch; the oldest slack
        comes first.
        """
        punches: list[Punch] = []
        if not self._slack:
            return punches
        allowed_bytes = max(0, min(self._most_slack_bytes, self._room_bytes))
        while self._slack:
            segment, blocks = self._slack[0]
            within = self.slack_bytes <= allowed_bytes and len(self._slack) <= _SLACK_RANGES
            if within and segment.has_slack(blocks):
                break
            self._slack.popleft()
            for run in segment.give_back(blocks):
                self.slack_bytes -= (run[1] - run[0]) * BLOCK_BYTES
                punches.append((segment, run))
        return punches
