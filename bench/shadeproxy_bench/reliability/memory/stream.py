"""The bytes of the objects by number and offset, and the pace at which bodies are read. This module uses
neither HTTP nor processes.

Bodies are windows of one random base that repeats after a prime number of bytes. Therefore no two pages,
parts or objects have the same bytes at the same place.
"""

import time
from functools import cached_property

import numpy as np

MIB = 1024**2
BUCKET = "memory"
PIECE_BYTES = MIB
"""Largest number of bytes that one call makes or compares."""
_PERIOD_BYTES = 33_554_393
_STEP_BYTES = 400_009


class Stream:
    """Makes and compares parts of bodies. A body is identified by the ``number`` of its object, and may have
    any length.
    """

    def piece(self, number: int, offset: int, length: int) -> memoryview:
        """Return bytes ``offset`` .. ``offset + length`` of a body; ``length`` is at most PIECE_BYTES."""
        start = (number * _STEP_BYTES + offset) % _PERIOD_BYTES
        return self._base[start : start + length]

    def is_at(self, number: int, offset: int, received: bytes | memoryview) -> bool:
        """Return whether ``received``, at most PIECE_BYTES long, has the bytes of a body from
        ``offset`` on.
        """
        # Compare copies: views would be compared byte by byte, while copying a megabyte is cheap.
        return bytes(received) == bytes(self.piece(number, offset, len(received)))

    @cached_property
    def _base(self) -> memoryview:
        once = np.random.default_rng(3).bytes(_PERIOD_BYTES)
        return memoryview(once + once[:PIECE_BYTES])


class Pace:
    """Limits the speed of reading to ``bytes_per_s``, measured from the creation of this object; 0:
    unlimited.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._began_s = time.monotonic()
        self._taken_bytes = 0

    def rest_s(self, size_bytes: int) -> float:
        """Count ``size_bytes`` as received. Return the seconds to wait, so that the limit is kept."""
        if not self._bytes_per_s:
            return 0.0
        self._taken_bytes += size_bytes
        return max(0.0, self._began_s + self._taken_bytes / self._bytes_per_s - time.monotonic())


def key_of(number: int) -> str:
    return f"{number:04d}.bin"


def tag_of(number: int) -> str:
    """Return the ETag of an object, including its quotes."""
    return f'"{number:032x}"'
