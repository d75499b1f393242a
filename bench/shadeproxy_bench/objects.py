"""The objects of a benchmark. The bytes of an object are computed from its size and number, so that every
reader can check them.

All bodies are slices of one random base at distinct offsets. The bodies of two objects therefore differ, and
any process can compute a body from the key without storing it.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

BUCKET = "bench"
_BASE_BYTES = 16 * 1024**2
# The step from the offset of a body to the offset of the next body. It is odd, so that offsets repeat only
# after _BASE_BYTES objects.
_STEP = 4099
_KEY = re.compile(r"([1-9]\d*)/(\d{8})\.bin")


class Piece(NamedTuple):
    """A range of an object: ``length`` bytes at ``offset`` of object ``number``, which has ``size_bytes``; by
    default the whole object.
    """

    size_bytes: int
    number: int
    offset: int = 0
    length: int = -1

    @property
    def path(self) -> str:
        """The path of the object in the URL, below an endpoint."""
        return f"/{BUCKET}/{key_of(self.size_bytes, self.number)}"

    @property
    def range_field(self) -> str | None:
        """The value of the header field Range; None for a whole object."""
        return None if self.length < 0 else f"bytes={self.offset}-{self.offset + self.length - 1}"

    def body(self, seed: int = 0) -> memoryview:
        whole = body_of(self.size_bytes, self.number, seed)
        return whole if self.length < 0 else whole[self.offset : self.offset + self.length]


def key_of(size_bytes: int, number: int) -> str:
    return f"{size_bytes}/{number:08d}.bin"


def parse_key(key: str) -> tuple[int, int] | None:
    """Return (size_bytes, number), or None if no object has that key."""
    found = _KEY.fullmatch(key)
    return (int(found[1]), int(found[2])) if found else None


def body_of(size_bytes: int, number: int, seed: int = 0) -> memoryview:
    """Return the bytes of an object. Another ``seed`` gives other bytes under the same keys."""
    offset = number * _STEP % _BASE_BYTES
    copies = -(-(offset + size_bytes) // _BASE_BYTES)
    return memoryview(_base(seed, copies))[offset : offset + size_bytes]


def write_objects(root: Path, pieces: Iterable[Piece]) -> None:
    """Write the objects as files ``root``/bucket/key, for a server that serves files."""
    for size_bytes, number in {(piece.size_bytes, piece.number) for piece in pieces}:
        path = root / BUCKET / key_of(size_bytes, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body_of(size_bytes, number))


@lru_cache(maxsize=8)
def _base(seed: int, copies: int) -> bytes:
    return np.random.default_rng(seed).bytes(_BASE_BYTES) * copies
