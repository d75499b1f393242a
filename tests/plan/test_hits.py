"""Predicted hit ratios of caches that were not measured, compared with the simulator's."""

import pytest

from shadeproxy.plan.hits import sample_objects, simulated_hits, uniform_hits
from shadeproxy.simulate.workloads import importance, uniform


@pytest.mark.parametrize("policy", ["default", "lru"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_uniform_epochs_in_closed_form_equal_the_simulation(policy, share):
    simulated = simulated_hits(uniform(2000, 6), policy)
    assert uniform_hits(policy)(share, False) == pytest.approx(simulated(share, False), abs=0.01)


def test_all_or_nothing_in_the_cache():
    for policy in ("default", "lru"):
        assert uniform_hits(policy)(0.0, False) == 0.0
        assert uniform_hits(policy)(1.0, True) == 1.0
    assert simulated_hits(uniform(100, 3), "default")(0.0, False) == 0.0


def test_an_announced_order_keeps_more_of_importance_draws():
    ratio = simulated_hits(importance(2000, 6), "default")
    assert ratio(0.2, True) > ratio(0.2, False) + 0.1


def test_a_sample_of_the_objects_has_the_hit_ratio_of_all():
    trace = importance(10_000, 4)
    sampled = sample_objects(trace, 5000)
    assert len(sampled.ids) == pytest.approx(5000, rel=0.1)
    assert sampled.ids.max() < sampled.objects == pytest.approx(1250, rel=0.1)
    assert simulated_hits(sampled, "default")(0.2, False) == pytest.approx(
        simulated_hits(trace, "default")(0.2, False), abs=0.02
    )
