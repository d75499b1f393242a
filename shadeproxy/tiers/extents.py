"""Free space of a store: address ranges without a record, found and merged in constant time.

The method is two-level segregated fit (Masmano et al., "TLSF: a new dynamic memory allocator", ECRTS 2004).
Free extents are in bins by size: a bin for each length below 64 units, and then eight bins for each power of
two. A bit mask finds the smallest bin whose extents surely fit. Of a bin, the extent that was added last is
taken first, because its blocks were used most recently. Addresses and lengths are in units of 64 bytes. This
module knows nothing of files, blocks and capacity.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

_EXACT_BINS = 64
_STEPS_LOG2 = 3
# Enough bins for lengths below 2**32 units, longer than any segment.
_BINS = (33 << _STEPS_LOG2) + (1 << _STEPS_LOG2)
# Number of extents to try in each bin. In the first bin an extent *may* be too short. In every later bin all
# extents are long enough.
_TRIES = 4


class Extent(NamedTuple):
    """A range of addresses, in units."""

    start: int
    length: int


class FreeExtents:
    """The free extents of all segments. Adjacent extents are merged, so no two extents touch."""

    def __init__(self) -> None:
        self._length_at: dict[int, int] = {}
        self._start_before: dict[int, int] = {}
        self._bins: list[dict[int, None]] = [{} for _ in range(_BINS)]
        self._mask = 0

    def __len__(self) -> int:
        return len(self._length_at)

    def __iter__(self) -> Iterator[Extent]:
        return (Extent(start, length) for start, length in self._length_at.items())

    def add(self, start: int, length: int) -> None:
        """Add a free range, and merge it with free neighbours."""
        after = self._length_at.get(start + length)
        if after is not None:
            self.take(start + length, after)
            length += after
        before = self._start_before.get(start)
        if before is not None:
            self.take(before, start - before)
            start, length = before, length + start - before
        self._enter(start, length)

    def take(self, start: int, length: int) -> None:
        """Take the first ``length`` units of the extent that begins at ``start``."""
        whole = self._length_at.pop(start)
        number = _bin_of(whole)
        entries = self._bins[number]
        del entries[start]
        if not entries:
            self._mask ^= 1 << number
        if length < whole:
            self._enter(start + length, whole - length)
        else:
            del self._start_before[start + whole]

    def _enter(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_before[start + length] = start
        number = _bin_of(length)
        self._bins[number][start] = None
        self._mask |= 1 << number

    def candidates(self, length: int) -> Iterator[tuple[int, int]]:
        """Yield start and length of extents of at least ``length`` units. The bin with the shortest extents
        comes first.
        """
        number = _bin_of(length)
        mask = self._mask >> number << number
        while mask:
            number = (mask & -mask).bit_length() - 1
            mask &= mask - 1
            for start in islice(reversed(self._bins[number]), _TRIES):
                if (free := self._length_at[start]) >= length:
                    yield start, free


def _bin_of(length: int) -> int:
    """Return the bin number for an extent of ``length`` units; longer extents never get a smaller number."""
    if length < _EXACT_BINS:
        return length
    bits = length.bit_length()
    # The first four bits of a length, read as a number, are 8 to 15. So each power of two has eight bins in a
    # row, and the first of all these bins has the number _EXACT_BINS.
    return (bits << _STEPS_LOG2) + (length >> bits - 1 - _STEPS_LOG2)
