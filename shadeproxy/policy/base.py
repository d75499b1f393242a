"""The seam around eviction: what a policy sees and what it answers.

A policy is one function ``key(columns) -> f64[n]``; the page with the *largest* key leaves first. The
caller builds the columns (a random sample of residents plus the newcomer) and applies the rule that is
the same for all policies: a newcomer is stored only when its key is strictly smaller than its victims'
(design 6.5).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


class PageColumns(NamedTuple):
    """Facts on n pages, one f64 array of shape (n,) each; times are ticks (demand reads of the proxy).

    next_use_s: seconds until the earliest announced use over all jobs; inf where none is announced.
    weight: importance of the page, where the mean sample of the data set has 1, and a page of several
    samples what they have together; nan where unknown.
    last_use: tick of the last demand read (for a newcomer: now). admitted: tick of admission.
    uses: demand reads since admission, the first included. size_bytes: body length.
    idle_after: ticks without a use after which the page counts as dead; inf where not known.
    draw: uniform random in [0, 1), one per page and call.
    tick: now.
    """

    next_use_s: Column
    weight: Column
    last_use: Column
    admitted: Column
    uses: Column
    size_bytes: Column
    idle_after: Column
    draw: Column
    tick: float


EvictionKey = Callable[[PageColumns], Column]


@dataclass(frozen=True, slots=True)
class Policy:
    """A named policy.

    ``admits_always``: a newcomer displaces the victim whatever its own key (LRU, FIFO, LFU, random).
    ``staging_share``: what the share of a tier begins with that is run by recency for newcomers that
    did not win a place (design 6.5); 0 switches staging off. ``looks_ahead``: ``key`` depends on
    ``next_use_s``; a caller may give the others inf instead of computing it.
    """

    name: str
    key: EvictionKey
    admits_always: bool = False
    staging_share: float = 0.0
    looks_ahead: bool = False
