"""Shared columns: next uses of the pages of one dataset over all of its jobs, where jobs are many.

Asking each of a hundred jobs about each page costs fifty times as much as asking one job. The columns
therefore keep, for each page, the jobs that use it next, and its place in the order of each of these jobs. A
place stays right while the job reads on. The ticks until the job reaches a place follow from the job's
present place and pace, which are renewed for all pages at once. Laws: when a job reads a page, its next use
of that page is noted at once. All jobs are asked about a page again before the last of its noted uses is
over. They are also asked about all pages in rotation. Memory is 58 bytes a page. Call the methods on the
event loop only.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints import job_state
from shadeproxy.hints.datasets import Dataset, Hashes, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.hints.job_state import NEXT, USES, UsesState
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.sequence import NEVER, Places
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns, JobScale, JobTable, expect_table

LEAST_JOBS = 8
"""Least number of jobs for which a dataset has shared columns. Fewer jobs are asked at each ranking, and
answer exactly.
"""

LEAST_PAGES = 10_000
"""Least number of pages for which a dataset has shared columns. With few pages, answers are soon out of date
(ADR 27).
"""

MOST_ASKED = 1 << 14
"""Greatest number of pages times jobs in one question. Answering such a question holds the event loop for 1
to 3 ms.
"""

# After this many uses of a page, the jobs are asked about it again, although more uses are noted: uses far
# ahead may not come as expected.
_SURE_USES = 5

# Bounds of the ticks from one question to the next; see ``due``.
_JOB_TICKS, _LEAST_TICKS, _MOST_TICKS, _TICKS_SHARE = 16, 512, 2048, 16
_FIRST_TICKS = 1  # Ticks from one question to the next, until every page has an answer.
# The rotation over all pages takes 1 / n of the ticks in which each job reads as many samples as there are
# pages.
_TURN_SHARE = 8
_FAST_TURN_SHARE = 32  # As ``_TURN_SHARE``, after a job or an order came or went.
_NO_JOB = 0  # The number that stands for no job.
_MOST_NUMBERS = 1 << 16
_ALL_KNOWN = 255


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
        """Match pages with the units of a space."""
        units = space.units_of(object_hashes, numbers)
        outside, samples = np.flatnonzero(units < 0), None
        if has_whole_objects(space) and space.count:
            samples = space.groups.members.take(units, mode="wrap").astype(np.int64)
        return cls(object_hashes, numbers, units, outside, samples)

    @property
    def rows(self) -> Ids:
        """The rows of the pages in shared columns; any number for pages of ``outside``."""
        return self.units if self.samples is None else self.samples


class JobAnswers(NamedTuple):
    """The answers of j jobs about n pages. scales: the scale of each job. series: the number of each job's
    order; an order keeps its number as long as its places keep their meaning. starts: the place that each job
    reads next; floors: the place below which each job has finished all places: f64[j, 1]. places: the place
    of each page's next announced read, or NEVER: i64[j, n]. draws: how many times each page is drawn, on
    average, in one read of the job: f64[j, n].
    """

    scales: list[JobScale]
    series: list[int]
    starts: Column
    floors: Column
    places: Ids
    draws: Column


Ask = Callable[[Sequence[Job], Space, PageUnits, float], JobAnswers]
"""Type of a function that asks jobs about the pages of a space, at a tick."""


class SharedColumns(UsesState):
    """The next uses of the pages of ``space`` over all of its jobs. ``ready``: True once the jobs have
    answered for every page.
    """

    def __init__(self, space: Dataset, tick: float) -> None:
        self.space = space
        self.ready = False
        self._count = space.count if space.pages is None else len(space.pages)
        # The next uses of each page: the number of a job, and the page's place in the order of that job.
        self._users = np.zeros((self._count, USES), np.uint16)
        self._places: Places = np.zeros((self._count, USES), np.int32)
        # Number of uses of each page that may pass until the jobs are asked about it again.
        self._known = np.zeros(self._count, np.uint8)
        self._rate: Column = np.zeros(self._count)
        self._flat_users, self._flat_places = self._users.reshape(-1).data, self._places.reshape(-1).data
        self._flat_known = self._known.data
        self._jobs: dict[
            tuple[int, int], tuple[Job, int]
        ] = {}  # The jobs and their numbers, by id and series.
        self.numbers: dict[int, int] = {}
        """The number of each job, by id."""
        self._next_number = _NO_JOB + 1
        # By number of a job: ``_start``, the place that it reads next, less 1; ``_over``, the least distance
        # from ``_start`` at which a place is not over; ``_step``, ticks from one place to the next;
        # ``_wait``, ticks that are added.
        self._start, self._over, self._step, self._wait = (
            np.zeros(1),
            np.zeros(1),
            np.zeros(1),
            np.full(1, np.inf),
        )
        self._short: list[int] = []  # Pages about which the jobs must be asked soon.
        self._is_short = bytearray(self._count)  # 1 for each page that is in ``_short``.
        self._is_compiled = job_state.COMPILED
        self.bind(self._users, self._places, self._known, self._is_short)
        self._at, self._fast = 0, 0  # The page whose turn is next; number of pages with a faster turn.
        self._is_hurried = False  # True if ``_fast`` was set in this rotation.
        self._tick = self._due_tick = tick

    def columns(self, pages: PageUnits, tick: float) -> JobColumns[Column]:
        """Return the next uses of pages over all jobs, as if one job had answered."""
        rows = pages.rows
        if self._is_compiled:
            passed = tick - self._tick
            distance = self.distances(rows, self._start, self._over, self._step, self._wait, passed)
        else:
            distance = self._distances(rows, tick)
        rate = self._rate.take(rows, mode="wrap")
        if len(pages.outside):
            distance[pages.outside], rate[pages.outside] = np.inf, 0.0
        return JobColumns(distance, rate, 0.0, 1.0)

    def _distances(self, rows: Ids, tick: float) -> Column:
        """Return the ticks until the next use of each row."""
        users = self._users.take(rows, axis=0, mode="wrap")
        left = self._places.take(rows, axis=0, mode="wrap") - self._start.take(users)
        over = left < self._over.take(users)
        np.maximum(left, 1.0, out=left)
        left *= self._step.take(users)
        left += self._wait.take(users)
        left[over] = np.inf
        distance: Column = np.maximum(left.min(axis=1) - (tick - self._tick), NEXT)
        return distance

    def column(self, row: int, tick: float) -> JobColumns[float]:
        """Return the result of ``columns`` for one page, as numbers."""
        start, over, step, wait = self._start.data, self._over.data, self._step.data, self._wait.data
        soonest = inf
        for place, user in zip(self._places[row].tolist(), self._users[row].tolist(), strict=True):
            if (left := place - start[user]) >= over[user]:
                soonest = min(soonest, max(left, 1.0) * step[user] + wait[user])
        return JobColumns(max(soonest - (tick - self._tick), NEXT), self._rate.item(row), 0.0, 1.0)

    def read(self, job: Job, rows: list[int], places: list[int]) -> None:
        """Note that ``job`` has read pages. ``places``: the place of each page's next read in the job's
        order, or NEVER.
        """
        number = self.numbers.get(id(job), _NO_JOB)
        if number == _NO_JOB:
            return
        users, known = self._flat_users, self._flat_known
        for row, place in zip(rows, places, strict=True):
            first, left = row * USES, known[row] - 1
            uses = users[first : first + USES].tolist()
            if number in uses or _NO_JOB in uses:
                at = first + uses.index(number if number in uses else _NO_JOB)
                if place == NEVER:
                    users[at] = _NO_JOB
                else:
                    users[at], self._flat_places[at] = number, place
            else:
                # This use was not among the kept ones, so it came before uses that were expected sooner. Ask
                # the jobs about the page again.
                left = min(left, 0)
            if 0 <= left < _ALL_KNOWN - 1:
                known[row] = left
                if not left and not self._is_short[row]:
                    self._short.append(row)
                    self._is_short[row] = True

    def ask(self, jobs: Sequence[Job], ask: Ask, tick: float) -> None:
        """Ask ``jobs`` about the pages that are due. ``jobs``: all jobs that count now."""
        if jobs and (tick >= self._due_tick or len(self._short) * len(jobs) > MOST_ASKED // 2):
            pages = self.due(len(jobs), tick)
            self.tell(pages, jobs, ask(jobs, self.space, pages, tick), tick)

    def due(self, jobs: int, tick: float) -> PageUnits:
        """Return the pages about which to ask the jobs next: pages of which too few uses are known, and pages
        whose turn has come. ``jobs``: the number of jobs. Pass the answers to ``tell``.
        """
        most = in_turn = max(MOST_ASKED // jobs, 1)
        if self.ready:
            room, passed = most - len(self._short), (tick - self._tick) / jobs
            in_turn = min(int(passed * _TURN_SHARE) + 1, max(room, most // 2))
            if self._fast > 0:
                in_turn = max(in_turn, min(int(passed * _FAST_TURN_SHARE) + 1, room))
        ticks = min(max(_JOB_TICKS * jobs, _LEAST_TICKS), _MOST_TICKS, self._count // _TICKS_SHARE)
        self._due_tick = tick + (ticks if self.ready else _FIRST_TICKS)
        short, self._short = self._short[: most - in_turn], self._short[most - in_turn :]
        for row in short:
            self._is_short[row] = False
        stop = min(self._at + in_turn, self._count)
        rows = np.append(np.array(short, np.int64), np.arange(self._at, stop))
        self._fast -= stop - self._at
        self._at = stop
        return self._pages(np.unique(rows))

    def tell(self, pages: PageUnits, jobs: Sequence[Job], answers: JobAnswers, tick: float) -> None:
        """Store the answers of the jobs about pages that were due."""
        numbers = self._number(jobs, answers, tick)
        places, rows = answers.places, pages.rows
        left = np.maximum(places - (answers.starts - 1.0), 1.0)
        left[places == NEVER] = np.inf
        table = JobTable.of(answers.scales, left, answers.draws)
        _, self._rate[rows] = expect_table(table)
        users = np.where(np.isinf(table.distance), np.uint16(_NO_JOB), numbers[:, None])
        if len(jobs) > USES:
            soonest = np.argpartition(table.distance, USES - 1, axis=0)[:USES]
            users, places = np.take_along_axis(users, soonest, 0), np.take_along_axis(places, soonest, 0)
            self._known[rows] = np.where(users.all(axis=0), _SURE_USES, _ALL_KNOWN)
        else:
            self._known[rows] = _ALL_KNOWN
        self._users[rows, : len(users)], self._users[rows, len(users) :] = users.T, _NO_JOB
        self._places[rows, : len(users)] = places.T
        if self._at == self._count:
            self._at, self.ready, self._is_hurried = 0, True, False

    def _number(self, jobs: Sequence[Job], answers: JobAnswers, tick: float) -> NDArray[np.uint16]:
        """Return the numbers of jobs, and renew their places and paces. A job that now has another order gets
        a new number, so that the places in its former order no longer count.
        """
        if self._next_number + len(jobs) > _MOST_NUMBERS:
            self._users[:], self._jobs, self._next_number = _NO_JOB, {}, _NO_JOB + 1
            # All numbers are used up: forget all uses, and begin a rotation at once to ask for them again.
            self._at, self.ready, self._is_hurried, self._due_tick = 0, False, False, tick + _FIRST_TICKS
        before, self._jobs = self._jobs, {}
        for job, series in zip(jobs, answers.series, strict=True):
            key = id(job), series
            if key not in before:
                self._next_number += 1
            self._jobs[key] = before.get(key, (job, self._next_number - 1))
        if self._jobs.keys() != before.keys() and not self._is_hurried:
            # Give each page two fast turns, because trust in a new job changes fast.
            self._fast, self._is_hurried = 2 * self._count, True
        numbers = np.array([number for _, number in self._jobs.values()], np.uint16)
        self.numbers = {id(job): number for job, number in self._jobs.values()}
        scales = np.array([(one.gap, one.silent, one.divisor) for one in answers.scales])
        self._start, self._over, self._step = np.zeros((3, self._next_number))
        self._wait = np.full(self._next_number, np.inf)
        self._start[numbers] = answers.starts[:, 0] - 1.0
        self._over[numbers] = answers.floors[:, 0] - self._start[numbers]
        self._step[numbers], self._wait[numbers] = scales[:, :2].T / scales[:, 2]
        self._tick = tick
        return numbers

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
    """Return whether the space is a dataset that has enough pages, and each of its units is one page. A unit
    is more than a page if samples of unknown length lie beside samples of known length.
    """
    if not isinstance(space, Dataset):
        return False
    pages = space.count if space.pages is None else len(space.pages)
    return pages >= LEAST_PAGES and (
        space.pages is None or space.offset is None or not space.pages.has_whole_objects
    )
