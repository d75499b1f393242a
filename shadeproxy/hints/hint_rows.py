"""Hint rows: a table with the hints of many jobs, so that ranking asks all of them with one look into it.

The samples of these jobs are whole objects. A table has at most one job of each dataset in the DatasetIndex.
A job's row is computed again after a few more reads of the job, or after the ticks that these reads usually
take, or when the job has another order. With a hundred jobs, computing all rows for each ranking would cost
more than the ranking. Call it on the event loop only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shadeproxy.hints import job_state
from shadeproxy.hints.datasets import Dataset, Ids
from shadeproxy.hints.job_state import LEAST_WEIGHT
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.activity import JobActivity
from shadeproxy.hints.order.sequence import NEVER
from shadeproxy.hints.order.tracker import OrderTracker
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns, JobScale

# A row is computed again after this many reads of its job, because ``JobActivity`` adds reads to its averages
# in groups of this size.
_RENEWED_READS = 8
_SILENCE_SHARE = 64  # The row of a silent job is computed again when the silence has grown by 1 / n.


class JobHints(NamedTuple):
    """The hints of one job on whole objects. start: the job's place in its order, less 1. most: the greatest
    weight that a sample may have. believed: how many times, on average, the job draws a sample of weight 1 in
    one read, multiplied by the trust in its scores. factor: a score times ``factor`` is a weight. next_at:
    the place of each sample's next announced read. mine: the samples whose reads this proxy answers.
    """

    scale: JobScale
    start: float
    most: float
    believed: float
    factor: float
    next_at: memoryview | None
    scores: memoryview | None
    mine: memoryview | None


_NO_HINTS = JobHints(JobScale(1.0, 0.0, 1.0, 0.0, 0.0, 0.0), 0.0, 0.0, 0.0, 0.0, None, None, None)
Values = list[memoryview | None]


class HintRows:
    """The hints of ``jobs``. This list has a job and its dataset for each owner (the position of a dataset in
    a ``DatasetIndex``), or None if the owner has no job here. Owner -1 means that an object is in no indexed
    dataset. ``hints`` returns the hints of a job at a tick. ``trackers``: the order trackers by job.
    ``activities`` has an entry for each job.
    """

    def __init__(
        self,
        jobs: Sequence[tuple[Job, Dataset] | None],
        hints: Callable[[Job, Dataset, float], JobHints],
        trackers: Mapping[str, OrderTracker],
        activities: Mapping[str, JobActivity],
    ) -> None:
        self.jobs = jobs
        self._hints = hints
        self._trackers = trackers
        self._owners = [
            (owner, *one, activities[one[0].name]) for owner, one in enumerate(jobs) if one is not None
        ]
        count = len(jobs) + 1
        self._rows = np.zeros((count, 10))
        self._rows[:] = _row(_NO_HINTS)
        self._compiled = job_state.HintColumns(self._rows) if job_state.COMPILED else None
        self._next_at: Values = [None] * count
        self._scores: Values = [None] * count
        self._mine: Values = [None] * count
        self._due = [-np.inf] * count
        # The job's number of reads at which each row is due. Time alone is not enough, because a slow or
        # silent job may suddenly read fast.
        self._due_reads = [0] * count
        self._orders: list[object] = [None] * count  # The column of places from which each row was computed.

    def columns(self, owners: Ids, samples: Ids, tick: float) -> JobColumns[Column]:
        """Return for each sample when its owner's job is expected to read it (by the order), and how often
        (by the scores). One look into the table answers for many jobs. Samples are whole objects.
        """
        self._renew(tick)
        if self._compiled is not None:
            return JobColumns(*self._compiled.columns(owners, samples))
        rows = self._rows.take(owners, axis=0, mode="wrap").T
        gap, silent, divisor, rate, horizon, doubt, start, most, believed, factor = rows
        pages = list(zip(owners.tolist(), samples.tolist(), strict=True))
        places = _gathered(self._next_at, pages, NEVER)
        left = np.where(places == NEVER, np.inf, np.maximum(places - start, 1.0))
        weights = weights_of(_gathered(self._scores, pages, np.nan), factor)
        draws = np.minimum(weights * _gathered(self._mine, pages, 1.0), most) * believed
        return JobColumns((left * gap + silent) / divisor, draws * rate, horizon, doubt)

    def _renew(self, tick: float) -> None:
        """Compute the rows that are due."""
        due, due_reads, orders, trackers = self._due, self._due_reads, self._orders, self._trackers
        for owner, job, space, activity in self._owners:
            tracker = trackers.get(job.name)
            order = None if tracker is None else tracker.columns.next_at
            if tick < due[owner] and activity.reads < due_reads[owner] and order is orders[owner]:
                continue
            hints, orders[owner] = self._hints(job, space, tick), order
            self._rows[owner] = _row(hints)
            if self._compiled is None:
                self._next_at[owner], self._scores[owner], self._mine[owner] = hints[-3:]
            else:
                self._compiled.put(owner, *hints[-3:])
            silent = hints.scale.silent
            due_reads[owner] = activity.reads + _RENEWED_READS
            due[owner] = tick + (silent / _SILENCE_SHARE if silent else _RENEWED_READS * hints.scale.gap)


def weights_of(scores: Column, factors: Column) -> Column:
    """Turn scores into weights. An unknown score, nan, gives weight 1."""
    return np.where(np.isnan(scores), 1.0, np.maximum(scores * factors, LEAST_WEIGHT))


def _row(hints: JobHints) -> tuple[float, ...]:
    return (*hints.scale, hints.start, hints.most, hints.believed, hints.factor)


def _gathered(columns: Values, pages: list[tuple[int, int]], none: float) -> Column:
    """Return the value of each page from its owner's column. ``pages``: owner and sample of each page.
    ``none``: the value where the owner has no column.
    """
    if not any(column is not None for column in columns):
        return np.full(len(pages), none)
    return np.array([none if (column := columns[of]) is None else column[at] for of, at in pages])
