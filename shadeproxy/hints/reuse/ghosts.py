"""Ghosts: read histories of pages that are in no tier, 12 bytes each.

A set-associative table: a page's hash chooses a set of eight entries, and a new page replaces the entry of
the set that was read longest ago. Laws: no coroutines; memory is fixed at the start. The chance that a page
is mistaken for another is eight in 2^32, and a mistake costs one wrong guess.
"""

from collections.abc import Iterable
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy import kernels
from shadeproxy.policy.base import Column
from shadeproxy.policy.history import History, read_again, read_again_many

_WAYS = 8
_STEPS = 12.0  # The mean gap is stored in this many steps an octave, to within 3 %.
_GAPS: list[float] = [2.0 ** (stored / _STEPS) for stored in range(256)]
_GAP_COLUMN: Column = np.array(_GAPS)
_WRAP = 1 << 32
_TAG = _WRAP - 1
_HALF = np.uint64(32)
# ``_places_of`` ranks the entries of a set and takes the highest: the page's own entry, else a free one, else
# the oldest. The rank of any other entry is its age, which is below 2^32.
_FREE, _OWN = 1 << 33, 1 << 34
WORTH_TOGETHER = 12
"""Least number of pages whose ghosts are handled together, if the kernels are not compiled. Handling pages
together takes some 30 numpy calls, and each call costs as much as half a page by itself.
"""

Hashes = NDArray[np.uint64]
Index = NDArray[np.intp]

BYTES = 12
"""Bytes of one ghost: hash of the page, last tick (modulo 2^32), gap, reads, state and prefix."""


class Ghost(NamedTuple):
    """A page's read history, and the prefix to which it counts."""

    history: History
    prefix: int


class GhostColumns(NamedTuple):
    """Read histories of n pages; columns of shape (n,). ``reads``: 0 for a page without a history."""

    last: Column
    gap: Column
    reads: Index
    state: Index
    prefix: Index

    def at(self, places: Index) -> "GhostColumns":
        """Return the histories of the pages at ``places``."""
        last, gap, reads = self.last[places], self.gap[places], self.reads[places]
        return GhostColumns(last, gap, reads, self.state[places], self.prefix[places])


class StoredGhosts(NamedTuple):
    """Ghosts as they are stored; all columns of shape (n,). ``tag``: 0 for a free place."""

    tag: NDArray[np.uint32]
    last: NDArray[np.uint32]
    gap: NDArray[np.uint8]
    reads: NDArray[np.uint8]
    state: NDArray[np.uint8]
    prefix: NDArray[np.uint8]


class Ghosts:
    """A table with room for at least ``count`` read histories, by page hash."""

    def __init__(self, count: int) -> None:
        self._sets = max(-(-count // _WAYS), 1)
        self._size = size = self._sets * _WAYS
        self.tag: NDArray[np.uint32] = np.zeros(size, dtype=np.uint32)  # 0: no page.
        self.last: NDArray[np.uint32] = np.zeros(size, dtype=np.uint32)
        self.gap: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        self.reads: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        self.state: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        self.prefix: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        # A memoryview gives one element in a third of the time of an ndarray.
        self._tags, self._lasts = self.tag.data, self.last.data
        self._gaps, self._reads = self.gap.data, self.reads.data
        self._states, self._prefixes = self.state.data, self.prefix.data
        self.kernels = kernels.GhostKernels(*self.columns()) if kernels.COMPILED else None
        """The compiled code for many pages; None if the kernels are not compiled."""

    def __len__(self) -> int:
        return self._size

    def find(self, page: int, tick: float) -> Ghost | None:
        """Return the history of the page with this 64-bit hash, or None.

        Return None also if the page was last read more ticks ago than the table has entries, because old
        popularity says little about now.
        """
        tag, start = page & _TAG or 1, (page >> 32) * self._sets // _WRAP * _WAYS
        tags = self._tags[start : start + _WAYS].tolist()
        if tag not in tags:
            return None
        at = start + tags.index(tag)
        idle = (int(tick) - self._lasts[at]) % _WRAP
        if idle > self._size:
            return None
        gap = _GAPS[self._gaps[at]] if self._reads[at] > 1 else 0.0
        return Ghost(History(tick - idle, gap, self._reads[at], self._states[at]), self._prefixes[at])

    def read_many(self, reads: list[tuple[int, int, float]], prefix_of: Index) -> None:
        """Add reads, oldest first, to the histories of their pages. A page without a history gets one.
        ``reads``: page, group and tick of each read. ``prefix_of``: the prefix of each group.
        """
        if self.kernels is not None:
            self.kernels.read_many(reads, prefix_of)
        elif len(reads) < WORTH_TOGETHER or not self._read_together(reads, prefix_of):
            for page, group, tick in reads:
                self._read(page, tick, prefix_of.item(group))

    def _read(self, page: int, tick: float, prefix: int) -> None:
        known = self.find(page, tick)
        if known is not None:
            self.put(page, read_again(known.history, tick), prefix)
            return
        at, now = self._place_of(page, int(tick)), int(tick) % _WRAP
        self._tags[at], self._lasts[at], self._prefixes[at] = page & _TAG or 1, now, prefix
        self._gaps[at], self._reads[at], self._states[at] = 0, 1, 0

    def _read_together(self, reads: list[tuple[int, int, float]], prefix_of: Index) -> bool:
        """Add reads, all with the same numpy calls. Return False, and add none, if two of the pages share a
        set: the result would then differ from adding the reads one by one.
        """
        hashes, groups, times = zip(*reads, strict=True)
        pages, ticks = np.array(hashes, np.uint64), np.array(times)
        sets, tags, now = self._sets_of(pages), _tags_of(pages), _wrapped(ticks)
        if len(set(sets.tolist())) < len(pages):
            return False
        at = self._places_of(sets, tags, now)
        idle = now - self.last[at]
        known = (self.tag[at] == tags) & (idle <= len(self))
        before = np.where(known, self.reads[at], 1).astype(np.intp)
        gaps = np.where(before > 1, _GAP_COLUMN[self.gap[at]], 0.0)
        more, gaps, states = read_again_many(before, gaps, idle.astype(np.float64))
        self.tag[at], self.last[at] = tags, now
        self.gap[at] = np.where(known, _steps(gaps), 0)
        self.reads[at], self.state[at] = np.where(known, more, 1), np.where(known, states, 0)
        self.prefix[at] = prefix_of[np.array(groups)]
        return True

    def put(self, page: int, history: History, prefix: int) -> None:
        """Store the history of a page. ``prefix``: its prefix, by ``ReuseLearner.prefix``."""
        now = int(history.last)
        at = self._place_of(page, now)
        self._tags[at], self._lasts[at] = page & _TAG or 1, now % _WRAP
        self._gaps[at] = min(round(log2(max(history.gap, 1.0)) * _STEPS), 255)
        self._reads[at], self._states[at], self._prefixes[at] = history.reads, history.state, prefix

    def touch(self, pages: Iterable[int], tick: float) -> None:
        """Date the latest reads of pages to ``tick``. No read is added, and no page gets a history."""
        now = int(tick) % _WRAP
        for page in pages:
            tag, start = page & _TAG or 1, (page >> 32) * self._sets // _WRAP * _WAYS
            tags = self._tags[start : start + _WAYS].tolist()
            if tag in tags:
                self._lasts[start + tags.index(tag)] = now

    def find_many(self, pages: Hashes, tick: float) -> GhostColumns:
        """Return the histories of many pages; see ``find``."""
        if self.kernels is not None:
            return GhostColumns(*self.kernels.find_many(pages, tick))
        sets, tags = self._sets_of(pages), _tags_of(pages)
        own = self.tag.reshape(-1, _WAYS)[sets] == tags[:, None]
        at = sets * _WAYS + own.argmax(axis=1)
        idle = _wrapped(tick) - self.last[at]
        known = (self.tag[at] == tags) & (idle <= len(self))
        reads = np.where(known, self.reads[at], 0)
        return GhostColumns(
            np.where(known, tick - idle.astype(np.float64), tick),
            np.where(reads > 1, _GAP_COLUMN[self.gap[at]], 0.0),
            reads.astype(np.intp),
            np.where(known, self.state[at], 0).astype(np.intp),
            np.where(known, self.prefix[at], 0).astype(np.intp),
        )

    def put_many(self, pages: Hashes, ghosts: GhostColumns) -> None:
        """Store the histories of different pages, in this order; see ``put``."""
        if self.kernels is not None:
            self.kernels.put_many(pages, *ghosts)
            return
        left, sets = np.arange(len(pages)), self._sets_of(pages)
        while len(left):
            # Pages that share a set are stored one after another.
            _, firsts = np.unique(sets[left], return_index=True)
            apart = left[firsts]
            self._put_apart(pages[apart], ghosts.at(apart))
            left = np.delete(left, firsts)

    def _put_apart(self, pages: Hashes, ghosts: GhostColumns) -> None:
        """Store histories of pages of which no two share a set."""
        sets, tags = self._sets_of(pages), _tags_of(pages)
        last = _wrapped(ghosts.last)
        at = self._places_of(sets, tags, last)
        self.tag[at], self.last[at] = tags, last
        self.gap[at] = _steps(ghosts.gap)
        self.reads[at], self.state[at], self.prefix[at] = ghosts.reads, ghosts.state, ghosts.prefix

    def put_all(self, pages: Hashes, ghosts: GhostColumns) -> None:
        """Store the histories of different pages in the order of their last reads; see ``put``."""
        order = np.argsort(ghosts.last, kind="stable")
        self.put_many(pages[order], ghosts.at(order))

    def columns(self) -> StoredGhosts:
        """Return all places, without copying them."""
        return StoredGhosts(self.tag, self.last, self.gap, self.reads, self.state, self.prefix)

    def copied(self, start: int, stop: int) -> StoredGhosts:
        """Return a copy of the places ``[start, stop)``."""
        part = slice(start, stop)
        bytewise = (self.gap[part], self.reads[part], self.state[part], self.prefix[part])
        return StoredGhosts(self.tag[part].copy(), self.last[part].copy(), *map(np.copy, bytewise))

    def clear(self) -> None:
        """Forget all histories."""
        for column in self.columns():
            column[:] = 0

    def _sets_of(self, pages: Hashes) -> Index:
        return ((pages >> _HALF) * np.uint64(self._sets) >> _HALF).astype(np.intp)

    def _places_of(self, sets: Index, tags: NDArray[np.uint32], last: NDArray[np.uint32]) -> Index:
        """Return the entry to write for each page, chosen as ``_place_of`` does."""
        found = self.tag.reshape(-1, _WAYS)[sets]
        rank = (last[:, None] - self.last.reshape(-1, _WAYS)[sets]).astype(np.int64)
        rank[found == 0] = _FREE
        rank[found == tags[:, None]] = _OWN
        places: Index = sets * _WAYS + rank.argmax(axis=1)
        return places

    def _place_of(self, page: int, now: int) -> int:
        """Return the entry to write at the tick ``now``: the page's own, else a free one, else the oldest."""
        tag, start = page & _TAG or 1, (page >> 32) * self._sets // _WRAP * _WAYS
        tags = self._tags[start : start + _WAYS].tolist()
        if tag in tags:
            return start + tags.index(tag)
        if 0 in tags:
            return start + tags.index(0)
        lasts = self._lasts[start : start + _WAYS].tolist()
        # Ticks wrap at 2^32. So a stored tick above ``now`` is from before the wrap, and is the oldest.
        now %= _WRAP
        before = [last for last in lasts if last > now]
        return start + lasts.index(min(before or lasts))


def _tags_of(pages: Hashes) -> NDArray[np.uint32]:
    return np.maximum(pages.astype(np.uint32), 1)


def _steps(gaps: Column) -> Column:
    """Return mean gaps as they are stored."""
    return np.minimum(np.rint(np.log2(np.maximum(gaps, 1.0)) * _STEPS), 255)


def _wrapped(ticks: Column | float) -> NDArray[np.uint32]:
    return np.asarray(ticks).astype(np.int64).astype(np.uint32)
