"""The bytes of the objects, by number and offset, and the pace of reading. No HTTP, no processes.

Bodies are windows of one random base that repeats after a prime number of bytes, so no two pages, parts or
objects have the same bytes at the same place.
"""

import time
from functools import cached_property

import numpy as np

MIB = 1024**2
BUCKET = "memory"
PIECE_BYTES = MIB
"""The longest window, in bytes."""
_PERIOD_BYTES = 33_554_393
_STEP_BYTES = 400_009


class Stream:
    """Bodies of any length, each identified by a ``number``."""

    def piece(self, number: int, offset: int, length: int) -> memoryview:
        """Return bytes ``offset`` .. ``offset + length`` of a body; ``length`` is at most PIECE_BYTES."""
        start = (number * _STEP_BYTES + offset) % _PERIOD_BYTES
        return self._base[start : start + length]

    def is_at(self, number: int, offset: int, received: bytes | memoryview) -> bool:
        """Return whether ``received``, at most PIECE_BYTES long, are the body's bytes from ``offset`` on."""
        # Compare copies, because views are compared byte by byte, while copying a megabyte is cheap.
        return bytes(received) == bytes(self.piece(number, offset, len(received)))

    @cached_property
    def _base(self) -> memoryview:
        once = np.random.default_rng(3).bytes(_PERIOD_BYTES)
        return memoryview(once + once[:PIECE_BYTES])


class Pace:
    """A limit of ``bytes_per_s`` from now on; 0: unlimited."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._began_s = time.monotonic()
        self._taken_bytes = 0

    def rest_s(self, size_bytes: int) -> float:
        """Return the seconds to wait after ``size_bytes`` more were received."""
        if not self._bytes_per_s:
            return 0.0
        self._taken_bytes += size_bytes
        return max(0.0, self._began_s + self._taken_bytes / self._bytes_per_s - time.monotonic())


def key_of(number: int) -> str:
    return f"{number:04d}.bin"


def tag_of(number: int) -> str:
    """Return the ETag of an object, including its quotes."""
    return f'"{number:032x}"'
