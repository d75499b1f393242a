"""The hits that are lost because samples lie ready at the beginning of an epoch. Measured values are in
docs/studies/plan.
"""

import pytest

from shadeproxy.plan.ahead import fetched_ahead

# There are 1,000 samples. Training computes 200 a second, and the latency is 100 ms. So 20 samples are needed
# during one fetch, and fetches begin 60 samples ahead.
USUAL = {
    "reads": 1000, "hit_ratio": 0.5, "announced_at": 0.5, "compute_s": 0.005, "batch_s": 0.05, "link_s": 0.0,
    "latency_s": 0.1, "lanes": 4, "reach": 100, "cache_samples": 500,
}  # fmt: skip


def lost(**fields):
    return fetched_ahead(**(USUAL | fields)).lost


def test_samples_that_left_the_cache_before_the_next_order_came_are_lost_at_its_beginning():
    # When the next order is known, 400 samples are still to be read. At most 125 cached samples, a quarter of
    # the cache, may be fetched ahead. Of these, 20 are on their way, and 105 wait for their readers. The
    # cache lacks the samples that are neither still to be read nor kept.
    missing = 1 - (400 + 500 - 105) / 1000
    furthest = 500 / (1 - missing)
    assert lost() == pytest.approx(furthest / 8 * missing)
    # With a more distant origin, training needs more samples ahead than an eighth of the furthest cached one.
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
    # The cache has room for 8 samples that lie ready, and training needs 18 during one fetch.
    tiny = {"hit_ratio": 0.1, "cache_samples": 32}
    assert lost(**tiny) == pytest.approx(8 * 0.05 / 0.1)
    assert lost(**tiny, batch_s=1.0) == pytest.approx(8)
    # 12 workers read the missing samples themselves. So training does not wait, and all 8 fetches have ended.
    assert lost(**tiny, lanes=12) == pytest.approx(8)


@pytest.mark.parametrize("none", [{"link_s": 0.02}, {"hit_ratio": 0.0, "cache_samples": 0}, {"reads": 0}])
def test_a_full_link_and_no_cache_lose_nothing(none):
    assert lost(**none) == 0.0


def test_a_loader_without_latency_or_computing_is_no_division_by_zero():
    assert lost(latency_s=0.0) >= 0.0
    assert fetched_ahead(**(USUAL | {"compute_s": 0.0, "latency_s": 0.0, "cache_samples": 4})).lost >= 0.0
