"""From what is read to samples, and from pages to what is read of them next, for one dataset.

Law: never changes after it is made. A read is told by its object and the byte it begins with; in a dataset of
whole objects the byte does not matter. Of samples that begin at the same byte the first stands for all.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.knowledge.datasets import Dataset, Groups, Hashes, Ids
from shadeproxy.engine.knowledge.sequence import NEVER, OrderIds, Places

_STEP = 0x9E3779B97F4A7C15
_MIX = 0xBF58476D1CE4E5B9
_ALL = (1 << 64) - 1


class Lookup:
    """Samples and units (pages.py) of ``dataset``. Any thread may make one; 1 M parts take half a second."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._is_parts = dataset.offset is not None
        self._reads = dataset.groups
        if dataset.offset is not None:
            self._reads = Groups.of(_mix(dataset.groups.hashes[dataset.groups.group_of()], dataset.offset))
        self.canonical = _canonical(self._reads, dataset.count)
        """The first sample that begins at the same byte, by sample: u32[n]; None: no two do."""

    # ------------------------------------------------------------------ reads

    def find(self, object_hashes: Hashes, offsets: Ids) -> Ids:
        """The sample that each read reads, -1 where it is none: i64[k]."""
        found = self._reads.find(_mix(object_hashes, offsets) if self._is_parts else object_hashes)
        return np.where(found < 0, -1, self._reads.first(np.maximum(found, 0)))

    def find_one(self, object_hash: int, offset: int) -> int:
        """As ``find``, for one read at a tenth of the cost."""
        return self._reads.find_one(_mix_one(object_hash, offset) if self._is_parts else object_hash)

    # ------------------------------------------------------------------ pages

    def unit_next(self, next_at: Places) -> Places:
        """The next place of each unit, without the unit beside it: i32[u], empty where units are samples."""
        pages = self.dataset.pages
        if pages is None or not len(pages):
            return np.empty(0, dtype=np.int32)
        first: Places = np.minimum.reduceat(next_at[pages.members], pages.starts[:-1])
        return first

    def units_of(self, ids: NDArray[np.integer]) -> Ids:
        """The units that samples ``ids`` lie in, with repeats."""
        pages = self.dataset.pages
        assert pages is not None, "units that are not samples"
        return pages.units_of(ids.astype(np.int64, copy=False))[0]

    def renew(self, unit_next: Places, units: Ids, next_at: Places) -> None:
        """Bring ``units`` (unique) of ``unit_next`` up to date."""
        pages = self.dataset.pages
        assert pages is not None, "units that are not samples"
        starts = pages.starts[units]
        counts = pages.starts[units + 1] - starts
        ends = np.cumsum(counts)
        members = np.repeat(starts - ends + counts, counts) + np.arange(int(ends[-1]))
        unit_next[units] = np.minimum.reduceat(next_at[pages.members[members]], ends - counts)

    def places(self, units: Ids, next_at: Places, unit_next: Places) -> Places:
        """The next place of each unit, NEVER for unit -1; of ``unit_next`` those must be up to date."""
        pages = self.dataset.pages
        if pages is None:
            at = next_at[self._reads.members[units]]
        else:
            at = unit_next[units]
            if pages.beside is not None:
                beside = pages.beside[units]
                at = np.where(beside < 0, at, np.minimum(at, unit_next[beside]))
        return np.where(units < 0, np.int32(NEVER), at)

    def beside(self, units: Ids) -> Ids:
        """``units``, and those whose samples count for them too."""
        pages = self.dataset.pages
        if pages is None or pages.beside is None:
            return units
        return np.concatenate([units, pages.beside[units[units >= 0]]])


def _canonical(reads: Groups, count: int) -> OrderIds | None:
    if reads.starts is None:
        return None
    firsts = np.empty(count, dtype=np.uint32)
    firsts[reads.members] = np.repeat(reads.members[reads.starts[:-1]], np.diff(reads.starts))
    return firsts


def _mix(object_hashes: Hashes, numbers: Ids) -> Hashes:
    """One hash of an object and a number within it, as uniform as the objects' own: u64[k]."""
    mixed = object_hashes + numbers.astype(np.uint64) * np.uint64(_STEP)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX)
    return np.asarray(mixed ^ (mixed >> np.uint64(27)))


def _mix_one(object_hash: int, number: int) -> int:
    mixed = (object_hash + number * _STEP) & _ALL
    mixed = ((mixed ^ (mixed >> 30)) * _MIX) & _ALL
    return mixed ^ (mixed >> 27)
