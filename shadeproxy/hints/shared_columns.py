"""Shared columns: next uses of the pages of one dataset over all of its jobs, where jobs are many.

Asking each of a hundred jobs about each page costs fifty times as much as asking one job. The answers of all
jobs are therefore kept by page, with the tick at which the page is read next: as jobs read on, that tick
stays about the same. Laws: the stored answers about a page come from all jobs, as of one tick. A page is
asked about again after it was read, together with other pages that are due; a page that is not read is asked
about when the rotation over all pages reaches it. Memory is 24 bytes a page. Event loop only.
"""

from collections.abc import Callable, Sequence
from operator import is_
from typing import NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.datasets import Bits, Dataset, Hashes, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.hints.jobs import Job
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns, JobTable, expect_table

LEAST_JOBS = 8
"""Jobs on a dataset for which columns are shared: fewer are asked each time, and exactly."""

LEAST_PAGES = 10_000
"""Pages of a dataset for which columns are shared: with few pages, answers are out of date soon (ADR 27)."""

MOST_ASKED = 1 << 14
"""Number of pages times jobs that are asked about in one turn of the loop, which takes 1 to 3 ms."""

MOST_TOLD = 1 << 16
"""Number of pages times jobs whose answers are stored together, in 1 ms. While many reads wait, up to twice
as many.
"""

_LEAST_TOGETHER, _MOST_TOGETHER, _TOGETHER_SHARE = 64, 256, 16
_MOST_DUE = 1 << 15  # pages times jobs
_FIRST_TICKS = 16  # ticks from one question to the next, until every page has an answer
_MOST_WAITING = 1024  # pages that were read; further ones wait until it is their turn
_TURN_SHARE = 32  # share of an epoch of all jobs, within which each page has its turn
_NEAR_READS = 128  # number of reads by which a job may be ahead of its place in its order
_NEXT = 1.0  # ticks until the read of a page that should have been read by now


class PageUnits(NamedTuple):
    """Pages about which jobs are asked, matched with one dataset or growing set (``space``).

    ``units``: the unit of each page (``pages.py``), of shape (k,); -1 for a page that is not of this space.
    ``outside``: the indices in ``units`` of those pages. ``samples``: the sample of each page, if each sample
    is an object of its own (any number for pages of ``outside``); otherwise None. ``object_hashes`` and
    ``numbers`` have shape (k,) too, but are empty where ``samples`` alone is needed.
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
        """The rows of the pages in shared columns; any number for pages of ``outside``."""
        return self.units if self.samples is None else self.samples


Ask = Callable[[Sequence[Job], Space, PageUnits, float], JobTable]
"""Type of a function that returns the reads of a space's pages that are expected from jobs, at a tick."""


class _AskedPages:
    """Pages that all ``left`` jobs are asked about, a few jobs in each turn of the loop, from ``tick`` on."""

    def __init__(self, pages: PageUnits, left: list[Job], tick: float) -> None:
        self.pages = pages
        self.tick = tick
        self._jobs = left
        self._told: list[JobTable] = []
        self._asked = 0

    def is_of(self, jobs: Sequence[Job]) -> bool:
        """Return whether these jobs are asked, and no others."""
        return len(jobs) == len(self._jobs) and all(map(is_, jobs, self._jobs))

    def ask_on(self, space: Space, ask: Ask, tick: float) -> bool:
        """Ask the next jobs. Return whether all were asked."""
        stop = self._asked + max(MOST_ASKED // max(len(self.pages.rows), 1), 1)
        table = ask(self._jobs[self._asked : stop], space, self.pages, tick)
        self._told.append(table._replace(distance=table.distance + (tick - self.tick)))
        self._asked = stop
        return stop >= len(self._jobs)

    def answer(self) -> JobTable:
        """Return the answers of all jobs, as of the first turn."""
        return JobTable(*(np.concatenate(parts) for parts in zip(*self._told, strict=True)))


class SharedColumns:
    """The next uses of the pages of ``space`` over all of its jobs. ``ready``: True once the jobs have
    answered for every page.
    """

    def __init__(self, space: Dataset, tick: float) -> None:
        self.space = space
        self.ready = self._at_end = False
        self._count = space.count if space.pages is None else len(space.pages)
        self._soonest: Column = np.full(self._count, np.inf)
        self._rate: Column = np.zeros(self._count)
        self._second: Column = np.full(self._count, np.inf)  # the soonest use by any other job
        self._read: list[int] = []
        self._at = 0
        self._near_ticks = 0.0
        self._due_tick = tick
        self._question: _AskedPages | None = None

    def columns(self, pages: PageUnits, tick: float) -> JobColumns[Column]:
        """Return the next uses of pages over all jobs, as if one job had answered."""
        rows = pages.rows
        distance = np.maximum(self._soonest.take(rows, mode="wrap") - tick, _NEXT)
        rate = self._rate.take(rows, mode="wrap")
        if len(pages.outside):
            distance[pages.outside], rate[pages.outside] = np.inf, 0.0
        return JobColumns(distance, rate, 0.0, 1.0)

    def column(self, row: int, tick: float) -> JobColumns[float]:
        """Return the result of ``columns`` for one page, as numbers."""
        return JobColumns(max(self._soonest.item(row) - tick, _NEXT), self._rate.item(row), 0.0, 1.0)

    def read(self, object_hashes: Hashes, numbers: NDArray[np.uint32], tick: float, explained: Bits) -> None:
        """Note that pages were read. ``explained``: which reads were announced. The announced use of such a
        page is over. Until the jobs are asked about the page again, its next use is that of another job.
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

    def ask(self, jobs: Sequence[Job], ask: Ask, tick: float) -> None:
        """Ask ``jobs`` about pages that are due: as many jobs as one turn of the loop has time for. ``jobs``:
        all jobs that count now.
        """
        if not jobs:
            return
        question = self._question
        if question is not None and not question.is_of(jobs):
            question = self._question = _AskedPages(question.pages, list(jobs), tick)
        if question is None and tick >= self._due_tick:
            question = self._question = _AskedPages(self.due(len(jobs), tick), list(jobs), tick)
        if question is not None and question.ask_on(self.space, ask, tick):
            self._question = None
            self.tell(question.pages, question.answer(), question.tick)

    def due(self, jobs: int, tick: float) -> PageUnits:
        """Return the pages about which to ask the jobs next: those that were read, and those whose turn it
        is. ``jobs``: the number of jobs. Pass the answers to ``tell``.
        """
        together = min(self._count // _TOGETHER_SHARE, _MOST_TOGETHER, _MOST_DUE // jobs)
        together = max(together, _LEAST_TOGETHER)
        # Pages that were read can wait here until every page has an answer: until then each decision asks all
        # jobs.
        read, in_turn = 0, MOST_TOLD // jobs
        if self._at_end:
            read, in_turn = 2 * together, -(-together * _TURN_SHARE // jobs)
        self._due_tick = tick + (together if self._at_end else _FIRST_TICKS)
        self._near_ticks = float(_NEAR_READS * jobs)
        stop = min(self._at + max(in_turn, 1), self._count)
        rows = np.append(np.array(self._read[:read], np.int64), np.arange(self._at, stop))
        self._read, self._at = self._read[read:][:_MOST_WAITING], stop
        if stop == self._count:
            self._at, self._at_end = 0, True
        return self._pages(np.unique(rows))

    def tell(self, pages: PageUnits, jobs: JobTable, tick: float) -> None:
        """Store the answers of the jobs about pages that were due."""
        soonest, self._rate[pages.rows], second = expect_table(jobs)
        self._soonest[pages.rows], self._second[pages.rows] = soonest + tick, second + tick
        self.ready = self._at_end

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
    """Return whether the space is a dataset with enough pages, and each of its units is one page. It is not
    if samples of unknown length lie beside others.
    """
    if not isinstance(space, Dataset):
        return False
    pages = space.count if space.pages is None else len(space.pages)
    return pages >= LEAST_PAGES and (
        space.pages is None or space.offset is None or not space.pages.has_whole_objects
    )
