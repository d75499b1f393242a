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
    assert {name for name, policy in POLICIES.items() if policy.staging_share} == {"default"}


@pytest.mark.parametrize("name", POLICIES)
def test_only_a_policy_that_says_so_looks_at_what_is_announced(name):
    """Callers spare the others its computation."""
    columns = PageColumns(
        next_use_s=np.array([np.inf, np.inf]),
        weight=np.array([0.5, np.nan]),
        last_use=np.array([7.0, 8.0]),
        admitted=np.array([1.0, 2.0]),
        uses=np.array([3.0, 1.0]),
        size_bytes=np.array([10.0, 20.0]),
        idle_after=np.array([np.inf, np.inf]),
        draw=np.array([0.2, 0.3]),
        tick=9.0,
    )
    policy = get_policy(name)
    told = columns._replace(next_use_s=np.array([3.0, 4.0]))
    assert policy.looks_ahead == (name == "default")
    assert np.array_equal(policy.key(told), policy.key(columns)) != policy.looks_ahead


def test_unknown_name_lists_the_names():
    with pytest.raises(ConfigError, match="no policy is called 'lur'; choose one of default, lru, lfu"):
        get_policy("lur")
