"""Port of eviction: the columns that a policy gets, and the keys that it returns.

A policy is one function ``key(columns) -> f64[n]``; the page with the *largest* key is evicted first. The
caller builds the columns (a random sample of residents plus the newcomer) and applies the rule that is the
same for all policies: a newcomer is stored only when its key is strictly smaller than its victims' (design
6.5).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


class PageColumns(NamedTuple):
    """Features of n pages, one f64 array of shape (n,) each; times are ticks (demand reads of the proxy).

    - next_use: ticks until the earliest announced use over all jobs, as far as they are believed; inf where
      none is announced. A read of the job of the largest weight is 1/32 away at least.
    - rate: expected reads per tick beside the announced ones: learnt from reads of such pages, and from the
      draws of jobs that did not announce; greater than 0.
    - weight: importance of the page, 1 for the mean sample of the dataset; for a page of several samples
      the sum of theirs; nan where unknown.
    - last_use: tick of the last demand read (for a newcomer: now). admitted: tick of admission.
    - uses: demand reads since admission, the first included. size_bytes: body length.
    - draw: uniform random in [0, 1), one per page and call.
    - tick: now.
    """

    next_use: Column
    rate: Column
    weight: Column
    last_use: Column
    admitted: Column
    uses: Column
    size_bytes: Column
    draw: Column
    tick: float


EvictionKey = Callable[[PageColumns], Column]


@dataclass(frozen=True, slots=True)
class Policy:
    """A named policy.

    ``admits_always``: a newcomer displaces the victim whatever its own key (LRU, FIFO, LFU, random).
    ``margin``: share by which a victim's key must exceed a newcomer's. ``looks_ahead``: ``key`` depends on
    ``next_use``, ``learns``: on ``rate``, ``weighs``: on ``weight``; for other policies a caller need not
    compute them.
    """

    name: str
    key: EvictionKey
    admits_always: bool = False
    margin: float = 0.0
    looks_ahead: bool = False
    learns: bool = False
    weighs: bool = False
