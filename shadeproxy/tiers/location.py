"""How a record's place packs into 63 bits: segment number, first unit, length in units.

The length is part of the location so that freeing a record needs neither memory per record nor a read.
An address (segment number and unit) is also what a record's header proves.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.tiers.base import Location
from shadeproxy.tiers.record import UNIT_BYTES

_UNIT_BITS = 26
_LENGTH_BITS = 20
NUMBERS = 1 << 17
# Half of what the bits allow: the end of one segment is then never the start of the next.
MOST_SEGMENT_BYTES = UNIT_BYTES << (_UNIT_BITS - 1)
# A record may be given the rest of its last block, and a rest that is too short for any other.
MOST_RECORD_UNITS = (1 << _LENGTH_BITS) - 80
SEGMENT_SPAN_BYTES = UNIT_BYTES << _UNIT_BITS
_UNIT_MASK = (1 << _UNIT_BITS) - 1
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1


def pack(address: int, units: int) -> Location:
    """The location of a record of so many units."""
    return Location(address << _LENGTH_BITS | units)


def unpack(location: Location) -> tuple[int, int]:
    """Address and length in units."""
    return location >> _LENGTH_BITS, location & _LENGTH_MASK


def address_at(location: Location) -> int:
    """Address of a record."""
    return location >> _LENGTH_BITS


def bytes_of(location: Location) -> tuple[int, int, int]:
    """Segment number, offset in the segment and length in bytes: what every read asks, in one step."""
    return (
        location >> (_LENGTH_BITS + _UNIT_BITS),
        (location >> _LENGTH_BITS & _UNIT_MASK) * UNIT_BYTES,
        (location & _LENGTH_MASK) * UNIT_BYTES,
    )


def byte_spans(locations: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First byte and end of each record as linear addresses, ``SEGMENT_SPAN_BYTES`` apart for segments."""
    starts = (locations >> _LENGTH_BITS) * UNIT_BYTES
    return starts, starts + (locations & _LENGTH_MASK) * UNIT_BYTES


def numbers_of(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Segment number of each record."""
    return locations >> (_LENGTH_BITS + _UNIT_BITS)


def units_of(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """First unit of each record within its segment."""
    return (locations >> _LENGTH_BITS) & _UNIT_MASK


def lengths_of(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of each record in units."""
    return locations & _LENGTH_MASK


def record_bytes(locations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of each record in bytes."""
    return lengths_of(locations) * UNIT_BYTES


def pack_all(number: int, units: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Locations of records of one segment from their first units and their lengths in units."""
    return (address_of(number, 0) + units) << _LENGTH_BITS | lengths


def address_of(number: int, unit: int) -> int:
    """Address of a unit of a segment."""
    return number << _UNIT_BITS | unit


def number_of(address: int) -> int:
    """Segment number of an address."""
    return address >> _UNIT_BITS


def unit_of(address: int) -> int:
    """Unit within its segment of an address."""
    return address & _UNIT_MASK
