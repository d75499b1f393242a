"""The pages of a tier: a dense array from which victims are drawn. Pinned pages are kept out of the array.

Laws: no I/O; plain defs. A slot is at one position of the array at a time, and the table of residents keeps
this position.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.columns import COLUMN_CAPACITY

Slots = NDArray[np.int64]


class Members:
    """The slots of one tier in a dense array, for uniform sampling. Pinned slots are not in the array, so
    they cannot become victims: only their count and the bytes of their records are kept.
    """

    def __init__(self) -> None:
        self._bind(np.zeros(COLUMN_CAPACITY, dtype=np.int64))
        self.count = 0
        self.pinned = 0
        self.pinned_bytes = 0

    def _bind(self, slots: Slots) -> None:
        # Reading an element takes less than half the time with a memoryview, compared with an ndarray.
        self._slots, self._elements = slots, slots.data

    @property
    def pages(self) -> int:
        """Number of pages, including pinned pages."""
        return self.count + self.pinned

    @property
    def slots(self) -> Slots:
        """View of the members' slots, in no order."""
        return self._slots[: self.count]

    def append(self, slot: int) -> int:
        if self.count == len(self._slots):
            self._bind(np.concatenate([self._slots, np.zeros_like(self._slots)]))
        self._elements[self.count] = slot
        self.count += 1
        return self.count - 1

    def extend(self, slots: Slots) -> Slots:
        """Append many slots. Return their positions."""
        stop = self.count + len(slots)
        while stop > len(self._slots):
            self._bind(np.concatenate([self._slots, np.zeros_like(self._slots)]))
        self._slots[self.count : stop] = slots
        positions = np.arange(self.count, stop)
        self.count = stop
        return positions

    def swap_remove(self, position: int) -> int:
        """Remove the slot at ``position`` by moving the last slot there. Return the moved slot, or -1."""
        self.count -= 1
        if position == self.count:
            return -1
        moved = self._elements[self.count]
        self._elements[position] = moved
        return moved
