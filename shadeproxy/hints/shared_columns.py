"""Shared columns: next uses of the pages of one dataset over all of its jobs, where jobs are many.

To ask each of a hundred jobs about each page costs fifty times what one job does. So what all of them say is
kept by page, with the tick at which the page is read next: as jobs read on, that tick stays about the same.
Laws: what is kept was told by ``expect`` at one time; a page that was read is told again with the next ones
that are due, and every other page in its turn. Memory is 24 bytes a page. Event loop only.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.datasets import Bits, Dataset, Hashes, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns, expect, second_use

LEAST_JOBS = 8
"""Jobs on a dataset for which columns are shared: fewer are asked each time, and exactly."""

LEAST_PAGES = 10_000
"""Pages of a dataset for which columns are shared: with few of them, what was told ages soon (ADR 27)."""

_LEAST_TOGETHER, _MOST_TOGETHER, _TOGETHER_SHARE = 64, 256, 16
_MOST_ASKED = 1 << 15  # jobs x pages at a time: 6 ms
_FIRST_ASKED = 8  # times as many at first: they lie in a row
_TURN_SHARE = 32  # of an epoch of all jobs, in which each page has its turn
_NEAR_READS = 128  # by which a job may be ahead of its place in its order
_NEXT = 1.0  # ticks until a page that should have been read by now


class PageUnits(NamedTuple):
    """Pages that are asked for, of one space; all of shape (k,). ``units``: -1 outside, see ``pages.py``.

    ``outside``: places of the pages of other spaces. ``samples``: of each page, any outside, where samples
    are objects of their own; else None.
    """

    object_hashes: Hashes
    numbers: NDArray[np.uint32]
    units: Ids
    outside: Ids
    samples: Ids | None

    @classmethod
    def of(cls, space: Space, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Self:
        """Find pages in a space."""
        units = space.units_of(object_hashes, numbers)
        outside, samples = np.flatnonzero(units < 0), None
        if has_whole_objects(space) and space.count:
            samples = space.groups.members.take(units, mode="wrap").astype(np.int64)
        return cls(object_hashes, numbers, units, outside, samples)

    @property
    def rows(self) -> Ids:
        """The rows of the pages in shared columns, any outside."""
        return self.units if self.samples is None else self.samples


class SharedColumns:
    """Shared columns of ``space``. ``ready``: every page was told once. ``due_tick``: when pages are due."""

    def __init__(self, space: Dataset, tick: float) -> None:
        self.space = space
        self.ready = False
        self._count = space.count if space.pages is None else len(space.pages)
        self._soonest: Column = np.full(self._count, np.inf)
        self._rate: Column = np.zeros(self._count)
        self._second: Column = np.full(self._count, np.inf)  # the soonest use by any other job
        self._read: list[int] = []
        self._at = 0
        self._near_ticks = 0.0
        self.due_tick = tick

    def columns(self, pages: PageUnits, tick: float) -> JobColumns[Column]:
        """Return the next uses of pages in the form of one job's."""
        rows = pages.rows
        distance = np.maximum(self._soonest.take(rows, mode="wrap") - tick, _NEXT)
        rate = self._rate.take(rows, mode="wrap")
        if len(pages.outside):
            distance[pages.outside], rate[pages.outside] = np.inf, 0.0
        return JobColumns(distance, rate, 0.0, 1.0)

    def column(self, row: int, tick: float) -> JobColumns[float]:
        """Return what ``columns`` does, of one page."""
        return JobColumns(max(self._soonest.item(row) - tick, _NEXT), self._rate.item(row), 0.0, 1.0)

    def read(self, object_hashes: Hashes, numbers: NDArray[np.uint32], tick: float, explained: Bits) -> None:
        """Note that pages were read. ``explained``: as their order had it, so that the next use is another
        job's, until the pages are told again.
        """
        if has_whole_objects(self.space) and len(object_hashes) == 1:
            row = self.space.groups.find_one(object_hashes.item())
            if row >= 0:
                self._read.append(row)
                if explained[0] and self._soonest[row] < tick + self._near_ticks:
                    self._soonest[row] = self._second[row]
            return
        read = PageUnits.of(self.space, object_hashes, numbers)
        rows = np.delete(read.rows, read.outside)
        self._read += rows.tolist()
        rows = rows[np.delete(explained, read.outside)]
        rows = rows[self._soonest[rows] < tick + self._near_ticks]
        self._soonest[rows] = self._second[rows]

    def due(self, jobs: int, tick: float) -> PageUnits:
        """Return the pages of which so many jobs are to tell: those that were read, and the next in turn.

        ``tell`` them then.
        """
        together = min(self._count // _TOGETHER_SHARE, _MOST_TOGETHER, _MOST_ASKED // max(jobs, 1))
        together = max(together, _LEAST_TOGETHER)
        in_turn = -(-together * _TURN_SHARE // max(jobs, 1)) if self.ready else _FIRST_ASKED * together
        self.due_tick = tick + (together if self.ready else _LEAST_TOGETHER)
        self._near_ticks = float(_NEAR_READS * jobs)
        stop = min(self._at + in_turn, self._count)
        rows = np.append(np.array(self._read, np.int64), np.arange(self._at, stop))
        self._read, self._at = [], stop
        if stop == self._count:
            self._at, self.ready = 0, True
        return self._pages(np.unique(rows))

    def tell(self, pages: PageUnits, jobs: Sequence[JobColumns[Column]], tick: float) -> None:
        """Take in what the jobs say of pages that were due."""
        rows, (soonest, rate) = pages.rows, expect(jobs, len(pages.rows))
        self._soonest[rows], self._rate[rows] = soonest + tick, rate
        self._second[rows] = second_use(jobs, len(rows)) + tick

    def _pages(self, rows: Ids) -> PageUnits:
        none = np.empty(0, dtype=np.int64)
        if self.space.pages is None:
            hashes, numbers = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint32)
            return PageUnits(hashes, numbers, rows, none, rows)
        groups, numbers = self.space.pages.pages_of(rows)
        return PageUnits(self.space.groups.hashes[groups], numbers, rows, none, None)


def has_whole_objects(space: Space) -> TypeGuard[Dataset]:
    """Return whether each sample is an object of its own."""
    return isinstance(space, Dataset) and space.pages is None


def can_share(space: Space) -> TypeGuard[Dataset]:
    """Return whether the space is a big dataset, and a unit of it one page: not of samples without a length
    beside others.
    """
    if not isinstance(space, Dataset):
        return False
    pages = space.count if space.pages is None else len(space.pages)
    return pages >= LEAST_PAGES and (
        space.pages is None or space.offset is None or not space.pages.has_whole_objects
    )
