"""Packs a record's location into 63 bits: segment number, first unit, length in units.

The length is part of the location, so freeing a record needs neither memory for each record nor a read. The
header of a record proves its address (segment number and unit).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shadeproxy.tiers.base import Location
from shadeproxy.tiers.record import UNIT_BYTES

_UNIT_BITS = 26
_LENGTH_BITS = 20
NUMBERS = 1 << 17
# Half of what the bits allow: so the end of one segment is never the start of the next, and free extents of
# two segments never merge.
MOST_SEGMENT_BYTES = UNIT_BYTES << (_UNIT_BITS - 1)
# 80 units less than the bits allow, because a record may get more room than it needs: the rest of its last
# block, and a gap that is too short for any other record.
MOST_RECORD_UNITS = (1 << _LENGTH_BITS) - 80
SEGMENT_SPAN_BYTES = UNIT_BYTES << _UNIT_BITS
_UNIT_MASK = (1 << _UNIT_BITS) - 1
_IN_BLOCK_MASK = 4096 // UNIT_BYTES - 1
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1


def pack(address: int, units: int) -> Location:
    """Return the location of a record of ``units`` units at ``address``."""
    return Location(address << _LENGTH_BITS | units)


def pack_run(address: int, lengths: Iterable[int]) -> list[Location]:
    """Return the locations of records that follow each other from ``address`` on. ``lengths``: in units."""
    locations = []
    for units in lengths:
        locations.append(Location(address << _LENGTH_BITS | units))
        address += units
    return locations


def unpack(location: Location) -> tuple[int, int]:
    """Return the address of a record, and its length in units."""
    return location >> _LENGTH_BITS, location & _LENGTH_MASK


def address_at(location: Location) -> int:
    """Return the address of a record."""
    return location >> _LENGTH_BITS


def shares_block(location: Location) -> bool:
    """Return whether a record may share its first or its last block of 4 KiB with another record. Segments
    begin at a block.
    """
    start, units = unpack(location)
    return bool((start | start + units) & _IN_BLOCK_MASK)


def bytes_of(location: Location) -> tuple[int, int, int]:
    """Return a record's segment number, and its offset in the segment and its length in bytes."""
    return (
        location >> (_LENGTH_BITS + _UNIT_BITS),
        (location >> _LENGTH_BITS & _UNIT_MASK) * UNIT_BYTES,
        (location & _LENGTH_MASK) * UNIT_BYTES,
    )


def positions_of(locations: Iterable[Location]) -> list[tuple[int, int, int, int]]:
    """Return for each record its address, followed by the three numbers that ``bytes_of`` returns."""
    return [
        (
            location >> _LENGTH_BITS,
            location >> (_LENGTH_BITS + _UNIT_BITS),
            (location >> _LENGTH_BITS & _UNIT_MASK) * UNIT_BYTES,
            (location & _LENGTH_MASK) * UNIT_BYTES,
        )
        for location in locations
    ]


def byte_spans(locations: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first byte and end of each record, as if the segments lay ``SEGMENT_SPAN_BYTES`` apart in one
    range.
    """
    starts = (locations >> _LENGTH_BITS) * UNIT_BYTES
    return starts, starts + (locations & _LENGTH_MASK) * UNIT_BYTES


def numbers_of(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the segment number of each record."""
    return locations >> (_LENGTH_BITS + _UNIT_BITS)


def units_of(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first unit of each record within its segment."""
    return (locations >> _LENGTH_BITS) & _UNIT_MASK


def lengths_of(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of each record in units."""
    return locations & _LENGTH_MASK


def record_bytes(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length of each record in bytes."""
    return lengths_of(locations) * UNIT_BYTES


def pack_all(number: int, units: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the locations of records of segment ``number``, from their first units and their lengths in
    units.
    """
    return (address_of(number, 0) + units) << _LENGTH_BITS | lengths


def address_of(number: int, unit: int) -> int:
    """Return the address of a unit in a segment."""
    return number << _UNIT_BITS | unit


def number_of(address: int) -> int:
    """Return the segment number of an address."""
    return address >> _UNIT_BITS


def unit_of(address: int) -> int:
    """Return the unit of an address within its segment."""
    return address & _UNIT_MASK
