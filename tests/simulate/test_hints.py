"""Hints that follow from epochs, hints that a trace contains, and the hints that the proxy knows at each
read.
"""

from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import hints_of, parse_announce, read_facts, score_updates
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import NO_JOB, JobHints, Trace
from shadeproxy.simulate.workloads import importance, uniform

OWN = parse_announce("trace")
NONE = parse_announce("none")


def beside_a_job(order, *, reads=None, times=None, known=None, scores=None):
    """Return a trace of a client without hints and a job that read in turn. The client reads ids 0 to 9, and
    the job announces ``order``.
    """
    reads = np.array(order if reads is None else reads, dtype=np.uint32)
    ids = np.stack([np.arange(len(reads)) % 10, reads], axis=1).ravel().astype(np.uint32)
    order = np.array(order, dtype=np.uint32)
    since, upto = np.array([[0, len(order)]] if known is None else known).T
    hint = JobHints(1, 10, 2000, order, since, upto, scores, None if scores is None else np.array([0]))
    jobs = np.tile(np.array([0, 1], dtype=np.uint8), len(reads))
    times = np.arange(len(ids)) / 10 if times is None else times
    return Trace(ids, 2000, jobs=jobs, times=times, stock=(0,), hints=(hint,))


def test_a_job_that_announces_what_it_reads_is_believed_read_by_read():
    trace = beside_a_job([20, 30, 20, 40], known=[[0, 1], [2, 4]])
    facts = read_facts(trace, hints_of(trace, OWN))
    assert facts.job.tolist() == [NO_JOB, 1] * 4
    assert facts.done.tolist() == [0, 1, 0, 2, 0, 3, 0, 4]
    assert facts.horizon.tolist() == [0, 0, 0, 2, 0, 1, 0, 0]
    assert facts.announced.tolist() == [False, True, False, False, False, True, False, True]
    assert facts.time_s.tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert set(facts.prefix.tolist()) == {0}


@pytest.mark.parametrize(("late", "announced"), [(64, True), (65, False), (-255, True), (-256, False)])
def test_a_read_is_announced_up_to_64_places_late_and_256_early(late, announced):
    order = np.arange(100, 1100)
    reads = order.copy()
    reads[500] = order[500 - late]
    reads[500 - late] = 10
    trace = beside_a_job(order, reads=reads)
    found = read_facts(trace, trace.hints).announced[1::2]
    assert bool(found[500]) == announced
    assert found.sum() == 998 + announced


def test_a_place_of_the_order_counts_for_one_read():
    trace = beside_a_job([20, *range(100, 200)], reads=[20] * 101)
    assert read_facts(trace, trace.hints).announced.sum() == 1


def test_orders_by_epochs_are_hints_of_each_job():
    trace = uniform(40, 3, jobs=2)
    for announce, horizon in (("all", 80), ("epoch", 0), ("2", 40)):
        hints = hints_of(trace, parse_announce(announce))
        assert [hint.job for hint in hints] == [0, 1]
        assert all((hint.first, hint.stop) == (0, 40) for hint in hints)
        facts = read_facts(trace, hints)
        at = np.flatnonzero(facts.done == 40)
        assert facts.horizon[at].tolist() == [horizon] * 2
    assert hints_of(trace, NONE) == ()
    assert not read_facts(trace, ()).announced.any()


def test_weights_are_scores_of_the_job():
    trace = importance(30, 3)
    (hint,) = hints_of(trace, NONE)
    assert (len(hint.order), hint.scored_at.tolist()) == (0, [0, 30, 60])
    assert np.array_equal(hint.scores, trace.weights)
    late = replace(trace, epochs=trace.epochs + 1, weights=np.concatenate([trace.weights[:1], trace.weights]))
    (hint,) = hints_of(late, NONE)
    assert np.array_equal(hint.scores, trace.weights)
    assert sorted(score_updates(trace, NONE)) == [0, 30, 60]


def test_scores_of_hints_are_known_if_hints_are():
    trace = beside_a_job([20, 30], scores=np.full((1, 1990), 2, np.float32))
    assert score_updates(trace, NONE) == {}
    ((first, stop, scores),) = score_updates(trace, OWN)[0]
    assert (first, stop, len(scores)) == (10, 2000, 1990)


def test_a_trace_without_hints_has_none_to_use():
    with pytest.raises(ConfigError, match="--announce: the trace has no hints of jobs; write none, epoch,"):
        hints_of(uniform(10, 2), OWN)


def test_a_replay_uses_hints_if_it_is_told_to():
    random = np.random.default_rng(1)
    trace = beside_a_job(random.integers(10, 1000, 4000))
    hits = {
        name: Replay(trace, get_policy("default"), 200, announce=announce).run().sum()
        for name, announce in (("none", NONE), ("own", OWN))
    }
    assert hits["own"] > hits["none"] + 300
