"""Estimates when a page is dead, by the reuse intervals that reads of its group (a prefix) have shown.

Pure state on ticks (demand reads of the proxy); no clock. A page counts as dead after two reuse intervals
without a use (design 6.5). The interval of a group is:

- with no reuse seen, its active span: a dataset that was read once drains after twice its own span of
  other traffic, and does not drain while it is still being read;
- with reuse seen, the *length-biased* mean ``sum(d^2) / sum(d)`` of recent distances, that is the interval
  that holds a page at a random moment. The plain mean fails twice: quick repeats (ranges of one page)
  hide the epoch behind them, and early in an epoch only short distances have been seen, so that live
  pages would be called dead. For the second reason the span also fades out over one whole interval.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadeproxy.policy.base import Column

_INTERVALS_TO_LIVE = 2.0
_MEMORY_INTERVALS = 2.0
_FIRST_SIZE = 16


class ReuseEstimator:
    """Columns by group id (small non-negative integers given by the caller); grows as ids appear.

    Meant for batches: one call for a few hundred reads costs little more than a call for one.
    """

    def __init__(self) -> None:
        # Rows: first read, last read, first reuse, span at first reuse, sum d, sum d^2, last decay.
        self._columns: NDArray[np.float64] = np.full((7, 0), np.nan)
        self._limit: Column = np.empty(0)

    def observe(self, groups: ArrayLike, ticks: ArrayLike, distances: ArrayLike) -> None:
        """Note demand reads, oldest first: arrays of one shape (n,).

        distances: ticks since the page's previous read; nan where there was none or it is not known.
        """
        group = np.asarray(groups, dtype=np.intp)
        if group.size == 0:
            return
        self._grow(int(group.max()) + 1)
        tick = np.asarray(ticks, dtype=np.float64)
        first, last, *_ = self._columns
        np.fmin.at(first, group, tick)
        np.fmax.at(last, group, tick)
        distance = np.asarray(distances, dtype=np.float64)
        reused = ~np.isnan(distance)
        touched = np.unique(group)
        if reused.any():
            self._learn(group[reused], distance[reused])
        self._limit[touched] = _INTERVALS_TO_LIVE * self._interval(touched)

    def idle_after(self, groups: ArrayLike) -> Column:
        """Return the ticks without a use after which a page of the group is dead, f64 like ``groups``.

        inf for a group that was never observed. One gather: cheap enough for every choice of a victim.
        """
        group = np.asarray(groups, dtype=np.intp)
        try:
            return self._limit.take(group)
        except IndexError:
            self._grow(int(group.max()) + 1)
            return self._limit.take(group)

    def _interval(self, touched: NDArray[np.intp]) -> Column:
        first, last, reused, prior, total, squares, _ = self._columns[:, touched]
        unseen = np.isnan(reused) | (total <= 0)
        seen = np.clip((last - reused) / np.where(unseen, 1, prior), 0, 1)
        learnt = (1 - seen) * prior + seen * squares / np.where(unseen, 1, total)
        interval: Column = np.where(unseen, last - first + 1, learnt)
        return interval

    def _learn(self, group: NDArray[np.intp], distance: Column) -> None:
        first, last, reused, prior, total, squares, decayed = self._columns
        touched = np.unique(group)
        new = touched[np.isnan(reused[touched])]
        reused[new] = decayed[new] = last[new]
        prior[new] = last[new] - first[new] + 1
        total[new] = squares[new] = 0
        # The sums decay at the pace of the group itself, so that a changed working set is noticed.
        elapsed = last[touched] - decayed[touched]
        keep = np.exp(-elapsed / (_MEMORY_INTERVALS * self._interval(touched)))
        total[touched] *= keep
        squares[touched] *= keep
        decayed[touched] = last[touched]
        np.add.at(total, group, distance)
        np.add.at(squares, group, distance**2)

    def _grow(self, size: int) -> None:
        missing = size - len(self._limit)
        if missing > 0:
            room = max(missing, len(self._limit), _FIRST_SIZE)
            self._columns = np.pad(self._columns, ((0, 0), (0, room)), constant_values=np.nan)
            self._limit = np.pad(self._limit, (0, room), constant_values=np.inf)
