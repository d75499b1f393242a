"""Chooses victims for a candidate, or refuses the candidate. The rule is the same for all policies.

Pure functions: the caller draws the sample of residents, leaves out pages that may not be evicted (pinned
pages, pages being written), and carries the decision out.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.base import PageColumns, Policy

_NOBODY: NDArray[np.intp] = np.empty(0, dtype=np.intp)


def admission_bar(policy: Policy, newcomer: PageColumns) -> float:
    """Return the key above which pages may be evicted for the candidate ``newcomer``, columns of
    shape (1,).
    """
    return -np.inf if policy.admits_always else float(policy.key(newcomer)[0]) * (1 + policy.margin)


def choose_victims(
    policy: Policy, residents: PageColumns, newcomer: PageColumns, need_bytes: float
) -> NDArray[np.intp] | None:
    """Return the result of ``choose_beaten`` for the candidate ``newcomer``, columns of shape (1,)."""
    return choose_beaten(policy, residents, admission_bar(policy, newcomer), need_bytes)


def choose_beaten(
    policy: Policy, residents: PageColumns, bar: float, need_bytes: float
) -> NDArray[np.intp] | None:
    """Return the indices of the ``residents`` to evict, largest key first, to free ``need_bytes`` or more.

    Only pages whose key is larger than ``bar`` (``admission_bar``) may be evicted. Return None if these pages
    together have too few bytes: then the candidate is not stored, and nothing is evicted. Among equal keys
    the page that is first in the columns is evicted first.
    """
    if need_bytes <= 0:
        return _NOBODY
    if residents.size_bytes.size == 0:
        return None
    keys = policy.key(residents)
    worst = int(keys.argmax())
    if keys[worst] <= bar:
        return None
    if residents.size_bytes[worst] >= need_bytes:
        return np.array([worst], dtype=np.intp)
    order = np.flatnonzero(keys > bar)
    order = order[np.argsort(-keys[order], kind="stable")]
    freed = np.cumsum(residents.size_bytes[order])
    if freed[-1] < need_bytes:
        return None
    return order[: int(np.searchsorted(freed, need_bytes)) + 1]
