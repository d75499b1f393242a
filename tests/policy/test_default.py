"""The key of the default policy is the expected number of ticks to the next read, in one unit for all
pages.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.policy.base import PageColumns
from shadeproxy.policy.default import default_policy
from shadeproxy.policy.hazard import LEAST_RATE
from shadeproxy.policy.select import admission_bar

INF = np.inf


def columns(next_use, rate, sizes=None):
    count = len(next_use)
    zeros = np.zeros(count)
    return PageColumns(
        next_use=np.array(next_use, float),
        rate=np.array(rate, float),
        weight=np.full(count, np.nan),
        last_use=zeros,
        admitted=zeros,
        uses=zeros,
        size_bytes=np.ones(count) if sizes is None else np.array(sizes, float),
        draw=zeros,
        tick=0.0,
    )


def keys(next_use, rate, objective="bytes", sizes=None):
    return default_policy(objective).key(columns(next_use, rate, sizes))


def test_the_unit_is_ticks_for_announced_and_for_learnt_pages():
    announced, learnt = keys([500.0, INF], [LEAST_RATE, 1 / 500])
    assert announced == pytest.approx(500.0)
    assert learnt == pytest.approx(500.0)


def test_a_page_that_comes_either_way_comes_sooner_than_by_each():
    both, announced, learnt = keys([500.0, 500.0, INF], [1 / 500, LEAST_RATE, 1 / 500])
    assert both < min(announced, learnt)
    assert both == pytest.approx(500 * (1 - np.exp(-1)))


def test_requests_count_bytes_too():
    small, large = keys([100.0, 100.0], [LEAST_RATE] * 2, "requests", [10, 1000])
    assert large == pytest.approx(100 * small)


def test_a_newcomer_that_is_as_good_as_its_victim_stays_out():
    policy, one = default_policy(), columns([INF], [1 / 300])
    assert policy.key(one)[0] < admission_bar(policy, one)


@given(
    st.lists(
        st.tuples(st.one_of(st.just(INF), st.just(0.0), st.floats(1 / 32, 1e15)), st.floats(LEAST_RATE, 1e3)),
        min_size=1,
    ),
    st.sampled_from(["bytes", "requests"]),
)
def test_keys_are_finite_and_fall_with_sooner_uses(pages, objective):
    next_use, rate = np.array(pages).T
    found = keys(next_use, rate, objective)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (keys(next_use / 2, rate, objective) <= found).all()
    assert (keys(next_use, rate * 2, objective) <= found * (1 + 1e-9)).all()
