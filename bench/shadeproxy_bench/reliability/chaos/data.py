"""The data set of a chaos run: the data set of the soak, with three writers that change objects.

The raw client overwrites the first kind of objects, and boto3 the second. The origin itself changes the third
kind, like a writer that bypasses the proxy. A read of the third kind may return any version up to the newest,
unless the proxy must check its object at each read.
"""

from pathlib import Path

import numpy as np

from shadeproxy_bench.reliability.kit.bodies import CHECKED_COLUMNS_BYTES, DataSet

CONFIRMED_SIZES = (4096, CHECKED_COLUMNS_BYTES)
"""Sizes of the objects that the proxy must check with the origin at each read."""
_STRIDE = 7
_BY_CLIENT, _BY_BOTO, _BY_ORIGIN = 3, 1, 5


class ChaosData(DataSet):
    """The objects of the run, and which writer changes each of them."""

    def changes(self, number: int) -> bool:
        return number % _STRIDE in {_BY_CLIENT, _BY_BOTO, _BY_ORIGIN}

    def is_of_boto(self, number: int) -> bool:
        """Return whether boto3 overwrites the object."""
        return number % _STRIDE == _BY_BOTO

    def is_of_origin(self, number: int) -> bool:
        """Return whether the origin itself changes the object, even while it is read."""
        return number % _STRIDE == _BY_ORIGIN

    def is_confirmed(self, number: int) -> bool:
        """Return whether the proxy must check the object with the origin at each read."""
        return self.sizes[number] in CONFIRMED_SIZES


class Present:
    """The present version of each object at the origin, as uint32[count] in a file, so that the versions
    outlive the process.
    """

    def __init__(self, path: Path, count: int) -> None:
        if not path.exists():
            np.zeros(count, np.uint32).tofile(path)
        self._versions = np.memmap(path, np.uint32, "r+", shape=(count,))

    def __getitem__(self, number: int) -> int:
        return int(self._versions[number])

    def __setitem__(self, number: int, version: int) -> None:
        self._versions[number] = version
