"""One row of the comparison: a workload, a cache size, how orders are announced, the reads that count, and
the bounds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.default import Objective
from shadeproxy.simulate.trace import NO_JOB, Trace
from shadeproxy_bench.studies.hit_ratios.bounds import Bound

Counted = Callable[[Trace], NDArray[np.bool_]]


def every_read(trace: Trace) -> NDArray[np.bool_]:
    return np.ones(len(trace.ids), np.bool_)


def later_epochs(trace: Trace) -> NDArray[np.bool_]:
    return trace.counted()


def later_quarters(trace: Trace) -> NDArray[np.bool_]:
    return np.arange(len(trace.ids)) >= len(trace.ids) // 4


def of_the_client(trace: Trace) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = trace.job_of_reads() == NO_JOB
    return found


class Row(NamedTuple):
    """One row. ``group``: the name of rows that are run together. ``trace``: a function that makes the trace
    for ``seed``. ``cache``: number of places, or if below 1 a share of the data's bytes. ``beside``: a stock
    client reads beside a job. ``restarts``: our policy is restarted in the middle.
    """

    group: str
    words: str
    trace: Callable[..., Trace]
    cache: float
    bounds: tuple[Bound, ...]
    announce: str = "none"
    counted: Counted = every_read
    objective: Objective = "bytes"
    beside: bool = False
    restarts: bool = False

    @property
    def name(self) -> str:
        cache = f"{self.cache:.0%}" if self.cache < 1 else f"{self.cache:g}"
        return f"{self.words}, cache {cache}"
