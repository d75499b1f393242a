"""Expected next uses from what jobs say: announced distances and draws by score, in ticks.

Pure functions on columns (docs/adr/0027).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shadeproxy.policy.base import Column


class JobColumns(NamedTuple):
    """One job's part in n pages; columns of shape (n,).

    distance: ticks until the announced read, inf where there is none. draws: pages of its dataset: reads per
    tick, once the announced reads are over; 0 elsewhere. horizon: ticks until then, as far as the order is
    believed. doubt: share of its reads that are expected beside its order, 0 to 1.
    """

    distance: Column
    draws: Column
    horizon: float
    doubt: float = 0.0


def expect(jobs: Sequence[JobColumns], count: int) -> tuple[Column, Column]:
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
