"""Hint rows: the hints of many jobs in one table. A job's row is computed again only when its hints may have
changed.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from shadeproxy.hints.hint_rows import HintRows, JobHints
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.activity import JobActivity
from shadeproxy.policy.expected import JobScale

GAP = 10.0

pytestmark = pytest.mark.usefixtures("kernel_form")


class Asked:
    """Hint rows of ``jobs`` jobs. The last job has no dataset in the index. ``asked`` lists the jobs whose
    hints were asked for.
    """

    def __init__(self, jobs=3, silent=0.0):
        self.asked, self.trackers, self.silent = [], {}, silent
        owners = [(Job(f"job{number}"), None) for number in range(jobs - 1)]
        self.activities = {job.name: JobActivity() for job, _ in owners}
        self.rows = HintRows([*owners, None], self.hints, self.trackers, self.activities)

    def hints(self, job, _space, _tick):
        self.asked.append(job.name)
        number = int(job.name[3:])
        next_at = (np.arange(4, dtype=np.int32) + 7 + number).data
        return JobHints(
            JobScale(GAP, self.silent, 1.0, 1.0, 0.0, 0.0), 5.0, 4.0, 0.5, 1.0, next_at, None, None
        )

    def columns(self, tick, owners=(0, 1, 2, -1)):
        owners = np.array(owners)
        return self.rows.columns(owners, np.arange(len(owners)), tick)


def test_each_page_has_the_hints_of_its_own_job():
    found = Asked().columns(0.0)
    assert found.distance.tolist() == [2 * GAP, 4 * GAP, np.inf, np.inf]
    assert found.draws.tolist() == [0.5, 0.5, 0.0, 0.0]


def test_hints_are_asked_for_again_after_a_few_reads_of_the_job():
    rows = Asked()
    for tick in (0.0, GAP, 8 * GAP - 1):
        rows.columns(tick)
    assert rows.asked == ["job0", "job1"]
    rows.columns(8 * GAP)
    assert rows.asked == ["job0", "job1"] * 2


@pytest.mark.parametrize(("silent", "after"), [(64.0, 1.0), (6400.0, 100.0)])
def test_a_growing_silence_is_known_within_a_64th(silent, after):
    rows = Asked(silent=silent)
    for tick in (0.0, after - 0.5):
        rows.columns(tick)
    assert len(rows.asked) == 2
    rows.columns(after)
    assert len(rows.asked) == 4


@pytest.mark.parametrize("silent", [0.0, 64_000.0])
def test_a_job_that_reads_faster_than_at_its_pace_is_asked_again_after_a_few_reads(silent):
    rows = Asked(silent=silent)
    rows.columns(0.0)
    rows.activities["job1"].read(7, 1.0)
    rows.columns(1.0)
    assert rows.asked == ["job0", "job1"]
    rows.activities["job1"].read(1, 2.0)
    for tick in (2.0, 3.0):
        rows.columns(tick)
    assert rows.asked == ["job0", "job1", "job1"]


def test_another_order_is_used_at_once():
    rows = Asked()
    rows.columns(0.0)
    rows.trackers["job1"] = SimpleNamespace(columns=SimpleNamespace(next_at=np.arange(4)))
    rows.columns(1.0)
    rows.columns(2.0)
    assert rows.asked == ["job0", "job1", "job1"]
