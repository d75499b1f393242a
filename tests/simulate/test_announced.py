"""What is told of coming reads, compared with a search through the trace."""

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.simulate.announced import NextUses, parse_announce
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, interleaved, shuffled, uniform


def known_until(epochs, done, announce):
    """The number of a job's reads that are announced after ``done`` of them."""
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
    """Reads until ``page`` is read, of the job that is first, at one pace for all jobs."""
    jobs = np.zeros(len(trace.ids), int) if trace.jobs is None else trace.jobs
    found = []
    for job in np.unique(jobs):
        mine = np.flatnonzero(jobs == job)
        done = int((mine <= at).sum())
        known = known_until(trace.epochs[mine], done, announce)
        coming = np.flatnonzero(trace.ids[mine][done:known] == page)
        found += (coming[:1] + 1).tolist()
    return min(found, default=np.inf) * len(np.unique(jobs))


@pytest.mark.parametrize("announce", ["epoch", "next-half", "2", "all"])
@pytest.mark.parametrize("trace", [importance(40, 4), uniform(40, 3, jobs=2)], ids=["draws", "jobs"])
def test_next_uses_are_those_of_the_trace_and_no_others(trace, announce):
    next_uses, block = NextUses(trace, parse_announce(announce)), 16
    pages = np.arange(trace.objects)
    for start in range(0, len(trace.ids), block):
        stop = min(start + block, len(trace.ids))
        newcomers = next_uses.begin(start, stop)
        for at in range(start, stop):
            expected = [search(trace, at, page, announce) for page in pages]
            # The pace is measured, and two jobs that take turns do not have exactly half of a block.
            assert next_uses.until(pages, at) == pytest.approx(expected, rel=0.01)
            assert newcomers[at - start] == pytest.approx(expected[trace.ids[at]], rel=0.01)


def test_a_job_that_is_three_times_as_fast_is_three_times_as_near():
    orders = [shuffled(6000, 6, seed=1), shuffled(6000, 2, seed=2)]
    trace = interleaved(orders, 6000, rates=[3.0, 1.0])
    next_uses = NextUses(trace, parse_announce("all"))
    for start in range(0, 24_000, 256):
        next_uses.begin(start, start + 256)
    at = start + 255
    told = next_uses.until(np.arange(6000), at)
    # In reads of both jobs together; the last epochs of the fast job are over sooner than the slow job's.
    coming = {}
    for position in range(len(trace.ids) - 1, at, -1):
        coming[int(trace.ids[position])] = position - at
    true = np.array([coming.get(page, np.inf) for page in range(6000)])
    assert np.median(told / true) == pytest.approx(1, abs=0.03)


def test_epochs_cannot_be_announced_where_they_are_not_known():
    trace = Trace(np.zeros(3, dtype=np.uint32), 1)
    with pytest.raises(ConfigError, match=r"--announce: the trace has no array epochs; only none and all"):
        NextUses(trace, parse_announce("epoch"))
    NextUses(trace, parse_announce("all"))


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "1.5"])
def test_a_bad_announcement(text):
    with pytest.raises(ConfigError, match=r"--announce: .* is none of none, epoch, next-half, all, and no"):
        parse_announce(text)
