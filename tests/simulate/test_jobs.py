"""Expected next uses from the hints of jobs, compared with a search through the trace."""

from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.jobs import TraceJobs
from shadeproxy.simulate.trace import JobHints, Trace
from shadeproxy.simulate.workloads import importance, interleaved, shuffled, uniform


def known_until(epochs, done, announce):
    """Return how many reads of a job are announced when ``done`` reads have ended."""
    if announce == "all":
        return len(epochs)
    if not done:
        return 0
    epoch = epochs[done - 1]
    mine = np.flatnonzero(epochs == epoch)
    more = {"epoch": 0, "next-half": int(done - mine[0] > len(mine) // 2)}.get(announce)
    last = epoch + (int(announce) - 1 if more is None else more)
    return int((epochs <= last).sum())


def search(trace, at, page, announce):
    """Return the number of reads of all jobs until the next announced read of ``page``, or inf without one.
    All jobs must have the same pace.
    """
    jobs = np.zeros(len(trace.ids), int) if trace.jobs is None else trace.jobs
    found = []
    for job in np.unique(jobs):
        mine = np.flatnonzero(jobs == job)
        done = int((mine <= at).sum())
        known = known_until(trace.epochs[mine], done, announce)
        coming = np.flatnonzero(trace.ids[mine][done:known] == page)
        found += (coming[:1] + 1).tolist()
    return min(found, default=np.inf) * len(np.unique(jobs))


def masks(trace):
    """Return, for each job of the trace, which reads are the job's: bool[n]."""
    return [np.ones(len(trace.ids), bool)] if trace.jobs is None else [trace.jobs == job for job in (0, 1)]


@pytest.mark.parametrize("announce", ["epoch", "next-half", "2", "all"])
@pytest.mark.parametrize("trace", [importance(40, 4), uniform(40, 3, jobs=2)], ids=["draws", "jobs"])
def test_next_uses_are_those_of_the_trace_and_no_others(trace, announce):
    trace = replace(trace, weights=None)
    jobs, block = TraceJobs(trace, parse_announce(announce)), 16
    # The first read of an epoch shows that the epoch has begun. So this read was not announced, and for a
    # while its page counts as still to be read.
    firsts = [
        trace.ids[of_job][np.diff(trace.epochs[of_job].astype(int), prepend=-1) > 0]
        for of_job in masks(trace)
    ]
    pages = np.setdiff1d(np.arange(trace.objects), np.concatenate(firsts))
    for start in range(0, len(trace.ids), block):
        stop = min(start + block, len(trace.ids))
        jobs.begin(start, stop)
        for at in range(start, stop):
            expected = np.array([search(trace, at, page, announce) for page in pages])
            told, _ = jobs.until(pages, at)
            assert np.array_equal(np.isinf(told), np.isinf(expected))
            known = np.isfinite(told)
            if at >= 2 * block and known.any():
                # Each value is divided by the trust in its job. All orders here are true, so the trust is the
                # same for all.
                ratio = told[known] / expected[known]
                assert ratio == pytest.approx(ratio.mean(), rel=0.05)
                assert 1 <= ratio.mean() <= 2.1


@pytest.mark.parametrize("announce", ["none", "next-half", "all"])
@pytest.mark.parametrize("trace", [importance(40, 4), uniform(40, 3, jobs=2)], ids=["draws", "jobs"])
def test_a_page_is_expected_alone_as_it_is_among_others(trace, announce):
    jobs, pages = TraceJobs(trace, parse_announce(announce)), np.arange(trace.objects)
    for start in range(0, len(trace.ids), 16):
        stop = min(start + 16, len(trace.ids))
        jobs.begin(start, stop)
        for at in range(start, stop, 5):
            alone = [jobs.until(pages[page : page + 1], at) for page in pages]
            assert np.array_equal(np.concatenate(alone, axis=1), jobs.until(pages, at))


def test_a_job_that_is_three_times_as_fast_is_three_times_as_near():
    orders = [shuffled(6000, 6, seed=1), shuffled(6000, 2, seed=2)]
    trace = interleaved(orders, 6000, rates=[3.0, 1.0])
    jobs = TraceJobs(trace, parse_announce("all"))
    for start in range(0, 24_000, 256):
        jobs.begin(start, start + 256)
    at = start + 255
    told, _ = jobs.until(np.arange(6000), at)
    # Distances count the reads of both jobs. The fast job ends before the slow one.
    coming = {}
    for position in range(len(trace.ids) - 1, at, -1):
        coming[int(trace.ids[position])] = position - at
    true = np.array([coming.get(page, np.inf) for page in range(6000)])
    assert np.median(told / true) == pytest.approx(1, abs=0.03)


def test_pages_of_a_silent_job_fade_and_come_back():
    random = np.random.default_rng(1)
    order = 10 + np.concatenate([random.permutation(1000) for _ in range(4)])
    ids = np.concatenate([order[:2000], np.arange(4000) % 10, order[2000:]]).astype(np.uint32)
    whose = np.repeat(np.array([1, 0, 1], np.uint8), [2000, 4000, 2000])
    hint = JobHints(1, 10, 1010, order.astype(np.uint32), np.array([0]), np.array([4000]))
    jobs = TraceJobs(Trace(ids, 1010, jobs=whose, stock=(0,), hints=(hint,)), parse_announce("trace"))
    soon = []
    for start in range(0, 6144, 256):
        jobs.begin(start, start + 256)
        soon.append(float(jobs.until(order[2200:2201], start + 255)[0][0]))
    # While the job reads, its read 2200 is near. After 2,000 reads of other clients it is further away.
    assert soon[6] == pytest.approx(2200 - 1792, rel=0.1)
    assert soon[15] == pytest.approx(2200 - 2000 + 4096 - 2000, rel=0.1)
    assert soon[23] < 300


def test_an_order_that_is_not_read_is_not_believed():
    random = np.random.default_rng(1)
    read, order = (10 + np.concatenate([random.permutation(3000) for _ in range(2)]) for _ in range(2))
    hint = JobHints(1, 10, 3010, order.astype(np.uint32), np.array([0]), np.array([6000]))
    trace = Trace(read.astype(np.uint32), 3010, jobs=np.ones(6000, np.uint8), hints=(hint,))
    jobs = TraceJobs(trace, parse_announce("trace"))
    explained = [jobs.begin(start, start + 256).mean() for start in range(0, 5888, 256)]
    assert sum(explained[4:]) == 0
    # By the order the page would be thirteen reads away, but the job's reads contradict the order.
    assert jobs.until(order[5900:5901], 5887)[0][0] > 20 * 13


def test_draws_follow_scores_and_huge_ones_are_bounded():
    scores = np.ones((1, 100), np.float32)
    scores[0, :10] = 3e38
    hint = JobHints(1, 0, 100, np.empty(0, np.uint32), np.array([0]), np.array([0]), scores, np.array([0]))
    ids = np.arange(512, dtype=np.uint32) % 100
    trace = Trace(ids, 100, jobs=np.ones(512, np.uint8), hints=(hint,))
    jobs = TraceJobs(trace, parse_announce("trace"))
    for start in (0, 256):
        jobs.begin(start, start + 256)
    rates = jobs.until(np.arange(100), 511)[1]
    assert rates[:10].max() <= 1.0 / 2
    assert rates[:10].min() > 100 * rates[10:].max()


def test_epochs_cannot_be_announced_where_they_are_not_known():
    trace = Trace(np.zeros(3, dtype=np.uint32), 1)
    with pytest.raises(ConfigError, match=r"--announce: the trace has no array epochs; only none and all"):
        TraceJobs(trace, parse_announce("epoch"))
    TraceJobs(trace, parse_announce("all"))


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "1.5"])
def test_a_bad_announcement(text):
    with pytest.raises(
        ConfigError, match=r"--announce: .* is none of none, epoch, next-half, all, trace, and no"
    ):
        parse_announce(text)
