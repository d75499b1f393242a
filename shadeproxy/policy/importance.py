"""Policies that know only the importance of a sample.

``importance`` is the middle band of the default policy alone. ``shade`` repeats the public code of SHADE
(FAST'23), faults included, and exists for comparison.
"""

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy

_LEAST_WEIGHT = 1e-9
_MOST_WEIGHT = 1e9
_TIE = 1e-7
"""Below any difference of two ranks' weights, which is 1e-6 in a batch of 65,536."""


def inverse_weight(weight: Column) -> Column:
    """Return ``1 / w``, with the mean (1) for an unknown weight; finite and positive for any input.

    Weights outside [1e-9, 1e9] rank as the nearest end: 0 and negative ones last, inf first.
    """
    known = np.where(np.isnan(weight), 1.0, weight)
    # This takes half the time of ``clip``, and it runs for every choice of a victim.
    bounded: Column = np.minimum(np.maximum(known, _LEAST_WEIGHT), _MOST_WEIGHT)
    return 1 / bounded


def importance_key(columns: PageColumns) -> Column:
    """Evict the least important page; a sample that was never scored counts as the mean."""
    return inverse_weight(columns.weight)


def shade_key(columns: PageColumns) -> Column:
    """Evict the page of lowest weight, of equal ones that with fewest uses; an unscored sample weighs 0.

    Hence, as published, a full cache admits no unseen sample. A newcomer has one use.
    """
    weights = inverse_weight(np.where(np.isnan(columns.weight), 0.0, columns.weight))
    return weights * (1 + _TIE / np.maximum(columns.uses, 1.0))


IMPORTANCE = Policy("importance", importance_key, weighs=True)
SHADE = Policy("shade", shade_key, weighs=True)
