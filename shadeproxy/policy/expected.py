"""Expected next uses from what jobs say: announced distances and draws by score, in ticks.

Pure functions on columns (docs/adr/0027).
"""

from collections.abc import Sequence
from math import inf
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from shadeproxy.policy.base import Column

Pages = TypeVar("Pages", Column, float)
"""Values of n pages: a column of shape (n,); of one page: a number."""


class JobColumns(NamedTuple, Generic[Pages]):
    """One job's part in n pages, or in one.

    distance: ticks until the announced read, inf where there is none. draws: pages of its dataset: reads per
    tick, once the announced reads are over; 0 elsewhere. horizon: ticks until then, as far as the order is
    believed. doubt: share of its reads that are expected beside its order, 0 to 1.
    """

    distance: Pages
    draws: Pages
    horizon: float
    doubt: float = 0.0


class JobScale(NamedTuple):
    """Turns a job's reads into ticks. gap: ticks from one of its reads to the next. silent: ticks of silence.
    divisor: of times, for weight and trust. rate: by which draws are multiplied. Others as in ``JobColumns``.
    """

    gap: float
    silent: float
    divisor: float
    rate: float
    horizon: float
    doubt: float

    def columns(self, left: Pages, draws: Pages) -> JobColumns[Pages]:
        """Return the job's part in pages. left: its reads until a page's announced one, inf where there is
        none. draws: draws of a page in one of its reads.
        """
        distance = (left * self.gap + self.silent) / self.divisor
        return JobColumns(distance, draws * self.rate, self.horizon, self.doubt)


def expect(jobs: Sequence[JobColumns[Column]], count: int) -> tuple[Column, Column]:
    """Return ticks until the earliest announced use, inf where there is none, and reads per tick of jobs
    that may draw the page before it: two columns of shape (count,).
    """
    rate = np.zeros(count)
    soonest = jobs[0].distance.copy() if jobs else np.full(count, np.inf)
    for job in jobs[1:]:
        np.minimum(soonest, job.distance, out=soonest)
    for job in jobs:
        left_out = np.isinf(job.distance)
        beside = job.doubt * job.draws
        if left_out.any():
            # A page that the order leaves out is drawn after the announced reads: 1 / (horizon + 1 / rate).
            drawn = np.where(job.horizon < soonest, job.draws / (1 + job.horizon * job.draws), 0.0)
            beside = np.where(left_out, drawn, beside)
        rate += beside
    return soonest, rate


def second_use(jobs: Sequence[JobColumns[Column]], count: int) -> Column:
    """Return ticks until the earliest announced use by any job but the one that is first: f64[count]."""
    first, second = np.full((2, count), np.inf)
    for job in jobs:
        np.minimum(second, np.maximum(first, job.distance), out=second)
        np.minimum(first, job.distance, out=first)
    return second


def expect_one(jobs: Sequence[JobColumns[float]]) -> tuple[float, float]:
    """Return what ``expect`` does, of one page: columns of so few cost ten times as much."""
    soonest, rate = min((job.distance for job in jobs), default=inf), 0.0
    for job in jobs:
        if job.distance < inf:
            rate += job.doubt * job.draws
        elif job.horizon < soonest:
            rate += job.draws / (1 + job.horizon * job.draws)
    return soonest, rate
