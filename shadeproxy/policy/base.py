"""Port of eviction: the columns that a policy gets, and the keys that it returns.

A policy is one function ``key(columns) -> f64[n]``. The page with the *largest* key is evicted first. The
caller builds the columns of the candidate (the page that asks for a place) and of a random sample of resident
pages. All policies share one rule (select.py): a candidate is stored only if the keys of its victims exceed
its own key by more than the policy's ``margin``, or if the policy ``admits_always``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

_SHORT = 4096


def constant(value: float) -> Callable[[int], Column]:
    """Return a function of ``count`` that returns a column with ``value`` in each of ``count`` rows. Callers
    may not write to the column. Up to 4,096 rows cost a tenth of ``np.full``.
    """
    short = np.full(_SHORT, value)
    short.flags.writeable = False
    return lambda count: short[:count] if count <= _SHORT else np.full(count, value)


class PageColumns(NamedTuple):
    """Features of n pages, one f64 array of shape (n,) each; times are ticks (demand reads of the proxy).

    - next_use: ticks until the earliest announced use by any job; inf where no use is announced. The ticks
      until a job's use are divided by the job's weight (1 to 32) and by the trust in its order, so one tick
      may become 1/32.
    - rate: expected reads per tick that no job announced; greater than 0. It is estimated from reads of pages
      with a similar history, and from the scores of jobs that announce no order.
    - weight: importance of the page, 1 for the mean sample of the dataset; for a page of several samples the
      sum of theirs; nan where unknown.
    - last_use: tick of the last demand read (for a candidate: now). admitted: tick of admission.
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

    ``admits_always``: a candidate displaces its victim whatever the candidate's own key is (LRU, FIFO, LFU,
    random). ``margin``: share by which a victim's key must exceed the candidate's. ``looks_ahead``: ``key``
    depends on ``next_use``. ``learns``: ``key`` depends on ``rate``. ``weighs``: ``key`` depends on
    ``weight``. A caller need not compute a column on which the policy does not depend.
    """

    name: str
    key: EvictionKey
    admits_always: bool = False
    margin: float = 0.0
    looks_ahead: bool = False
    learns: bool = False
    weighs: bool = False
