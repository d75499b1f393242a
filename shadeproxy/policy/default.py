"""The default policy: evict the page whose next read is expected last (docs/adr/0027).

The time to the next read is in ticks (demand reads of the proxy) for all pages. Where a job announced its use
of a page, the time of that read is known. Otherwise the rate of reads is estimated, from the scores by which
a job draws samples, or from reads of pages with a similar history. All pages are thus compared by one number,
whether their readers announce an order, only report scores, or say nothing.
"""

from functools import partial
from typing import Literal

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy

Objective = Literal["bytes", "requests"]

# Without a margin, rounding errors let pages with equal keys evict each other. That costs 4 points of hit
# ratio in uniform epochs.
_MARGIN = 0.01


def next_use_key(columns: PageColumns, *, objective: Objective) -> Column:
    """Return the expected ticks to the next read (bytes x ticks for "requests"): f64 of shape (n,), finite.

    The value is the mean time to the earlier of two events: the announced use, and a read that comes at the
    constant ``rate``.
    """
    key: Column = -np.expm1(-columns.rate * columns.next_use) / columns.rate
    return key * columns.size_bytes if objective == "requests" else key


def default_policy(objective: Objective = "bytes") -> Policy:
    """Return the default policy for the fewest origin bytes, or for the fewest origin requests."""
    key = partial(next_use_key, objective=objective)
    return Policy("default", key, margin=_MARGIN, looks_ahead=True, learns=True)
