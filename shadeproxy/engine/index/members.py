"""The members of a tier, in a dense array from which possible victims are drawn at random. Pinned pages are
not in the array.

Laws: no I/O; plain defs. A slot is in the array at most once, and ``Residents`` stores its position.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.columns import COLUMN_CAPACITY

Slots = NDArray[np.int64]


class Members:
    """The slots of one tier in a dense array, for uniform sampling. Slots of pinned pages are not in the
    array, so pinned pages cannot become victims. Only the number of pinned pages and the bytes of their
    records are kept.
    """

    def __init__(self) -> None:
        self._bind(np.zeros(COLUMN_CAPACITY, dtype=np.int64))
        self.count = 0
        self.pinned = 0
        self.pinned_bytes = 0

    def _bind(self, slots: Slots) -> None:
        # Reading one element of a memoryview takes less than half the time of reading it from an ndarray.
        self._slots, self._elements = slots, slots.data

    @property
    def pages(self) -> int:
        """Number of pages in the tier, including pinned pages."""
        return self.count + self.pinned

    @property
    def slots(self) -> Slots:
        """Slots of the members, in no order; a view of the array, not a copy."""
        return self._slots[: self.count]

    def append(self, slot: int) -> int:
        if self.count == len(self._slots):
            self._bind(np.concatenate([self._slots, np.zeros_like(self._slots)]))
        self._elements[self.count] = slot
        self.count += 1
        return self.count - 1

    def extend(self, slots: Slots) -> Slots:
        """Append many slots. Return their positions in the array."""
        stop = self.count + len(slots)
        while stop > len(self._slots):
            self._bind(np.concatenate([self._slots, np.zeros_like(self._slots)]))
        self._slots[self.count : stop] = slots
        positions = np.arange(self.count, stop)
        self.count = stop
        return positions

    def swap_remove(self, position: int) -> int:
        """Remove the slot at ``position``: move the last slot of the array there. Return the moved slot, or
        -1 if the removed slot was the last.
        """
        self.count -= 1
        if position == self.count:
            return -1
        moved = self._elements[self.count]
        self._elements[position] = moved
        return moved
