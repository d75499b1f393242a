"""The reads of clients without hints beside a job, and the time at which each hint of the job is sent."""

import json

import numpy as np
import pytest

from shadeproxy.simulate.trace import JobHints, Trace
from shadeproxy_bench.suites import stock_ratios

# Client 0 reads objects 0 and 1, and job 1 reads 2 to 5.
JOBS = np.array([0, 1, 1, 0, 1, 1, 0, 1], np.uint8)
IDS = np.array([0, 2, 3, 1, 4, 5, 0, 2], np.uint32)
HINTS = JobHints(
    1, 2, 6,
    order=np.array([2, 3, 4, 5, 2], np.uint32),
    since=np.array([0, 3]),
    known=np.array([4, 5]),
    scores=np.array([[1.0, 2.0, np.nan, 4.0]], np.float32),
    scored_at=np.array([3]),
)  # fmt: skip


def trace(*hints):
    return Trace(IDS, 6, jobs=JOBS, stock=(0,), hints=hints)


class Called:
    """A stand-in for a proxy. It records each control call with the number of reads before the call."""

    authority = "proxy"

    def __init__(self):
        self.calls, self.reads = [], 0

    def call(self, method, path, body=None, _type=""):
        self.calls.append((self.reads, method, path, body))


def test_hints_are_told_before_the_reads_that_know_them():
    ours = Called()
    asked = []
    for request, _ in stock_ratios.played(ours, trace(HINTS)):
        asked.append(request)
        ours.reads += 1
    told = [(reads, path, body) for reads, _, path, body in ours.calls]
    (_, _, samples), (_, job, registered), *later = told
    assert len(samples.splitlines()) == 4, "the data set has the objects of the job alone"
    assert (job, json.loads(registered)) == ("/v1/jobs/job1", {"dataset": "job1"})
    assert [(reads, path) for reads, path, _ in later] == [
        (0, "/v1/jobs/job1/epochs/0/order?rank=0"),
        (3, "/v1/jobs/job1/scores"),
        (5, "/v1/jobs/job1/epochs/1/order?rank=0"),
    ]
    assert np.frombuffer(later[0][2], "<u4").tolist() == [0, 1, 2, 3]
    assert np.frombuffer(later[1][2], "<u4", 4).tolist() == [3, 0, 1, 3], "three scores, of samples 0, 1, 3"
    assert np.frombuffer(later[2][2], "<u4").tolist() == [0]
    assert [b"x-shade-job: job1\r\n" in request for request in asked] == (JOBS == 1).tolist()


def test_where_all_fits_every_later_read_is_a_hit():
    found = stock_ratios.beside_lru(trace(HINTS), places=12)
    assert found.ours == found.reference == pytest.approx(100 / 3)
    assert found.note.startswith("simulator 33.3 %; of all reads 25.0 % hit, with LRU 25.0 %")


def test_every_row_has_a_bound_of_its_own():
    rows = list(stock_ratios.stock_ratios())
    assert len(rows) == len({row.name for row in rows}) == 9
    assert all(row.target.bound > 10 for row in rows)
