"""Lookup for one dataset: finds the samples of reads, and the next uses of pages.

Law: a Lookup never changes. A read is identified by its object and first byte; in a dataset of whole objects
the first byte does not matter. If several samples have the same bytes, they all count as the first of them.
A sample that is too long for an index of its pages counts for every page of its object, as in a PageIndex.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.datasets import WHOLE, Dataset, Groups, Hashes, Ids
from shadeproxy.hints.order.sequence import OrderIds, Places
from shadeproxy.hints.pages import ANY_PAGE, most_pages

_STEP = 0x9E3779B97F4A7C15
_MIX = 0xBF58476D1CE4E5B9
_ALL = (1 << 64) - 1


class Lookup:
    """Finds samples and pages of ``dataset``. A page has ``page_size`` bytes. Any thread may make a
    Lookup.
    """

    def __init__(self, dataset: Dataset, page_size: int) -> None:
        self.dataset = dataset
        self.canonical: OrderIds | None = None
        """The first sample that has the same bytes, for each sample: u32[n]. None if all samples differ."""
        self._objects: Groups | None = dataset.groups
        self._pieces: Groups | None = None
        self._pages: Groups | None = None
        self._asked: tuple[Hashes, NDArray[np.uint32], list[Ids]] | None = None
        if dataset.offset is not None and dataset.length is not None:
            self._find_pieces(dataset, dataset.offset, dataset.length, page_size)
        elif dataset.groups.starts is not None:
            self.canonical = _firsts(dataset.groups)

    # ------------------------------------------------------------------ reads

    def find(self, object_hashes: Hashes, offsets: Ids) -> Ids:
        """Return the sample of each read, -1 if there is none: i64[k]."""
        groups = self._pieces or self.dataset.groups
        found = groups.find(object_hashes if self._pieces is None else mix(object_hashes, offsets))
        return np.where(found < 0, -1, groups.first(np.maximum(found, 0))) if len(groups.hashes) else found

    def find_one(self, object_hash: int, offset: int) -> int:
        """Return the sample of one read, at a tenth of the cost of ``find``."""
        if self._pieces is None:
            return self.dataset.groups.find_one(object_hash)
        return self._pieces.find_one(_mix_one(object_hash, offset))

    # ------------------------------------------------------------------ pages

    @property
    def pages(self) -> int:
        """Number of pages for which ``page_next`` returns places: pages of samples that are parts of
        objects.
        """
        return 0 if self._pages is None else len(self._pages.hashes)

    def page_next(self, next_at: Places) -> Places:
        """Return the next place of each page, from that of each sample (``next_at``): i32[pages]."""
        groups = self._pages
        if groups is None:
            return np.empty(0, dtype=np.int32)
        at = next_at[self._sample_of[groups.members]]
        first: Places = at if groups.starts is None else np.minimum.reduceat(at, groups.starts[:-1])
        return first

    def pages_of(self, ids: NDArray[np.integer]) -> Ids:
        """Return the pages in which the samples ``ids`` lie, with repeats."""
        if self._pages is None:
            return np.empty(0, dtype=np.int64)
        firsts, counts = self._first_pair[ids], self._first_pair[ids + 1] - self._first_pair[ids]
        pairs = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        found: Ids = self._page_of_pair[pairs].astype(np.int64)
        return found

    def renew(self, page_next: Places, pages: Ids, next_at: Places) -> None:
        """Update the entries of ``page_next`` for ``pages`` (unique), from ``next_at``."""
        groups = self._pages
        assert groups is not None, "a dataset with parts of objects"
        if groups.starts is None:
            page_next[pages] = next_at[self._sample_of[groups.members[pages]]]
            return
        counts = groups.starts[pages + 1] - groups.starts[pages]
        ends = np.cumsum(counts)
        spread = np.repeat(groups.starts[pages] - ends + counts, counts) + np.arange(int(ends[-1]))
        at = next_at[self._sample_of[groups.members[spread]]]
        page_next[pages] = np.minimum.reduceat(at, ends - counts)

    def find_pages(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> list[Ids]:
        """Return the index of each page among ``pages``, -1 where there is none: i64[k]. If some samples
        count for every page of their object, return the same for the entries of these, too.

        The last answer is cached for the same arrays, because all orders of a dataset look up the same pages.
        """
        assert self._pages is not None, "a dataset with parts of objects"
        asked = self._asked
        if asked is None or asked[0] is not object_hashes or asked[1] is not numbers:
            found = [self._pages.find(mix(object_hashes, numbers.astype(np.int64)))]
            if self._has_long:
                every = np.full(len(numbers), ANY_PAGE, dtype=np.int64)
                found.append(self._pages.find(mix(object_hashes, every)))
            self._asked = asked = (object_hashes, numbers, found)
        return asked[2]

    def find_objects(self, object_hashes: Hashes) -> Ids | None:
        """Return the sample of each whole object, -1 if there is none. Return None if no sample is a whole
        object.
        """
        groups = self._objects
        if groups is None:
            return None
        found = groups.find(object_hashes)
        firsts = groups.first(np.maximum(found, 0))
        if self._whole is not None:
            firsts = self._whole[firsts]
            firsts = firsts if self.canonical is None else self.canonical[firsts].astype(np.int64)
        return np.where(found < 0, -1, firsts)

    # ------------------------------------------------------------------ inside

    _whole: Ids | None = None
    _has_long = False

    def _find_pieces(self, dataset: Dataset, offset: Ids, length: Ids, page_size: int) -> None:
        groups, count = dataset.groups, dataset.count
        hashes = groups.spread(groups.hashes)
        whole = np.flatnonzero(length == WHOLE)
        self._pieces = Groups.of(mix(hashes, offset))
        if self._pieces.starts is not None:
            self.canonical = _firsts(self._pieces)
        self._objects = Groups.of(hashes[whole]) if len(whole) else None
        self._whole = whole if len(whole) else None
        first = offset // page_size
        # An empty sample counts as lying in the page in which it begins, although reading it reads no bytes.
        last = (offset + np.maximum(length, 1) - 1) // page_size
        counts = np.where(length == WHOLE, 0, np.minimum(last - first + 1, ANY_PAGE))
        too_long = (counts > most_pages(counts)) | ((last >= ANY_PAGE) & (counts > 0))
        first[too_long], counts[too_long] = ANY_PAGE, 1
        self._has_long = bool(too_long.any())
        # Pair each sample with its pages. Pairs of samples with the same bytes lie side by side.
        samples = np.arange(count, dtype=np.uint32)
        order = samples if self.canonical is None else np.argsort(self.canonical, kind="stable")
        firsts = samples if self.canonical is None else self.canonical[order]
        counts, first = counts[order], first[order]
        self._first_pair = np.append(0, np.cumsum(np.bincount(firsts, weights=counts, minlength=count)))
        self._first_pair = self._first_pair.astype(np.int64)
        self._sample_of = np.repeat(firsts, counts)
        numbers = np.arange(len(self._sample_of)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        if len(numbers):
            self._pages = Groups.of(mix(np.repeat(hashes[order], counts), numbers))
            self._page_of_pair = self._pages.spread(np.arange(len(self._pages.hashes), dtype=np.uint32))


def mix(object_hashes: Hashes, numbers: Ids) -> Hashes:
    """Return one hash for an object and a number within it, as uniform as the objects' own hashes: u64[k]."""
    mixed = object_hashes + numbers.astype(np.uint64) * np.uint64(_STEP)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX)
    return np.asarray(mixed ^ (mixed >> np.uint64(27)))


def _mix_one(object_hash: int, number: int) -> int:
    mixed = (object_hash + number * _STEP) & _ALL
    mixed = ((mixed ^ (mixed >> 30)) * _MIX) & _ALL
    return mixed ^ (mixed >> 27)


def _firsts(groups: Groups) -> OrderIds:
    """Return the first sample of each sample's group: u32[n]."""
    assert groups.starts is not None, "groups of more than one"
    return groups.spread(groups.members[groups.starts[:-1]])
