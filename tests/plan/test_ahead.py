"""Hits that samples lying ready at the beginning of an epoch cost; measured ones are in docs/studies/plan."""

import pytest

from shadeproxy.plan.ahead import fetched_ahead

# 1,000 samples, of which training computes 200 a second, and a latency of 100 ms: 20 samples are needed while
# one fetch is under way, and fetches begin 60 samples ahead.
USUAL = {
    "reads": 1000, "hit_ratio": 0.5, "announced_at": 0.5, "compute_s": 0.005, "batch_s": 0.05, "link_s": 0.0,
    "latency_s": 0.1, "lanes": 4, "reach": 100, "cache_samples": 500,
}  # fmt: skip


def lost(**fields):
    return fetched_ahead(**(USUAL | fields)).lost


def test_samples_that_left_the_cache_before_the_next_order_came_are_lost_at_its_beginning():
    # 400 samples are read after it is known, and 388 of those in the cache have been read: the rest of the
    # 500 wait for their readers. They are cached up to 112 = (400 + 500) / 8 samples ahead.
    missing = 1 - (400 + 500 - 105) / 1000
    furthest = 500 / (1 - missing)
    assert lost() == pytest.approx(furthest / 8 * missing)
    # A further origin needs more samples ahead than an eighth of the furthest sample that is cached.
    missing = 1 - (400 + 500 - 85) / 1000
    assert lost(latency_s=0.2) == pytest.approx(120 * missing)


def test_an_order_that_is_known_early_costs_nothing():
    assert lost(announced_at=0.0) == 0.0
    assert lost(announced_at=0.5, reach=0) < lost() < lost(reach=200)


def test_no_more_than_a_quarter_of_the_cache_lies_ready():
    assert lost(hit_ratio=0.1, cache_samples=100) == pytest.approx(25)


def test_a_cache_that_holds_everything_loses_nothing():
    assert lost(hit_ratio=1.0, cache_samples=2000) == 0.0
    assert lost(hit_ratio=0.8, cache_samples=800, reach=0) == 0.0


def test_fetches_that_come_late_have_come_in_part_when_training_ends():
    # The cache holds 8 samples that lie ready, and 18 are needed while one fetch is under way.
    tiny = {"hit_ratio": 0.1, "cache_samples": 32}
    assert lost(**tiny) == pytest.approx(8 * 0.05 / 0.1)
    assert lost(**tiny, batch_s=1.0) == pytest.approx(8)
    # 12 workers read as many themselves as are lacking: training does not wait, and all 8 have come.
    assert lost(**tiny, lanes=12) == pytest.approx(8)


@pytest.mark.parametrize("none", [{"link_s": 0.02}, {"hit_ratio": 0.0, "cache_samples": 0}, {"reads": 0}])
def test_a_full_link_and_no_cache_lose_nothing(none):
    assert lost(**none) == 0.0


def test_a_loader_without_latency_or_computing_is_no_division_by_zero():
    assert lost(latency_s=0.0) >= 0.0
    assert fetched_ahead(**(USUAL | {"compute_s": 0.0, "latency_s": 0.0, "cache_samples": 4})).lost >= 0.0
