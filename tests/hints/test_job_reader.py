"""The reader of a job is found again for each read. A new reader is made when the job's hints are
replaced.
"""

import numpy as np
import pytest

from shadeproxy.core.types import JobContext
from shadeproxy.hints.jobs import Job
from tests.support.announcing import NOW_S, Long, announce, tick_of

pytestmark = pytest.mark.usefixtures("kernel_form")


def note(hints, hashes, count=1):
    """Let the hints learn of ``count`` reads together, one of each of the first objects. Return which of the
    reads are explained.
    """
    tick = tick_of(hints) + count
    jobs = [JobContext("one")] * count
    return hints.expectations.note_reads(hashes[:count], np.zeros(count, np.int64), jobs, NOW_S, tick)


def reader_of(hints):
    return hints.expectations._reads._reader("one")


def test_one_reader_serves_until_an_order_or_scores_come():
    job = Long(600)
    hints, first = job.hints, reader_of(job.hints)
    assert not note(hints, job.hashes).any()
    assert reader_of(hints) is first
    assert not first.says_anything
    announce(hints, range(600))
    second = reader_of(hints)
    assert second is not first
    assert note(hints, job.hashes, 3).all()
    hints.apply("one", hints.check_by_ids("one", np.arange(9), np.arange(9.0)), NOW_S)
    assert reader_of(hints) is not second
    assert hints.expectations._activities["one"].reads == 4


def test_a_job_that_is_registered_again_has_a_new_reader():
    job = Long(600)
    hints = job.hints
    announce(hints, range(600))
    note(hints, job.hashes, 5)
    hints.jobs.end("one", 0)
    hints.delete_job("one")
    assert hints.expectations._reads._readers_by_name == {}, "nothing of the deleted job is kept"
    hints.put_job(Job("one", dataset="train"), NOW_S)
    assert not note(hints, job.hashes, 2).any()
    assert hints.expectations._activities["one"].reads == 2


def test_samples_that_were_read_wait_until_they_are_several_or_the_trust_is_asked_for():
    job = Long(600)
    hints = job.hints
    hints.apply("one", hints.check_by_ids("one", np.arange(600), np.arange(600.0)), NOW_S)
    activity = hints.expectations._activities.setdefault("one", reader_of(hints)._activity)
    note(hints, job.hashes, 5)
    assert (activity._drawn, activity._scores) == ([0, 1, 2, 3, 4], 0.5)
    assert activity.score_trust < 0.5
    assert activity._drawn == []
    note(hints, job.hashes, 8)
    assert activity._drawn == []
