"""The row about a client without hints beside a job: the job's hints, and its reads."""

from typing import get_args

import numpy as np
import pytest

from shadeproxy.simulate.hints import hints_of, parse_announce, read_facts
from shadeproxy.simulate.trace import NO_JOB
from shadeproxy_bench import interference
from shadeproxy_bench.interference import EPOCHS, HOT, SAMPLES

OWN = parse_announce("trace")


def share_announced(trace):
    facts = read_facts(trace, hints_of(trace, OWN))
    return facts.announced[facts.job == 1].mean()


@pytest.mark.parametrize("said", get_args(interference.Said))
def test_both_read_in_turns_whatever_is_said(said):
    trace = interference.beside(said)
    assert np.array_equal(trace.ids, interference.beside("nothing").ids)
    assert trace.job_of_reads().tolist() == [NO_JOB, 1] * (SAMPLES * EPOCHS)
    mine = trace.ids[1::2].reshape(EPOCHS, SAMPLES)
    assert all(np.array_equal(np.sort(epoch), np.arange(HOT, HOT + SAMPLES)) for epoch in mine)
    assert trace.ids[::2].max() < HOT
    assert np.diff(trace.times) == pytest.approx(0.01)


def test_an_honest_order_is_known_an_epoch_ahead_from_the_middle_on():
    trace = interference.beside("order")
    (hint,) = trace.hints
    assert np.array_equal(hint.order, trace.ids[1::2])
    assert share_announced(trace) == 1
    assert hint.known_after(np.array([0, SAMPLES // 2 - 1, SAMPLES // 2, SAMPLES])).tolist() == [
        SAMPLES, SAMPLES, 2 * SAMPLES, 2 * SAMPLES,
    ]  # fmt: skip
    assert hint.known[-1] == EPOCHS * SAMPLES


def test_lies_are_found_by_the_reads():
    assert share_announced(interference.beside("false order")) < 0.15
    assert share_announced(interference.beside("few ids")) < 0.15
    order = interference.beside("few ids").hints[0].order
    assert (len(set(order.tolist())), len(order)) == (400, 6000)


def test_scores_are_posted_between_epochs_or_as_high_as_they_can_be():
    (hint,) = interference.beside("scores").hints
    assert (len(hint.order), hint.scores.shape) == (0, (EPOCHS - 1, SAMPLES))
    assert hint.scored_at.tolist() == [1 + 2 * SAMPLES * epoch for epoch in range(1, EPOCHS)]
    (hint,) = interference.beside("huge scores").hints
    assert np.isfinite(hint.scores).all()
    assert (hint.scores[0] > 1e38).sum() == 350
    assert set(hint.order.tolist()) == set(range(HOT, HOT + 350))
    assert interference.beside("nothing").hints == ()


@pytest.mark.parametrize("epochs", [False, True])
def test_a_killed_job_has_announced_more_than_it_reads(epochs):
    trace = interference.after_a_kill(epochs=epochs)
    jobs = trace.job_of_reads()
    read = int((jobs == 1).sum())
    assert read == 3.5 * SAMPLES
    assert (jobs[read:] == NO_JOB).all()
    assert trace.hints[0].known_after(np.array([read])) > read + SAMPLES
    if epochs:
        assert sorted(trace.ids[read : read + 800].tolist()) == list(range(800))
