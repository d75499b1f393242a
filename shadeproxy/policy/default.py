"""The default policy: evict the page whose next read is furthest, in one unit for all pages (docs/adr/0027).

The unit is ticks (demand reads of the proxy). An announced use is known; without one the rate of reads is
expected from scores (a draw) or learnt from how such pages were read. Every page has one number, so jobs that
announce, jobs that only score and clients that say nothing share a cache by what a place brings.
"""

from functools import partial
from typing import Literal

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy

Objective = Literal["bytes", "requests"]

CANDIDATE_FACTOR = 1.1
"""Factor on the learnt time to the next read of a page that is not resident: a doubtful gain is no gain."""

_MARGIN = 0.01  # without it rounding errors alone displace equal pages: 4 points on uniform epochs


def next_use_key(columns: PageColumns, *, objective: Objective) -> Column:
    """Return the expected ticks to the next read (bytes x ticks for "requests"): f64 of shape (n,), finite.

    It is the mean of the earlier of two events: the announced use, and one that comes at a constant rate.
    """
    key: Column = -np.expm1(-columns.rate * columns.next_use) / columns.rate
    return key * columns.size_bytes if objective == "requests" else key


def default_policy(objective: Objective = "bytes") -> Policy:
    """Return the default policy for the fewest origin bytes, or for the fewest origin requests."""
    key = partial(next_use_key, objective=objective)
    return Policy("default", key, margin=_MARGIN, looks_ahead=True, learns=True)
