"""The rule that is the same for all policies: it chooses victims, and refuses newcomers that beat none.

Pure: the caller draws the sample of residents, leaves out pages that may not be evicted (pinned pages, writes
in flight), and carries the decision out.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.base import PageColumns, Policy

_NOBODY: NDArray[np.intp] = np.empty(0, dtype=np.intp)


def admission_bar(policy: Policy, newcomer: PageColumns) -> float:
    """Return the key above which pages may be evicted for ``newcomer`` (columns of shape (1,))."""
    return -np.inf if policy.admits_always else float(policy.key(newcomer)[0]) * (1 + policy.margin)


def choose_victims(
    policy: Policy, residents: PageColumns, newcomer: PageColumns, need_bytes: float
) -> NDArray[np.intp] | None:
    """Return ``choose_beaten`` for the newcomer with these columns, of shape (1,)."""
    return choose_beaten(policy, residents, admission_bar(policy, newcomer), need_bytes)


def choose_beaten(
    policy: Policy, residents: PageColumns, bar: float, need_bytes: float
) -> NDArray[np.intp] | None:
    """Return the ``residents`` (indices) to evict, largest key first, to free ``need_bytes`` or more.

    ``bar``: the newcomer's key. None: do not store the newcomer and evict nothing, because it does not beat
    (strictly smaller key) every page that would have to leave, or because all residents together are too
    small. Equal keys leave in the order of the columns. Deterministic.
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
