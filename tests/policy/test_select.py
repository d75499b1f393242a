"""``choose_victims``: the rule that all policies share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.policy.base import PageColumns
from shadeproxy.policy.default import default_policy
from shadeproxy.policy.hazard import LEAST_RATE
from shadeproxy.policy.registry import POLICIES
from shadeproxy.policy.select import choose_victims

EVERY_POLICY = [*POLICIES.values(), default_policy("requests")]
AWKWARD = [0.0, -1.0, 1e-300, 1e-9, 1.0, 1e9, 1e300, np.inf, np.nan]


@st.composite
def columns(draw, count):
    def column(elements):
        return np.array(draw(st.lists(elements, min_size=count, max_size=count)), dtype=float)

    tick = draw(st.integers(1, 10**9))
    past = st.integers(0, tick).map(float)
    return PageColumns(
        next_use=column(st.one_of(st.just(np.inf), st.floats(0, 1e15))),
        rate=column(st.one_of(st.just(LEAST_RATE), st.floats(LEAST_RATE, 1e6))),
        weight=column(st.one_of(st.sampled_from(AWKWARD), st.floats(0, 100))),
        last_use=column(past),
        admitted=column(past),
        uses=column(st.integers(1, 10**6).map(float)),
        size_bytes=column(st.integers(0, 2**40).map(float)),
        draw=column(st.floats(0, 1, exclude_max=True)),
        tick=float(tick),
    )


cases = st.integers(0, 12).flatmap(lambda count: st.tuples(columns(count), columns(1)))


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=lambda policy: policy.name)
@settings(max_examples=60)
@given(case=cases, need=st.floats(-10, 2**42))
def test_victims_free_enough_and_lose_to_the_newcomer(policy, case, need):
    residents, newcomer = case
    keys = policy.key(residents)
    assert np.isfinite(keys).all()
    chosen = choose_victims(policy, residents, newcomer, need)
    again = choose_victims(policy, residents, newcomer, need)
    assert (chosen is None) == (again is None)
    bar = policy.key(newcomer)[0] * (1 + policy.margin)
    beaten = keys > bar if not policy.admits_always else np.ones(len(keys), bool)
    if chosen is None:
        assert need > 0
        assert residents.size_bytes[beaten].sum() < need
        return
    assert np.array_equal(chosen, again)
    assert len(set(chosen.tolist())) == len(chosen)
    assert beaten[chosen].all()
    assert (np.diff(keys[chosen]) <= 0).all()
    if need <= 0:
        assert len(chosen) == 0
    else:
        assert residents.size_bytes[chosen].sum() >= need
        assert residents.size_bytes[chosen[:-1]].sum() < need
        stays = np.setdiff1d(np.arange(len(keys)), chosen)
        assert all(keys[stays] <= keys[chosen].min())


def pages(sizes, **facts):
    count = len(sizes)
    base = PageColumns(
        next_use=np.full(count, np.inf),
        rate=np.full(count, LEAST_RATE),
        weight=np.full(count, np.nan),
        last_use=np.zeros(count),
        admitted=np.zeros(count),
        uses=np.ones(count),
        size_bytes=np.array(sizes, dtype=float),
        draw=np.zeros(count),
        tick=100.0,
    )
    return base._replace(**{name: np.array(fact, dtype=float) for name, fact in facts.items()})


def chosen(policy, residents, newcomer, need):
    victims = choose_victims(
        POLICIES[policy] if isinstance(policy, str) else policy, residents, newcomer, need
    )
    return None if victims is None else victims.tolist()


def test_furthest_announced_use_leaves_and_a_further_newcomer_is_not_stored():
    residents = pages([10, 10, 10], next_use=[5, 50, 20])
    assert chosen("default", residents, pages([10], next_use=[7]), 10) == [1]
    assert chosen("default", residents, pages([10], next_use=[50]), 10) is None


def test_several_victims_leave_in_order_and_one_survivor_forbids_all():
    residents = pages([10, 10, 10], next_use=[5, 50, 20])
    assert chosen("default", residents, pages([20], next_use=[7]), 20) == [1, 2]
    assert chosen("default", residents, pages([30], next_use=[7]), 30) is None


def test_all_pages_are_ranked_in_one_unit():
    residents = pages(
        [1, 1, 1, 1], next_use=[400, np.inf, np.inf, 900], rate=[LEAST_RATE, 1 / 300, LEAST_RATE, 1 / 500]
    )
    assert chosen("default", residents, pages([4], next_use=[0]), 4) == [2, 3, 0, 1]


def test_unknown_weight_counts_as_the_mean():
    residents = pages([1, 1, 1], weight=[0.9, np.nan, 1.1])
    assert chosen("importance", residents, pages([3], weight=[9]), 3) == [0, 1, 2]


def test_residents_win_ties():
    assert chosen("default", pages([1, 1]), pages([1]), 1) is None
    assert chosen("default", pages([1], next_use=[3]), pages([1], next_use=[3]), 1) is None
    assert chosen("static", pages([1, 1]), pages([1]), 1) is None


def test_objective_requests_prefers_small_pages_and_bytes_does_not():
    residents = pages([100, 1], next_use=[10, 20])
    newcomer = pages([1], next_use=[1])
    assert chosen(default_policy("requests"), residents, newcomer, 1) == [0]
    assert chosen(default_policy("bytes"), residents, newcomer, 1) == [1]


def test_classic_orders():
    residents = pages([1, 1, 1], last_use=[3, 1, 2], admitted=[1, 3, 2], uses=[5, 5, 9], draw=[0.1, 0.2, 0.9])
    newcomer = pages([3], last_use=[100])
    assert chosen("lru", residents, newcomer, 3) == [1, 2, 0]
    assert chosen("fifo", residents, newcomer, 3) == [0, 2, 1]
    assert chosen("lfu", residents, newcomer, 3) == [1, 0, 2]
    assert chosen("random", residents, newcomer, 3) == [2, 1, 0]


def test_shade_as_published_admits_no_unseen_sample_and_importance_does():
    residents = pages([1, 1], weight=[0.2, 3])
    unseen = pages([1])
    assert chosen("shade", residents, unseen, 1) is None
    assert chosen("importance", residents, unseen, 1) == [0]
    assert chosen("shade", residents, pages([1], weight=[1]), 1) == [0]


def test_shade_as_published_evicts_of_equal_weights_the_one_used_least():
    residents = pages([1, 1, 1], weight=[2, 2, 3], uses=[5, 2, 1])
    assert chosen("shade", residents, pages([1], weight=[2.5]), 1) == [1]
    assert chosen("shade", residents, pages([1], weight=[2], uses=[2]), 1) is None


def test_nothing_is_evicted_when_there_is_room_or_nobody_to_evict():
    assert chosen("lru", pages([1]), pages([1]), 0) == []
    assert chosen("lru", pages([]), pages([1]), 1) is None
