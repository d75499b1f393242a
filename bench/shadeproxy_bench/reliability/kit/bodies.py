"""The data set of the long runs: sizes, keys, and the bytes and ETag of every version of every object.

Bodies are slices of one random base that repeats after a prime number of bytes. Therefore no two pages of an
object, no two objects and no two versions have the same bytes at the same place.
"""

import re
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

BUCKET = "soak"
MIB = 1024**2
PAGE_BYTES = 4 * MIB
LARGEST_BYTES = 20_000_000
COLUMNS_BYTES, CHECKED_COLUMNS_BYTES = 5_000_011, 5_000_012
"""Sizes of objects that are read mostly in a few short parts, like columns of a table. In a soak and in
chaos, those of the second size are checked with the origin at each read.
"""
_PERIOD_BYTES = 33_554_393
_STEP_BYTES = 40_009
_KEY = re.compile(r"(\d+)/(\d{6})\.bin")
_TAG = re.compile(r'"([0-9a-f]{24})([0-9a-f]{8})"')


class SizeClass(NamedTuple):
    """A class of objects that all have ``size_bytes``. Together they have ``share`` of the data set's bytes,
    but there are at least ``least`` of them.
    """

    size_bytes: int
    share: float
    least: int


CLASSES = (
    SizeClass(0, 0.0, 4),
    SizeClass(1, 0.0, 4),
    SizeClass(4_096, 0.004, 64),
    SizeClass(100_000, 0.29, 64),
    SizeClass(1_000_000, 0.2, 8),
    SizeClass(PAGE_BYTES - 1, 0.07, 2),
    SizeClass(PAGE_BYTES, 0.07, 2),
    SizeClass(PAGE_BYTES + 1, 0.07, 2),
    SizeClass(COLUMNS_BYTES, 0.05, 7),
    SizeClass(CHECKED_COLUMNS_BYTES, 0.05, 7),
    SizeClass(2 * PAGE_BYTES + 1, 0.07, 2),
    SizeClass(LARGEST_BYTES, 0.126, 2),
)


class DataSet:
    """The objects number 0 .. len - 1, sorted by size. Together they have about ``total_bytes``."""

    def __init__(self, seed: int, total_bytes: int) -> None:
        self.seed = seed
        self.ranges: dict[int, range] = {}
        sizes: list[int] = []
        for size, share, least in CLASSES:
            count = max(least, round(share * total_bytes / size) if size else 0)
            self.ranges[size] = range(len(sizes), len(sizes) + count)
            sizes += [size] * count
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)

    @cached_property
    def keys(self) -> list[str]:
        return [f"{size}/{number:06d}.bin" for number, size in enumerate(self.sizes)]

    def number_of(self, key: str) -> int | None:
        """Return the number of the object with the key ``key``; None if there is no such object."""
        found = _KEY.fullmatch(key)
        number = int(found[2]) if found else len(self)
        return number if number < len(self) and self.keys[number] == key else None

    def is_written(self, number: int) -> bool:
        """Return whether the soak's writer overwrites the object."""
        return number % 7 == 3

    def changes(self, number: int) -> bool:
        """Return whether any writer may give the object another version."""
        return self.is_written(number)

    def body(self, number: int, version: int) -> memoryview:
        offset = (version * len(self) + number) * _STEP_BYTES % _PERIOD_BYTES
        return self._base[offset : offset + self.sizes[number]]

    def tag(self, number: int, version: int) -> str:
        """Return the ETag of a version, including its quotes."""
        return f'"{self._stem(number)}{version:08x}"'

    def version_of(self, number: int, tag: str) -> int | None:
        """Return the version with the ETag ``tag``; None if no version of this object has it."""
        found = _TAG.fullmatch(tag)
        return int(found[2], 16) if found and found[1] == self._stem(number) else None

    def _stem(self, number: int) -> str:
        return blake2b(f"{self.seed}/{self.keys[number]}".encode(), digest_size=12).hexdigest()

    @cached_property
    def _base(self) -> memoryview:
        once = np.random.default_rng(self.seed).bytes(_PERIOD_BYTES)
        return memoryview(once + once[:LARGEST_BYTES])
