"""Resident samples of one dataset, with the slots in which they were found, so that walks need not search for
them again.

A walk lists the same samples again and again, and most of them are cached. Finding one by its name costs 4
us. Comparing the stamps of many slots costs a hundredth of that for each. All walks on a dataset share one
``ResidentSamples``. Law: a sample counts as resident only while the stamp of its slot is unchanged. Call it
on the event loop only.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.read.prefetch_port import PrefetchPort
from shadeproxy.hints.datasets import Bits, Sample


class ResidentSamples:
    """The slots of samples that are whole objects of one page: 8 bytes a sample."""

    def __init__(self) -> None:
        self._slots = np.zeros(0, dtype=np.int32)
        self._stamps = np.zeros(0, dtype=np.uint32)

    def are_still(self, ids: NDArray[np.uint32], port: PrefetchPort) -> Bits:
        """Return which of the samples were found before and are still resident."""
        self._make_room(ids)
        slots = self._slots[ids]
        known: Bits = slots >= 0
        slots[~known] = 0
        known &= port.stamps(slots) == self._stamps[ids]
        return known

    def find(self, ids: NDArray[np.uint32], samples: Sequence[Sample], port: PrefetchPort) -> Bits:
        """Search ``samples``, which are those of ``ids``, and return which are resident whole objects of one
        page.
        """
        self._make_room(ids)
        whole = [at for at, sample in enumerate(samples) if sample.length is None]
        slots = np.full(len(samples), -1, dtype=np.int32)
        slots[whole] = port.resident_objects([samples[at].ref for at in whole])
        self._slots[ids] = slots
        found: Bits = slots >= 0
        self._stamps[ids[found]] = port.stamps(slots[found])
        return found

    def _make_room(self, ids: NDArray[np.uint32]) -> None:
        count = int(ids.max()) + 1
        if count > len(self._slots):
            self._slots = np.append(self._slots, np.full(count, -1, dtype=np.int32))
            self._stamps = np.append(self._stamps, np.zeros(count, dtype=np.uint32))
