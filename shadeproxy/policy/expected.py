"""Expected next uses from what jobs say: announced distances and draws by score, in ticks.

Pure functions on columns (docs/adr/0027).
"""

from collections.abc import Sequence
from math import inf
from typing import Generic, NamedTuple, Self, TypeVar

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


class JobTable(NamedTuple):
    """The parts of j jobs in n pages, as in ``JobColumns``. distance, draws: f64[j, n]; horizon, doubt:
    f64[j, 1].
    """

    distance: Column
    draws: Column
    horizon: Column
    doubt: Column

    @classmethod
    def of(cls, scales: Sequence[JobScale], left: Column, draws: Column) -> Self:
        """Return what ``JobScale.columns`` does, of a job in each row."""
        gap, silent, divisor, rate, horizon, doubt = np.array(scales).reshape(-1, 6, 1).transpose(1, 0, 2)
        return cls((left * gap + silent) / divisor, draws * rate, horizon, doubt)


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


def expect_table(jobs: JobTable) -> tuple[Column, Column, Column]:
    """Return what ``expect`` does of one job or more, and ticks until the earliest announced use by any job
    but the one that is first.
    """
    soonest, others = jobs.distance.min(axis=0), jobs.distance.copy()
    np.put_along_axis(others, others.argmin(axis=0)[None], np.inf, axis=0)
    drawn = np.where(jobs.horizon < soonest, jobs.draws / (1 + jobs.horizon * jobs.draws), 0.0)
    rate = np.where(np.isinf(jobs.distance), drawn, jobs.doubt * jobs.draws).sum(axis=0)
    return soonest, rate, others.min(axis=0)


def expect_one(jobs: Sequence[JobColumns[float]]) -> tuple[float, float]:
    """Return what ``expect`` does, of one page: columns of so few cost ten times as much."""
    soonest, rate = min((job.distance for job in jobs), default=inf), 0.0
    for job in jobs:
        if job.distance < inf:
            rate += job.doubt * job.draws
        elif job.horizon < soonest:
            rate += job.draws / (1 + job.horizon * job.draws)
    return soonest, rate
