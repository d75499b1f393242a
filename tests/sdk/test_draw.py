import math

import numpy as np
import pytest

from shadeproxy_sdk.draw import (
    RankShare,
    floor_part,
    importance_order,
    probabilities,
    read_first,
    shade_order,
    smooth,
)


def test_smoothing_starts_at_a_hundredth_and_follows_the_loss():
    assert smooth(2.0, None, None) == pytest.approx(0.02)
    assert smooth(1.0, 2.0, 0.02) == pytest.approx(0.02 * math.exp(-0.5))
    assert smooth(1e9, 2.0, 0.02) == pytest.approx(0.02 * math.e)


@pytest.mark.parametrize("loss", [0.0, -3.0, 1e12, 1e-12])
def test_smoothing_stays_bounded(loss):
    value = None
    for _ in range(50):
        value = smooth(loss, None if value is None else 1.0, value)
        assert 1e-6 <= value <= 10.0


def test_unknown_weights_count_as_the_mean_and_negative_ones_as_none():
    chances = probabilities(np.array([1.0, 3.0, np.nan, -5.0, 2.0], np.float32), 0.5)
    mean = (1.0 + 3.0 - 5.0 + 2.0) / 4
    assert chances == pytest.approx(
        np.array([1.5, 3.5, mean + 0.5, 0.5, 2.5]) / (1.5 + 3.5 + mean + 0.5 + 0.5 + 2.5)
    )


def skewed(samples):
    chances = np.arange(1, samples + 1, dtype=np.float64)
    return chances / chances.sum()


@pytest.mark.parametrize("coverage_epochs", [1, 3, 5])
@pytest.mark.parametrize("length", [50, 48, 52])
def test_any_run_of_coverage_epochs_reads_every_sample(coverage_epochs, length):
    chances = np.zeros(48)
    chances[7] = 1.0  # With these chances the draw alone would always read the same sample.
    epochs = [
        importance_order(chances, length, coverage_epochs=coverage_epochs, seed=3, epoch=epoch)[0]
        for epoch in range(3 * coverage_epochs)
    ]
    for start in range(2 * coverage_epochs):
        run = np.concatenate(epochs[start : start + coverage_epochs])
        assert np.unique(run).size == 48


@pytest.mark.parametrize("coverage_epochs", [2, 3, 5])
@pytest.mark.parametrize("read", [24, 40, 47])
def test_the_draws_that_are_left_out_at_the_end_belong_to_no_floor(coverage_epochs, read):
    chances = np.zeros(48)
    chances[7] = 1.0
    epochs = [
        importance_order(chances, 48, read=read, coverage_epochs=coverage_epochs, seed=3, epoch=epoch)[0]
        for epoch in range(3 * coverage_epochs)
    ]
    for start in range(2 * coverage_epochs):
        run = np.concatenate([order[:read] for order in epochs[start : start + coverage_epochs]])
        assert np.unique(run).size == 48


def test_the_correction_counts_only_the_draws_that_are_read():
    samples, read = 60, 40
    values = np.linspace(0.0, 1.0, samples) ** 2
    estimates = np.array(
        [
            ((values[order] * correction[order])[:read].mean(), correction[order][:read].mean())
            for seed in range(200)
            for order, correction in [
                importance_order(skewed(samples), 60, read=read, coverage_epochs=5, seed=seed, epoch=seed)
            ]
        ]
    )
    corrected, weight = estimates.mean(axis=0)
    error = estimates.std(axis=0) / math.sqrt(len(estimates))
    assert abs(corrected - values.mean()) < 4 * error[0]
    assert abs(weight - 1.0) < 4 * error[1]


def test_a_floor_that_is_longer_than_what_is_read_leaves_out_other_samples_in_each_epoch():
    orders = [
        importance_order(skewed(48), 48, read=40, coverage_epochs=1, seed=3, epoch=epoch)[0][:40]
        for epoch in range(8)
    ]
    assert all(np.unique(order).size == 40 for order in orders)
    assert np.unique(np.concatenate(orders)).size == 48


@pytest.mark.parametrize("read", [0, 20, 40, 48])
def test_a_uniform_epoch_reads_its_floor_too(read):
    shuffled = np.random.default_rng(1).permutation(48)
    part = floor_part(48, coverage_epochs=3, seed=3, epoch=4)
    order = read_first(shuffled, part, read)
    assert sorted(order.tolist()) == list(range(48))
    assert np.isin(order[:read], part).sum() == min(read, part.size)
    assert (order != shuffled).sum() <= 2 * np.isin(shuffled[read:], part).sum()


def test_no_draws_need_no_correction():
    order, correction = importance_order(skewed(48), 0, coverage_epochs=5, seed=3, epoch=1)
    assert (order.size, order.dtype) == (0, np.uint32)
    assert correction.tolist() == [1.0] * 48


def test_draws_follow_their_chances():
    samples, length = 40, 200_000
    chances = skewed(samples)
    order, correction = importance_order(chances, length, coverage_epochs=5, seed=11, epoch=2)
    part = samples // 5
    p = part / length / samples + (1 - part / length) * chances
    observed = np.bincount(order, minlength=samples)
    chi_square = float(((observed - length * p) ** 2 / (length * p)).sum())
    degrees = samples - 1
    assert abs(chi_square - degrees) < 4 * math.sqrt(2 * degrees)
    assert correction == pytest.approx(1 / (samples * p), rel=1e-5)


def test_corrected_mean_is_unbiased_and_the_raw_one_is_not():
    samples, length = 60, 60
    values = np.linspace(0.0, 1.0, samples) ** 2
    estimates = np.array(
        [
            (values[order].mean(), (values[order] * correction[order]).mean(), correction[order].mean())
            for seed in range(200)
            for order, correction in [
                importance_order(skewed(samples), length, coverage_epochs=5, seed=seed, epoch=seed)
            ]
        ]
    )
    raw, corrected, weight = estimates.mean(axis=0)
    error = estimates.std(axis=0) / math.sqrt(len(estimates))
    assert abs(corrected - values.mean()) < 4 * error[1]
    assert abs(weight - 1.0) < 4 * error[2]
    assert raw - values.mean() > 20 * error[0]


def test_correction_is_bounded_by_the_floors_share():
    chances = np.zeros(100)
    chances[0] = 1.0
    _, correction = importance_order(chances, 100, coverage_epochs=4, seed=0, epoch=0)
    assert correction.max() == pytest.approx(4.0)


def test_draw_depends_on_seed_and_epoch_alone():
    def draw(seed, epoch):
        return importance_order(skewed(50), 50, coverage_epochs=5, seed=seed, epoch=epoch)[0].tolist()

    assert draw(1, 2) == draw(1, 2)
    assert draw(1, 2) != draw(2, 2)
    assert draw(1, 2) != draw(1, 3)


def pads(resident, repeat, *, length=1000, samples=500, rank=0, ranks=1, frequent=True):
    share = RankShare(rank, ranks, length)
    order = shade_order(skewed(samples), resident, share, repeat=repeat, frequent=frequent, seed=5, epoch=1)
    assert order.shape == (length // ranks,)
    assert order.dtype == np.uint32
    return order


def test_pads_repeats_the_share_of_cached_draws_and_leaves_out_misses():
    resident = np.zeros(500, np.bool_)
    resident[::4] = True
    share = [resident[pads(resident, repeat)].mean() for repeat in (1, 2, 3, 4)]
    assert share[0] == pytest.approx(1 / 4, abs=0.03)
    assert share[1:3] == [2 * share[0], 3 * share[0]]
    assert share[3] == min(4 * share[0], 1)


def test_shades_draws_hit_as_published_at_a_quarter_cached_and_three_times_repeated():
    """Mode "shade" hits as published: a quarter is cached, and each cached draw is repeated three times. In
    batches of 64, the most important quarter of the ranks gets 28.7 % of the draws. Three times this share is
    86 %.
    """
    samples = 6400
    weights = np.log(np.tile(np.arange(64), samples // 64) + 10.0)
    resident = weights >= np.quantile(weights, 0.75)
    chances = weights / weights.sum()
    share = RankShare(0, 1, samples)
    order = shade_order(chances, resident, share, repeat=3, frequent=True, seed=0, epoch=1)
    assert resident[order].mean() == pytest.approx(0.86, abs=0.04)
    assert np.unique(order).size < 0.35 * samples


def test_pads_reads_what_is_cached_first():
    resident = np.zeros(500, np.bool_)
    resident[::4] = True
    hits = resident[pads(resident, 2)]
    assert hits[: hits.sum()].all()


def test_one_of_several_ranks_reads_what_it_draws_most_often_or_its_turns():
    nothing = np.zeros(500, np.bool_)
    first, second = (pads(nothing, 1, rank=rank, ranks=2) for rank in (0, 1))
    turns = pads(nothing, 1, ranks=2, frequent=False)
    assert np.bincount(first).max() > np.bincount(turns).max() >= 1
    assert np.unique(first).size < np.unique(turns).size
    assert sorted(first.tolist()) != sorted(second.tolist())
    plain = pads(nothing, 1, frequent=False)
    assert set(first.tolist()) <= set(plain.tolist())


@pytest.mark.parametrize("cached", [False, True])
def test_pads_with_nothing_or_everything_cached_is_the_plain_draw(cached):
    plain = pads(np.zeros(500, np.bool_), 1)
    order = pads(np.full(500, cached), 1)
    assert sorted(order.tolist()) == sorted(plain.tolist())


def test_an_unseen_sample_may_weigh_one_instead_of_the_mean():
    chances = probabilities(np.array([3.0, np.nan, 5.0], np.float32), 0.0, unknown=1.0)
    assert chances == pytest.approx([3 / 9, 1 / 9, 5 / 9])
