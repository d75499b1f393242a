"""Fill memory: the memory into which a worker fetches pages. Both the worker and the coordinator map it.

Laws: only the worker takes free extents. It alone writes to an extent, unless its fill fails: then the
coordinator writes the rest of the page. An extent becomes free when neither process has a view of it. The
last view may end long after the page was stored, because a transport keeps it for a slow client. All of the
fill memory is charged to the proxy's budget when it is made, so single fills are not charged.
"""

import mmap
import os
import weakref
from collections.abc import Callable

import numpy as np

from shadeproxy.tiers.extents import FreeExtents

_UNIT_BYTES = 4096


class FillMemory:
    """The memory behind ``descriptor``, mapped into this process."""

    def __init__(self, descriptor: int) -> None:
        """Map the memory behind ``descriptor``, which stays open. Raises OSError."""
        self.descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size
        self._mapping = mmap.mmap(descriptor, self.size_bytes)
        self._watched: dict[int, weakref.ref[object]] = {}

    @classmethod
    def create(cls, size_bytes: int) -> "FillMemory":
        """Make new memory, which takes no room until it is written to. Raises OSError."""
        descriptor = os.memfd_create("shadeproxy-fills", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size_bytes)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def view(self, start: int, length: int, unused: Callable[[int], None]) -> memoryview:
        """Return a view of ``length`` bytes from ``start``. ``unused(start)`` is called when no view of these
        bytes is left.

        Raises ValueError if the bytes are not within the memory.
        """
        array = np.frombuffer(self._mapping, np.uint8, length, start)

        def end(_: object) -> None:
            del self._watched[start]
            unused(start)

        self._watched[start] = weakref.ref(array, end)
        return array.data

    def peek(self, start: int, length: int) -> memoryview:
        """Return bytes of an extent that is in use. Use them at once, because this view does not keep the
        extent in use.
        """
        return memoryview(self._mapping)[start : start + length]

    def close(self) -> None:
        """Close the descriptor. The memory stays mapped until the last view is gone."""
        os.close(self.descriptor)
        self._watched.clear()


class FillExtents:
    """Hands out extents of ``memory``, in the worker only."""

    def __init__(self, memory: FillMemory) -> None:
        self._memory = memory
        self._free = FreeExtents()
        self._free.add(0, memory.size_bytes // _UNIT_BYTES)
        self._units: dict[int, int] = {}  # Lengths of extents, by their start in bytes.
        self._holders: dict[int, int] = {}

    @property
    def taken(self) -> int:
        """Number of extents handed out."""
        return len(self._units)

    def fits(self, length: int) -> bool:
        """Return whether ``take`` would find ``length`` free bytes."""
        return next(self._free.candidates(-(-length // _UNIT_BYTES)), None) is not None

    def take(self, length: int) -> tuple[int, memoryview] | None:
        """Return the start of ``length`` free bytes, and a view of them. Return None if no extent is long
        enough.
        """
        units = -(-length // _UNIT_BYTES)
        found = next(self._free.candidates(units), None)
        if found is None:
            return None
        self._free.take(found[0], units)
        start = found[0] * _UNIT_BYTES
        self._units[start], self._holders[start] = units, 1
        return start, self._memory.view(start, length, self.give)

    def share(self, start: int) -> None:
        """Note that the coordinator may have views of an extent too. The extent then becomes free only after
        two calls of ``give``, one for each process.
        """
        self._holders[start] += 1

    def give(self, start: int) -> None:
        """Note that one process, this one or the coordinator, no longer has a view of an extent."""
        left = self._holders[start] - 1
        if left:
            self._holders[start] = left
        else:
            del self._holders[start]
            self._free.add(start // _UNIT_BYTES, self._units.pop(start))
