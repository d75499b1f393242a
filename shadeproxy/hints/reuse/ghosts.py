"""Ghosts: read histories of pages that are in no tier, 12 bytes each.

A set-associative table: a page's hash chooses a set of eight entries, and a new page replaces the one of the
set that was read longest ago. Laws: plain defs; memory is fixed at the start; a page is taken for another one
with a chance of eight in 2^32, which costs one wrong guess.
"""

from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.base import Column
from shadeproxy.policy.history import Histories, History

_WAYS = 8
_STEPS = 12.0  # steps of the stored mean gap in an octave: each within 3 % of the gap
_WRAP = 1 << 32
BYTES = 12
"""Bytes of one ghost: tag, last tick (modulo 2^32), gap, reads, state and prefix."""


Hashes = NDArray[np.uint64]


class Ghost(NamedTuple):
    """A page's history, and the prefix that it counts to."""

    history: History
    prefix: int


class GhostColumns(NamedTuple):
    """Ghosts as they are stored; all columns of shape (n,)."""

    tag: NDArray[np.uint32]
    last: NDArray[np.uint32]
    gap: NDArray[np.uint8]
    reads: NDArray[np.uint8]
    state: NDArray[np.uint8]
    prefix: NDArray[np.uint8]


class Ghosts:
    """Read histories by page hash, ``count`` or a little more of them."""

    def __init__(self, count: int) -> None:
        self._sets = max(-(-count // _WAYS), 1)
        size = self._sets * _WAYS
        self.tag: NDArray[np.uint32] = np.zeros(size, dtype=np.uint32)  # 0: no page
        self.last: NDArray[np.uint32] = np.zeros(size, dtype=np.uint32)
        self.gap: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        self.reads: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        self.state: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        self.prefix: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        # A memoryview gives one element in a third of the time of an ndarray.
        self._tags, self._lasts = self.tag.data, self.last.data
        self._gaps, self._reads = self.gap.data, self.reads.data
        self._states, self._prefixes = self.state.data, self.prefix.data

    def __len__(self) -> int:
        return self._sets * _WAYS

    def find(self, page: int, tick: float) -> Ghost | None:
        """Return what is known of the page with this 64-bit hash; None where it is not known, or so long ago
        that the table would not hold all pages read since: what was popular then says little now.
        """
        tag, start = self._place(page)
        try:
            at = start + self._tags[start : start + _WAYS].tolist().index(tag)
        except ValueError:
            return None
        idle = (int(tick) - self._lasts[at]) % _WRAP
        if idle > len(self):
            return None
        gap = 2.0 ** (self._gaps[at] / _STEPS) if self._reads[at] > 1 else 0.0
        return Ghost(History(tick - idle, gap, self._reads[at], self._states[at]), self._prefixes[at])

    def put(self, page: int, history: History, prefix: int) -> None:
        """Store the history of a page. ``prefix``: of the learner's."""
        tag, start = self._place(page)
        tags = self._tags[start : start + _WAYS].tolist()
        if tag in tags:
            at = start + tags.index(tag)
        elif 0 in tags:
            at = start + tags.index(0)
        else:
            now = int(history.last)
            ages = [(now - last) % _WRAP for last in self._lasts[start : start + _WAYS].tolist()]
            at = start + ages.index(max(ages))
        self._tags[at], self._lasts[at] = tag, int(history.last) % _WRAP
        self._gaps[at] = min(round(log2(max(history.gap, 1.0)) * _STEPS), 255)
        self._reads[at], self._states[at], self._prefixes[at] = history.reads, history.state, prefix

    def find_many(self, pages: Hashes, tick: float) -> Histories:
        """Return what is known of pages, as ``find`` does; no reads where nothing is."""
        tags, ways = self._places(pages)
        same = self.tag[ways] == tags[:, None]
        at = np.take_along_axis(ways, same.argmax(axis=1)[:, None], axis=1)[:, 0]
        idle = np.uint32(int(tick) % _WRAP) - self.last[at]
        known = same.any(axis=1) & (idle <= len(self))
        reads = np.where(known, self.reads[at], 0).astype(np.intp)
        gaps: Column = np.where(reads > 1, 2.0 ** (self.gap[at] / _STEPS), 0.0)
        lasts: Column = tick - idle.astype(np.float64)
        return Histories(lasts, gaps, reads, self.state[at].astype(np.intp))

    def put_many(self, pages: Hashes, histories: Histories, prefixes: NDArray[np.integer]) -> None:
        """Store the histories of different pages, as ``put`` does in the order of their last reads."""
        tags, ways = self._places(pages)
        lasts = (histories.last.astype(np.int64) % _WRAP).astype(np.uint32)
        gaps = np.minimum(np.rint(np.log2(np.maximum(histories.gap, 1.0)) * _STEPS), 255)
        left = np.argsort(histories.last, kind="stable")
        while len(left):  # one page of each set at a time
            _, firsts = np.unique(ways[left, 0], return_index=True)
            one = left[firsts]
            there = self.tag[ways[one]]
            # A page that is there keeps its place, then come free ones, then those read longest ago.
            order = (lasts[one, None] - self.last[ways[one]]).astype(np.int64)
            order[there == 0] = _WRAP
            order[there == tags[one, None]] = _WRAP + 1
            at = ways[one, order.argmax(axis=1)]
            self.tag[at], self.last[at], self.gap[at] = tags[one], lasts[one], gaps[one]
            self.reads[at], self.state[at] = histories.reads[one], histories.state[one]
            self.prefix[at] = prefixes[one]
            left = np.delete(left, firsts)

    def columns(self) -> GhostColumns:
        """Return all places, not copied; those with tag 0 are free."""
        return GhostColumns(self.tag, self.last, self.gap, self.reads, self.state, self.prefix)

    def copied(self, start: int, stop: int) -> GhostColumns:
        """Return a copy of the places ``[start, stop)``."""
        part = slice(start, stop)
        bytewise = (self.gap[part], self.reads[part], self.state[part], self.prefix[part])
        return GhostColumns(self.tag[part].copy(), self.last[part].copy(), *map(np.copy, bytewise))

    def clear(self) -> None:
        """Forget all."""
        for column in self.columns():
            column[:] = 0

    def _place(self, page: int) -> tuple[int, int]:
        return (page & 0xFFFFFFFF) or 1, (page >> 32) * self._sets // _WRAP * _WAYS

    def _places(self, pages: Hashes) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
        """Return the tag of each page, and the places of its set: intp[n, 8]."""
        tags = np.maximum((pages & np.uint64(_WRAP - 1)).astype(np.uint32), 1)
        starts = ((pages >> np.uint64(32)) * np.uint64(self._sets) >> np.uint64(32)).astype(np.intp) * _WAYS
        return tags, starts[:, None] + np.arange(_WAYS)
