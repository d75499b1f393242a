"""Expected next uses of pages, in ticks, from the orders that jobs announce and their scores.

Pure functions on columns (docs/adr/0027).
"""

from collections.abc import Sequence
from math import inf
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from shadeproxy.policy.base import Column, constant

Pages = TypeVar("Pages", Column, float)
"""The values of n pages are a column of shape (n,); the value of one page is a number."""


_NO_USE, _NO_DRAWS = constant(inf), constant(0.0)


class JobColumns(NamedTuple, Generic[Pages]):
    """The reads of n pages, or of one page, that are expected from one job.

    distance: ticks until the announced read of the page, inf where none is announced. draws: reads per tick
    of a page of the job's dataset, once the announced reads are over; 0 for other pages. horizon: ticks until
    the announced reads are over, as far as the order is believed. doubt: the share of the job's reads, 0 to
    1, that are not expected to follow its order. The last two are columns if pages are of different jobs.
    """

    distance: Pages
    draws: Pages
    horizon: Pages | float
    doubt: Pages | float = 0.0


class JobScale(NamedTuple):
    """Turns a job's reads into ticks.

    gap: ticks from one of the job's reads to the next. silent: ticks that are added because the job is
    silent. divisor: times are divided by it; it is the job's weight times the trust in its order. rate: the
    factor that turns draws in one read of the job into reads per tick. horizon, doubt: as in ``JobColumns``.
    """

    gap: float
    silent: float
    divisor: float
    rate: float
    horizon: float
    doubt: float

    def columns(self, left: Pages, draws: Pages) -> JobColumns[Pages]:
        """Return the columns of pages. left: how many reads the job makes until its announced read of a page,
        inf where none is announced. draws: expected draws of a page in one read of the job.
        """
        distance = (left * self.gap + self.silent) / self.divisor
        return JobColumns(distance, draws * self.rate, self.horizon, self.doubt)


class JobTable(NamedTuple):
    """The reads of n pages that are expected from j jobs, as in ``JobColumns``. distance, draws: f64[j, n];
    horizon, doubt: f64[j, 1].
    """

    distance: Column
    draws: Column
    horizon: Column
    doubt: Column

    @classmethod
    def of(cls, scales: Sequence[JobScale], left: Column, draws: Column) -> Self:
        """Return the results of ``JobScale.columns``, with one job in each row."""
        gap, silent, divisor, rate, horizon, doubt = np.array(scales).reshape(-1, 6, 1).transpose(1, 0, 2)
        return cls((left * gap + silent) / divisor, draws * rate, horizon, doubt)


def expect(jobs: Sequence[JobColumns[Column]], count: int) -> tuple[Column, Column]:
    """Return two columns of shape (count,): the ticks until the earliest announced use (inf where none is
    announced), and the reads per tick by jobs that may draw the page before that use.
    """
    if not jobs:
        return _NO_USE(count), _NO_DRAWS(count)
    rate = np.zeros(count)
    soonest = jobs[0].distance.copy()
    for job in jobs[1:]:
        np.minimum(soonest, job.distance, out=soonest)
    for job in jobs:
        left_out = np.isinf(job.distance)
        beside = job.doubt * job.draws
        if left_out.any():
            # A page that is not in the order is drawn only after the announced reads. So the mean time to its
            # read is horizon + 1 / draws.
            drawn = np.where(job.horizon < soonest, job.draws / (1 + job.horizon * job.draws), 0.0)
            beside = np.where(left_out, drawn, beside)
        rate += beside
    return soonest, rate


def expect_table(jobs: JobTable) -> tuple[Column, Column]:
    """Return the result of ``expect`` for the jobs of a table, which has at least one."""
    soonest = jobs.distance.min(axis=0)
    drawn = np.where(jobs.horizon < soonest, jobs.draws / (1 + jobs.horizon * jobs.draws), 0.0)
    rate = np.where(np.isinf(jobs.distance), drawn, jobs.doubt * jobs.draws).sum(axis=0)
    return soonest, rate


def expect_one(jobs: Sequence[JobColumns[float]]) -> tuple[float, float]:
    """Return the result of ``expect`` for one page, as two numbers. Columns of length 1 would take ten times
    as long.
    """
    soonest, rate = min((job.distance for job in jobs), default=inf), 0.0
    for job in jobs:
        if job.distance < inf:
            rate += job.doubt * job.draws
        elif job.horizon < soonest:
            rate += job.draws / (1 + job.horizon * job.draws)
    return soonest, rate
