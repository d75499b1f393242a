import pytest

from shadeproxy.core.errors import ConfigError
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


def test_unknown_name_lists_the_names():
    with pytest.raises(ConfigError, match="no policy is called 'lur'; choose one of default, lru, lfu"):
        get_policy("lur")
