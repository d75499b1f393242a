"""Expected next uses of pages, in ticks, from what jobs announce and from the scores by which jobs draw.

Pure functions on columns (docs/adr/0027).
"""

from collections.abc import Sequence
from math import inf
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from shadeproxy.policy.base import Column

Pages = TypeVar("Pages", Column, float)
"""The values of n pages are a column of shape (n,); the value of one page is a number."""


class JobColumns(NamedTuple, Generic[Pages]):
    """The reads of n pages, or of one page, that are expected from one job.

    distance: ticks until the announced read of the page, inf where none is announced. draws: reads per tick
    of a page of the job's dataset, once the announced reads are over; 0 for other pages. horizon: ticks until
    the announced reads are over, as far as the order is believed. doubt: the share of the job's reads, 0 to
    1, that are not expected to follow its order.
    """

    distance: Pages
    draws: Pages
    horizon: float
    doubt: float = 0.0


class JobScale(NamedTuple):
    """Turns a job's reads into ticks.

    gap: ticks from one of the job's reads to the next. silent: ticks that are added because the job is
    silent. divisor: divides times, by the job's weight and trust. rate: multiplies draws. Others as in
    ``JobColumns``.
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


def expect(jobs: Sequence[JobColumns[Column]], count: int) -> tuple[Column, Column]:
    """Return two columns of shape (count,): the ticks until the earliest announced use (inf where none is
    announced), and the reads per tick by jobs that may draw the page before that use.
    """
    rate = np.zeros(count)
    soonest = jobs[0].distance.copy() if jobs else np.full(count, np.inf)
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


def second_use(jobs: Sequence[JobColumns[Column]], count: int) -> Column:
    """Return, for each page, the ticks until its earliest announced use by any job except the job that uses
    the page first: f64[count].
    """
    first, second = np.full((2, count), np.inf)
    for job in jobs:
        np.minimum(second, np.maximum(first, job.distance), out=second)
        np.minimum(first, job.distance, out=first)
    return second


def expect_one(jobs: Sequence[JobColumns[float]]) -> tuple[float, float]:
    """Return what ``expect`` returns, as two numbers for one page. Columns of length 1 would take ten times
    as long.
    """
    soonest, rate = min((job.distance for job in jobs), default=inf), 0.0
    for job in jobs:
        if job.distance < inf:
            rate += job.doubt * job.draws
        elif job.horizon < soonest:
            rate += job.draws / (1 + job.horizon * job.draws)
    return soonest, rate
