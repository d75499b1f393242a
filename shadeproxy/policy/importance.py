"""Policies that know only the importance of a sample.

``importance`` evicts the page of the lowest weight. ``shade`` repeats the public code of SHADE (FAST'23),
with its faults, and exists for comparison.
"""

import numpy as np

from shadeproxy.policy.base import Column, PageColumns, Policy

_LEAST_WEIGHT = 1e-9
_MOST_WEIGHT = 1e9
_TIE = 1e-7
"""Smaller than the difference of any two unequal weights. SHADE's weights follow from the rank of a sample in
its batch, and in a batch of 65,536 they differ by 1e-6.
"""


def inverse_weight(weight: Column) -> Column:
    """Return ``1 / w``, with the mean (1) for an unknown weight; finite and positive for any input.

    A weight outside [1e-9, 1e9] counts as the nearest bound, so weights of 0, below 0 and inf are allowed.
    """
    known = np.where(np.isnan(weight), 1.0, weight)
    # This takes half the time of ``clip``, and it runs for every choice of a victim.
    bounded: Column = np.minimum(np.maximum(known, _LEAST_WEIGHT), _MOST_WEIGHT)
    return 1 / bounded


def importance_key(columns: PageColumns) -> Column:
    """Evict the page of the lowest weight; a page of unknown weight counts with the mean weight."""
    return inverse_weight(columns.weight)


def shade_key(columns: PageColumns) -> Column:
    """Evict the page of the lowest weight, and among equal weights the page with the fewest uses.

    A sample without a score weighs 0, and a candidate has one use. So a full cache admits no sample that was
    never scored, as in the published code.
    """
    weights = inverse_weight(np.where(np.isnan(columns.weight), 0.0, columns.weight))
    return weights * (1 + _TIE / np.maximum(columns.uses, 1.0))


IMPORTANCE = Policy("importance", importance_key, weighs=True)
SHADE = Policy("shade", shade_key, weighs=True)
