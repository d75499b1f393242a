import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.policy.base import PageColumns
from shadeproxy.policy.registry import POLICIES, get_policy


def test_names_find_their_policies():
    assert set(POLICIES) == {"default", "lru", "lfu", "fifo", "random", "static", "importance", "shade"}
    assert all(get_policy(name).name == name for name in POLICIES)
    assert {name for name, policy in POLICIES.items() if policy.admits_always} == {
        "lru",
        "lfu",
        "fifo",
        "random",
    }
    assert {name for name, policy in POLICIES.items() if policy.weighs} == {"importance", "shade"}


@pytest.mark.parametrize("name", POLICIES)
def test_only_a_policy_that_says_so_looks_at_hints_and_history(name):
    """A policy that does not ask for hints and read history never uses their columns. For such a policy,
    callers do not compute these columns.
    """
    columns = PageColumns(
        next_use=np.array([np.inf, np.inf]),
        rate=np.array([0.1, 0.1]),
        weight=np.array([np.nan, np.nan]),
        last_use=np.array([7.0, 8.0]),
        admitted=np.array([1.0, 2.0]),
        uses=np.array([3.0, 1.0]),
        size_bytes=np.array([10.0, 20.0]),
        draw=np.array([0.2, 0.3]),
        tick=9.0,
    )
    policy = get_policy(name)
    told = {
        "looks_ahead": columns._replace(next_use=np.array([3.0, 4.0])),
        "learns": columns._replace(rate=np.array([0.2, 0.3])),
        "weighs": columns._replace(weight=np.array([0.5, 2.0])),
    }
    for flag, other in told.items():
        assert np.array_equal(policy.key(other), policy.key(columns)) != getattr(policy, flag)
    assert policy.looks_ahead == policy.learns == (name == "default")


def test_unknown_name_lists_the_names():
    with pytest.raises(ConfigError, match="no policy is called 'lur'; choose one of default, lru, lfu"):
        get_policy("lur")
