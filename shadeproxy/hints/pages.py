"""Index of the samples in each page of an object, from which the weight and the next use of a page follow.

The index numbers *units*. A unit is usually one page that a sample needs. For a sample that is a whole
object, whose length is unknown, all pages of the object are one unit; so they are for a sample that is too
long for the index. Law: a PageIndex never changes, so any thread may read it. It consists of columns.
Indexing a million samples takes half a second, so call ``of`` in a thread of a pool. Finding 1,024 pages
takes some 50 us.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

PAGE_SIZE_BYTES = 4 << 20
"""Default of ``cache.page_size``."""

ANY_PAGE = (1 << 32) - 1
"""Page number that means "every page of the object"."""

_SPARE_PAIRS = 1 << 20
_PAIRS_PER_SAMPLE = 8


@dataclass(frozen=True, slots=True, eq=False)
class PageIndex:
    """The units, in order of group (see ``datasets.Groups``) and page number.

    starts: i64[u + 1], members: u32[p]: the samples of unit i are ``members[starts[i]:starts[i + 1]]``,
    ascending. first, spans: u32[n]: sample i is a member of ``spans[i]`` units from ``first[i]`` on (of none
    if the sample is empty). beside: i64[u]: for each unit that is one page, the unit of its whole object,
    whose samples need the page too; -1 if the object has no such unit. None if no object has such a unit.
    """

    starts: Ids
    members: NDArray[np.uint32]
    beside: Ids | None
    first: NDArray[np.uint32]
    spans: NDArray[np.uint32]
    _keys: NDArray[np.uint64]
    _group_starts: Ids

    @classmethod
    def of(cls, group_of: Ids, group_count: int, offset: Ids, length: Ids, page_size: int) -> Self:
        """Index samples by object (``group_of``: i64[n]) and place in bytes. A negative length means the
        whole object.

        If samples lie in more than 8 pages each on average, the longest samples count for every page of their
        object, so that the size of the index stays in proportion to the manifest.
        """
        first_page = np.where(length > 0, offset // page_size, ANY_PAGE)
        last_page = np.where(length > 0, (offset + length - 1) // page_size, ANY_PAGE)
        spans = np.where(length == 0, 0, np.minimum(last_page - first_page + 1, ANY_PAGE))
        too_long = (spans > most_pages(spans)) | (last_page >= ANY_PAGE)
        first_page[too_long] = ANY_PAGE
        spans[too_long & (spans > 0)] = 1
        samples = np.repeat(np.arange(len(spans), dtype=np.uint32), spans)
        before = np.cumsum(spans) - spans
        within = np.arange(len(samples)) - before[samples]
        keys = _key(group_of[samples], first_page[samples] + within)
        order = np.argsort(keys, kind="stable")
        begins = np.ones(len(keys), dtype=np.bool_)
        begins[1:] = keys[order[1:]] != keys[order[:-1]]
        unit_of = np.empty(len(keys), dtype=np.uint32)
        unit_of[order] = np.cumsum(begins) - 1
        first = np.zeros(len(spans), dtype=np.uint32)
        first[spans > 0] = unit_of[before[spans > 0]]
        unit_keys = keys[order][begins]
        group_starts = np.searchsorted(unit_keys, _key(np.arange(group_count + 1), np.zeros(1, np.int64)))
        return cls(
            starts=np.append(np.flatnonzero(begins), len(keys)),
            members=samples[order],
            beside=_beside(unit_keys, group_starts),
            first=first,
            spans=spans.astype(np.uint32),
            _keys=unit_keys,
            _group_starts=group_starts,
        )

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def columns(self) -> list[NDArray[Any] | None]:
        """All columns."""
        return [
            self.starts, self.members, self.beside, self.first, self.spans, self._keys, self._group_starts,
        ]  # fmt: skip

    @property
    def has_whole_objects(self) -> bool:
        """True if a unit stands for every page of its object."""
        return bool((self._keys & np.uint64(ANY_PAGE) == ANY_PAGE).any())

    def pages_of(self, units: Ids) -> tuple[Ids, NDArray[np.uint32]]:
        """Return the group and the page number of each unit."""
        keys = self._keys[units]
        return (keys >> np.uint64(32)).astype(np.int64), keys.astype(np.uint32)

    def find(self, groups: Ids, numbers: NDArray[np.uint32]) -> Ids:
        """Return the unit of page ``numbers[i]`` of the object ``groups[i]``: i64[k]. -1 if no sample needs
        the page, or the group is -1.
        """
        known = groups >= 0
        begin, end = self._group_starts[groups * known], self._group_starts[groups * known + 1]
        keys = _key(groups * known, numbers.astype(np.int64))
        # If every page of an object is a unit, the unit of page n is the n-th of the object.
        places = begin + numbers
        found = known & (places < end)
        found[found] = self._keys[places[found]] == keys[found]
        astray = np.flatnonzero(known & ~found)
        if len(astray):
            places[astray] = np.searchsorted(self._keys, keys[astray])
            found[astray] = places[astray] < end[astray]
            inside = astray[found[astray]]
            found[inside] = self._keys[places[inside]] == keys[inside]
        if self.beside is not None:
            last = np.maximum(end - 1, 0)
            whole = known & ~found & (begin < end) & (self._keys[last] & np.uint64(ANY_PAGE) == ANY_PAGE)
            places[whole] = last[whole]
            found |= whole
        return np.where(found, places, -1)

    def units_of(self, samples: Ids) -> tuple[Ids, Ids]:
        """Return each sample's units, and for each unit its sample's position in ``samples``: i64[m] both.

        The units are in the order of ``samples``; those of one sample are in the order of its pages.
        """
        spans = self.spans[samples].astype(np.int64)
        sample_of = np.repeat(np.arange(len(samples)), spans)
        within = np.arange(len(sample_of)) - (np.cumsum(spans) - spans)[sample_of]
        return self.first[samples].astype(np.int64)[sample_of] + within, sample_of

    def inside(self, units: Ids) -> NDArray[np.bool_]:
        """Return which samples lie completely in ``units`` (any order, -1 for none): bool[n]."""
        present = np.zeros(len(self) + 1, dtype=np.bool_)
        present[units] = True  # Index -1, of unknown pages, sets the spare element at the end.
        if self.beside is not None:
            present[self.beside[units[units >= 0]]] = True
        sums = np.append(0, np.cumsum(present[:-1]))
        found: NDArray[np.int64] = sums[self.first.astype(np.int64) + self.spans] - sums[self.first]
        return np.equal(found, self.spans)

    def counts(self, units: Ids) -> Ids:
        """Return the number of samples that need each unit, 0 for unit -1: i64[k]."""
        counts = np.where(units < 0, 0, self.starts[units + 1] - self.starts[units])
        if self.beside is not None:
            beside = np.where(units < 0, -1, self.beside[units])
            counts += np.where(beside < 0, 0, self.starts[beside + 1] - self.starts[beside])
        return counts

    def samples(self, unit: int) -> NDArray[np.uint32]:
        """Return the samples of one unit, ascending. They do not include the samples of the whole object,
        which have a unit of their own (``beside``).
        """
        return self.members[self.starts[unit] : self.starts[unit + 1]]


def _key(groups: Ids, numbers: Ids) -> NDArray[np.uint64]:
    return groups.astype(np.uint64) << np.uint64(32) | numbers.astype(np.uint64)


def most_pairs(samples: int) -> int:
    """Return for how many pairs of a sample and a page an index of ``samples`` samples has room."""
    return _PAIRS_PER_SAMPLE * samples + _SPARE_PAIRS


def most_pages(spans: Ids) -> int:
    """Return the length in pages of the longest samples for which an index of pages has room."""
    room = most_pairs(len(spans))
    if spans.sum() <= room:
        return ANY_PAGE
    ordered = np.sort(spans)
    # Samples of equal length all have room, or none has.
    fitting = int(np.searchsorted(np.cumsum(ordered), room, side="right"))
    return int(ordered[fitting]) - 1


def _beside(keys: NDArray[np.uint64], group_starts: Ids) -> Ids | None:
    whole = keys & np.uint64(ANY_PAGE) == ANY_PAGE
    if not whole.any():
        return None
    # The unit that stands for all pages is the last of its group.
    last = np.repeat(group_starts[1:] - 1, np.diff(group_starts))
    return np.where(whole[last] & ~whole, last, -1)
