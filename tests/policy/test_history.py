"""Read histories: counts, mean gaps, states and age bins, for one page at a time and for columns of pages."""

import numpy as np
import pytest

from shadeproxy.policy.history import (
    AGE_BINS,
    EDGES,
    MOST_READS,
    STATES,
    age_bin,
    age_bins,
    first_read,
    gap_group,
    pooled_state,
    read_again,
    read_again_many,
)


def after(ticks):
    history = first_read(ticks[0])
    for tick in ticks[1:]:
        history = read_again(history, tick)
    return history


def test_the_first_read_has_state_zero_and_no_gap():
    assert first_read(7.0) == (7.0, 0.0, 1, 0)


def test_the_mean_gap_is_exact_for_eight_gaps_and_then_remembers_the_latest():
    regular = after([10.0 * number for number in range(30)])
    assert (regular.gap, regular.reads) == (10.0, MOST_READS)
    slower = regular
    for number in range(1, 60):
        slower = read_again(slower, 290.0 + 1000.0 * number)
    assert slower.gap == pytest.approx(1000.0, rel=0.01)


def test_states_tell_counts_gaps_and_the_last_gap_apart():
    usual = after([0.0, 100.0, 200.0])
    assert len({usual.state, after([0.0, 100.0]).state, after([0.0, 400.0, 800.0]).state}) == 3
    soon, late = after([0.0, 128.0, 256.0, 257.0]), after([0.0, 70.0, 140.0, 400.0])
    assert len({soon.state % 3, late.state % 3, usual.state % 3}) == 3
    assert after([0.0, 2.0**40]).state < STATES


def test_columns_say_the_same_as_one_page_at_a_time():
    random = np.random.default_rng(1)
    histories = [
        after(np.cumsum(random.integers(1, 5000, random.integers(1, 12))).astype(float)) for _ in range(500)
    ]
    distances = random.integers(1, 100_000, 500).astype(float)
    one_by_one = [read_again(one, one.last + gap) for one, gap in zip(histories, distances, strict=True)]
    reads, means, states = read_again_many(
        np.array([one.reads for one in histories]), np.array([one.gap for one in histories]), distances
    )
    assert reads.tolist() == [one.reads for one in one_by_one]
    assert means == pytest.approx([one.gap for one in one_by_one])
    assert states.tolist() == [one.state for one in one_by_one]


def test_age_bins_are_half_octaves():
    ages = np.concatenate([np.arange(3000.0), 2.0 ** np.arange(5, 40)])
    bins = age_bins(ages)
    assert bins.tolist() == [age_bin(age) for age in ages.tolist()]
    inside = bins < AGE_BINS - 1
    assert (ages[inside] < EDGES[bins[inside] + 1] * (1 + 1e-12)).all()
    assert (ages[bins > 0] >= EDGES[bins[bins > 0]] * (1 - 1e-12)).all()


def test_every_state_has_a_gap_group_and_a_coarser_state():
    states = np.arange(STATES)
    assert gap_group(states)[0] == pooled_state(states)[0] == 0
    assert set(gap_group(states).tolist()) == set(range(8))
    assert set(pooled_state(states).tolist()) == set(range(61))
