"""What the soak's data set is here: three writers, each with objects of its own.

The raw client overwrites objects, boto3 overwrites others, and the origin changes a third part by itself, as
somebody who writes past the proxy would: these may be read in any version up to the newest.
"""

from pathlib import Path

import numpy as np

from shadeproxy_bench.reliability.soak.bodies import DataSet

_STRIDE = 7
_BY_CLIENT, _BY_BOTO, _BY_ORIGIN = 3, 1, 5


class ChaosData(DataSet):
    """Which object is whose to change."""

    def changes(self, number: int) -> bool:
        return number % _STRIDE in {_BY_CLIENT, _BY_BOTO, _BY_ORIGIN}

    def is_of_boto(self, number: int) -> bool:
        """Whether boto3 overwrites it."""
        return number % _STRIDE == _BY_BOTO

    def is_of_origin(self, number: int) -> bool:
        """Whether the origin changes it in the middle of reads."""
        return number % _STRIDE == _BY_ORIGIN


class Present:
    """The version of each object at the origin: uint32[count] in a file, so that it outlives the process."""

    def __init__(self, path: Path, count: int) -> None:
        if not path.exists():
            np.zeros(count, np.uint32).tofile(path)
        self._versions = np.memmap(path, np.uint32, "r+", shape=(count,))

    def __getitem__(self, number: int) -> int:
        return int(self._versions[number])

    def __setitem__(self, number: int, version: int) -> None:
        self._versions[number] = version
