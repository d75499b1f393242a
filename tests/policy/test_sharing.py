"""Needs of jobs that fit, the shares of the other jobs, and the weights that rise while a need is missed. The
expected values are the cases of the design.
"""

import math
from collections import defaultdict

import numpy as np
import pytest

from shadeproxy.hints.order.activity import JobActivity
from shadeproxy.policy.registry import get_policy
from shadeproxy.policy.sharing import (
    Demands,
    Room,
    first_weight,
    is_behind,
    least_of_others,
    link_weights,
    most_for,
    next_weights,
    solve,
    trains_behind,
)
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import Trace

NONE = math.nan


def demands(*rows):
    """Return demands from rows of (rate, need, sample_bytes, samples)."""
    rates, needs, sizes, samples = np.array(rows, float).T
    return Demands(rates, needs, sizes, sizes * samples)


FOUR = demands(
    (400, 400 / 1.1, 100_000, 4000),
    (200, NONE, 100_000, 12_000),
    (150, 150 / 1.3, 100_000, 2000),
    (600, NONE, 100_000, 16_000),
)
ROOM = 0.2 * 34_000 * 100_000


@pytest.mark.parametrize(("link", "others"), [(55e6, 1.40), (70e6, 1.10)])
def test_needs_come_first_and_the_others_are_slowed_down_alike(link, others):
    shares = solve(FOUR, Room(link, ROOM))
    assert shares.fits
    assert 1 / shares.others == pytest.approx(others, abs=0.01)
    assert shares.rate[[0, 2]] == pytest.approx([400 / 1.1, 150 / 1.3])
    assert shares.rate[[1, 3]] == pytest.approx([200 * shares.others, 600 * shares.others])


def test_a_need_that_the_link_cannot_carry_does_not_fit():
    asked = demands((400, 400, 100_000, 10_000), (100, NONE, 100_000, 10_000))
    assert not solve(asked, Room(30e6, 0)).fits


def test_a_need_that_leaves_the_others_less_than_half_of_their_share_does_not_fit():
    def fits(need):
        asked = demands((100, need, 1000, 1000), (100, NONE, 1000, 1000))
        return solve(asked, Room(100_000, 0)).fits

    assert fits(74.9)
    assert not fits(75.1)


def test_the_most_that_a_job_may_ask_for_fits_and_a_little_more_does_not():
    asked = demands((100, NONE, 1000, 1000), (100, NONE, 1000, 1000))
    room = Room(100_000, 0)
    most = most_for(asked, 0, least_of_others(asked, room), room)
    assert most == pytest.approx(75.0)
    alone = demands((100, 100, 1000, 1000))
    room = Room(40_000, 500_000)
    assert most_for(alone, 0, least_of_others(alone, room), room) == pytest.approx(80.0)


def test_a_weight_rises_while_the_need_is_missed_and_falls_slowly_after():
    got, weights = np.array([300.0, 1.0, 150.0, 1.0]), np.array([2.0, 1.0, 2.0, 1.0])
    moved = next_weights(weights, got, FOUR)
    assert moved == pytest.approx([2.3, 1.0, 1.96, 1.0])
    for _ in range(300):
        moved = next_weights(moved, np.array([1e9] * 4), FOUR)
    assert moved == pytest.approx(1.0)


@pytest.mark.parametrize("claims", [1, 2, 10, 256])
def test_all_weights_together_multiply_to_eight_at_most(claims):
    asked = demands(*[(100, 100, 1000, 1000)] * claims)
    weights = np.full(claims, first_weight(claims))
    for _ in range(100):
        weights = next_weights(weights, np.zeros(claims), asked)
    assert weights.prod() == pytest.approx(8.0)
    assert weights.max() == pytest.approx(weights.min())


def test_what_needs_leave_of_the_link_goes_by_measured_misses():
    misses = np.array([10_000.0, 80_000.0, 0.0, 90_000.0])
    weights = link_weights(FOUR, misses)
    assert weights[[1, 3]] == pytest.approx([200 * 80_000, 600 * 90_000])
    # Jobs that are not behind their needs get little weight, and all of them the same.
    assert weights[[0, 2]] == pytest.approx(0.3 * weights[[1, 3]].mean())


def test_jobs_that_all_have_needs_share_by_what_these_take():
    asked = demands((100, 50, 1000, 1000), (100, 20, 1000, 1000))
    assert link_weights(asked, np.array([1000.0, 500.0])) == pytest.approx([50_000, 10_000])


def test_no_job_is_left_without_any_weight():
    weights = link_weights(FOUR, np.array([0.0, 1.0, 0.0, 90_000.0]))
    assert weights.min() >= 0.01 * weights.max()


@pytest.mark.parametrize(
    ("reads", "elapsed_s", "expected"),
    [(0, 0.0, True), (77, 0.0, True), (79, 0.0, False), (1117, 10.0, True), (1119, 10.0, False)],
)
def test_a_job_is_behind_until_its_reads_are_a_margin_ahead(reads, elapsed_s, expected):
    assert is_behind(reads, elapsed_s, 100.0) is expected


@pytest.mark.parametrize(("samples", "expected"), [(1039, True), (1040, False)])
def test_training_is_behind_until_it_is_4_percent_ahead(samples, expected):
    assert trains_behind(samples, 10.0, 100.0) is expected


def test_jobs_of_which_nothing_is_known_do_no_harm():
    asked = demands((0, NONE, 0, 0), (100, 50, 1000, 1e15))
    assert solve(asked, Room(0.0, 1e6)).fits is False
    assert (link_weights(asked, np.zeros(2)) > 0).all()


@pytest.mark.parametrize("claims", [1, 10])
def test_claims_leave_a_client_without_a_job_its_hits(claims, monkeypatch):
    """Jobs with needs leave a client without a job its hits. Ten jobs announce everything, beside a client
    that reads a hot set. ``claims`` of the jobs have needs, and the highest weight that so many needs can
    give.
    """
    random, jobs, samples, hot, epochs = np.random.default_rng(0), 10, 100, 50, 6
    columns = [random.integers(0, hot, samples * epochs)]
    for job in range(jobs):
        order = np.concatenate([random.permutation(samples) for _ in range(epochs)])
        columns.append(hot + job * samples + order)
    ids = np.stack(columns, axis=1).ravel().astype(np.uint32)
    whose = np.tile(np.arange(jobs + 1, dtype=np.uint8), samples * epochs)
    trace = Trace(
        ids,
        hot + jobs * samples,
        jobs=whose,
        stock=(0,),
        epochs=np.repeat(np.arange(epochs), samples * (jobs + 1)).astype(np.uint16),
    )
    weighted = iter([8.0 ** (1 / claims)] * claims + [1.0] * jobs)
    weights = defaultdict(lambda: next(weighted))
    scale = JobActivity.scale
    monkeypatch.setattr(JobActivity, "scale", lambda self, **k: scale(self, **k, weight=weights[id(self)]))

    def hits(policy, announce):
        found = Replay(trace, get_policy(policy), 100, announce=parse_announce(announce)).run()
        return found[whose == 0][2 * samples :].mean()

    assert hits("default", "all") >= hits("lru", "none") - 0.02
