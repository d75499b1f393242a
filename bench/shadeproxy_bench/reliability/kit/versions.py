"""The versions of each object that may be read now: two numbers for each object, in a file that all clients
map.

The one writer of an object raises ``started`` before it sends version v, and ``acknowledged`` when the proxy
has answered 200. A read must return a version that is at least ``acknowledged`` at the begin of the read, and
at most ``started`` at its end.
"""

from pathlib import Path

import numpy as np


class Versions:
    """The numbers ``started`` and ``acknowledged`` of each object. ``path``: a file of uint32[2, count],
    which ``create`` makes.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._columns = np.memmap(path, np.uint32, "r+", shape=(2, count))

    @classmethod
    def create(cls, path: Path, count: int) -> "Versions":
        np.zeros((2, count), np.uint32).tofile(path)
        return cls(path, count)

    def acknowledged(self, number: int) -> int:
        return int(self._columns[0, number])

    def started(self, number: int) -> int:
        return int(self._columns[1, number])

    def start(self, number: int) -> int:
        """Return the next version of object ``number``, and raise ``started`` to it, because it will be sent
        now.
        """
        self._columns[1, number] += 1
        return self.started(number)

    def acknowledge(self, number: int, version: int) -> None:
        self._columns[0, number] = version
