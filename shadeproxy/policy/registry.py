"""The policies by name: one table for configuration, `simulate` and tests."""

from collections.abc import Mapping
from types import MappingProxyType

from shadeproxy.core.errors import ConfigError
from shadeproxy.policy.base import Policy
from shadeproxy.policy.classic import FIFO, LFU, LRU, RANDOM, STATIC
from shadeproxy.policy.default import Objective, default_policy
from shadeproxy.policy.importance import IMPORTANCE, SHADE

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {policy.name: policy for policy in (default_policy(), LRU, LFU, FIFO, RANDOM, STATIC, IMPORTANCE, SHADE)}
)


def get_policy(name: str, objective: Objective = "bytes") -> Policy:
    """Return the policy called ``name``; ``objective`` matters for "default" only.

    Raises ConfigError that lists the names.
    """
    if name not in POLICIES:
        raise ConfigError(f"policy.name: no policy is called {name!r}; choose one of {', '.join(POLICIES)}")
    return default_policy(objective) if name == "default" else POLICIES[name]
