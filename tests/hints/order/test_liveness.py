"""An announced order lapses while its job is silent, or once the job has ended. The order counts again when
the job reads.
"""

import numpy as np
import pytest

from shadeproxy.hints.jobs import Job, Progress
from tests.support.announcing import NOW_S, Long, restarted


def reading(count=1000, per_s=100, **job):
    """Return a job that has read ``count`` samples of its order, and the time of the last read."""
    long = Long(**job)
    long.announce()
    return long, long.steadily(long.order[:count], per_s=per_s)


def counts(job, now_s, place=1100):
    """Return whether the announced read at ``place`` counts now. The answer must be the same for eviction and
    for prefetching.
    """
    job.orders.tick(now_s)
    kept = bool(job.announces(job.order[[place]])[0])
    fetched = [outlook.job for outlook in job.orders.outlooks()] == ["one"]
    assert kept == fetched
    return kept


def test_the_order_of_a_killed_job_counts_for_tens_of_seconds_and_not_for_an_hour():
    job, end_s = reading()
    assert counts(job, end_s + 15)
    assert not counts(job, end_s + 25)


def test_a_job_that_comes_back_goes_on_exactly_where_it_was():
    job, end_s = reading()
    before = job.orders.coming("one", 5000).tolist()
    assert not counts(job, end_s + 1800)
    assert job.orders.coming("one", 5000).tolist() == before
    job.read(job.order[[1000]], end_s + 1800)
    assert counts(job, end_s + 1801)
    assert job.orders.coming("one", 5000).tolist() == before[1:]
    assert job.ticks(job.order[[1100]])[0] == pytest.approx(100, abs=40)


@pytest.mark.parametrize("gap_s", [20.0, 60.0])
def test_a_slow_job_is_not_silent_between_its_reads(gap_s):
    job = Long()
    job.announce()
    for position in range(200):
        now_s = NOW_S + gap_s * position
        job.read(job.order[[position]], now_s)
        if position >= 64:
            assert counts(job, now_s + 0.99 * gap_s, place=250)
    assert counts(job, now_s + 2 * gap_s, place=250), "one read that is late is no silence"
    assert not counts(job, now_s + 301, place=250)


def test_a_job_that_reads_a_batch_now_and_then_is_not_silent_between_two():
    job = Long()
    job.announce()
    for step in range(12):
        now_s = NOW_S + 30.0 * step
        job.read_together(job.order[256 * step : 256 * (step + 1)], now_s)
        if step >= 4:
            assert counts(job, now_s + 29.9, place=4000)


def test_one_long_pause_makes_no_slow_job_of_a_fast_one():
    """One long pause does not make the proxy take a fast job for a slow one. The order lapses in a pause for
    validation. Soon after training continues, the pause has no more effect.
    """
    job, end_s = reading()
    assert not counts(job, end_s + 590)
    end_s = job.steadily(job.order[1000:3000], per_s=10, start_s=end_s + 600)
    assert counts(job, end_s + 15, place=3100)
    assert not counts(job, end_s + 60, place=3100)


def test_a_job_that_has_not_begun_has_a_bounded_grace():
    job = Long()
    job.announce()
    job.orders.tick(NOW_S + 290)
    assert len(job.orders.outlooks()) == 1
    for epoch in range(1, 4):
        job.announce(epoch=epoch, now_s=NOW_S + 100 * epoch)
    job.orders.tick(NOW_S + 310)
    assert job.orders.outlooks() == [], "announcing for ever is not beginning"


def test_announcing_keeps_a_job_alive_once_and_then_it_has_to_read():
    job, end_s = reading()
    job.announce(epoch=1, now_s=end_s + 15)
    assert counts(job, end_s + 30)
    for epoch in range(2, 9):
        job.announce(epoch=epoch, now_s=end_s + 15 + 3 * epoch)
    assert not counts(job, end_s + 40)


def test_a_job_that_begins_again_has_the_grace_of_a_start():
    job = Long()
    for epoch in (3, 4):
        job.announce(epoch=epoch)
    end_s = job.steadily(job.order[:1000], per_s=100)
    job.announce(epoch=2, now_s=end_s + 400)
    assert counts(job, end_s + 600)
    job.announce(epoch=1, now_s=end_s + 600)
    assert not counts(job, end_s + 701), "once, until it reads"


def test_progress_is_a_sign_of_life_only_where_it_is_further_than_ever():
    job, end_s = reading()
    for second in range(0, 60, 5):
        job.hints.report_progress("one", 0, Progress(0, 500 + second), end_s + second)
    assert counts(job, end_s + 60)
    for second in range(60, 120, 5):
        job.hints.report_progress("one", 0, Progress(0, 400 + second % 2), end_s + second)
    assert not counts(job, end_s + 120)


def test_the_reads_of_a_neighbour_keep_no_silent_job_alive():
    """Reads of another client do not keep a silent job alive. The client reads the same data, and names no
    job.
    """
    job, end_s = reading()
    random = np.random.default_rng(1)
    for second in range(60):
        job.read_together(random.choice(job.order, 10), end_s + second, job=None)
    assert not counts(job, end_s + 60)


def test_one_silent_rank_of_several_silences_nobody_and_is_passed():
    job = Long(world_size=2)
    for rank in range(2):
        job.announce(job.order[rank::2], rank=rank)
    half = job.order[0::2]
    end_s = job.steadily(job.order[:600], per_s=100)
    end_s = job.steadily(half[300:1000], per_s=100, start_s=end_s)
    job.orders.tick(end_s)
    assert len(job.orders.outlooks()) == 1
    assert not job.announces(job.order[601:1000:2]).any(), "its announced uses are over"


def test_when_all_ranks_have_ended_the_order_counts_no_more_at_once():
    job = Long(world_size=2)
    for rank in range(2):
        job.announce(job.order[rank::2], rank=rank)
    end_s = job.steadily(job.order[:1000], per_s=100)
    job.hints.end_rank("one", 0)
    job.orders.settle()
    assert counts(job, end_s, place=1101), "the other rank goes on"
    assert not job.announces(job.order[1100:2000:2]).any(), "of an ended rank nothing is coming"
    job.hints.end_rank("one", 1)
    assert not counts(job, end_s, place=1101), "even before its orders are settled"
    job.orders.settle()
    assert not counts(job, end_s, place=1101)
    assert job.state.left == 0
    job.hints.put_job(Job("one", dataset="train", world_size=2), end_s)
    assert not counts(job, end_s, place=1101), "the next run announces for itself"


def test_after_a_restart_of_the_proxy_an_order_counts_when_its_job_speaks():
    job, end_s = reading()
    job.hints = restarted(job.hints, end_s + 5)
    job.orders = job.hints.orders
    assert job.state.left == pytest.approx(3096, abs=128)
    assert not counts(job, end_s + 5)
    assert not counts(job, end_s + 3000)
    job.steadily(job.order[1000:1100], per_s=100, start_s=end_s + 3000)
    assert counts(job, end_s + 3002, place=1200)


def test_a_job_that_had_ended_has_ended_after_a_restart_too():
    job, end_s = reading()
    job.hints.end_rank("one", 0)
    again = restarted(job.hints, end_s)
    assert not again.jobs.get("one").in_use
    assert again.orders.outlooks() == []


def test_a_job_that_only_reads_does_not_expire():
    """A job that makes no calls and only reads does not expire. It has announced all its reads, so it needs
    no further calls.
    """
    job = Long(expires_s=60.0)
    job.announce()
    end_s = job.steadily(job.order[:3000], per_s=10)
    job.hints.expire(end_s)
    assert job.hints.jobs.get("one").live
    assert counts(job, end_s, place=3100)


def test_silence_is_shown():
    job, end_s = reading()
    job.orders.tick(end_s + 5)
    silence = job.state.silence
    assert (silence.silent_s, silence.limit_s) == (pytest.approx(5.1, abs=0.2), 20.0)
    assert not job.state.lapsed
    job.orders.tick(end_s + 25)
    assert job.state.lapsed
    job.hints.end_rank("one", 0)
    job.orders.settle()
    assert job.state.lapsed
