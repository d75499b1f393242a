"""Read history of a page: the few numbers from which the time to its next read is predicted.

Pure functions on columns; time is ticks (demand reads of the proxy). A page that was read once has state 0.
The state of any other page combines how often it was read, the octave of its mean gap between reads, and
whether its last gap was shorter or longer than that mean (docs/adr/0027).
"""

from math import frexp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.base import Column

GAP_OCTAVES = 20
_RATIOS = 3  # The last gap is far shorter than the mean gap, about equal, or longer.
_COUNTS = 3  # The page was read twice, 3 to 4 times, or 5 times and more.
STATES = 1 + _COUNTS * GAP_OCTAVES * _RATIOS
AGE_BINS = 40
"""Number of age bins. Each is half an octave of the ticks since the last read."""

EDGES: Column = np.append(0.0, 2.0 ** (np.arange(1, AGE_BINS + 1) / 2))
"""Bounds of the age bins in ticks: f64[AGE_BINS + 1]."""

MOST_READS = 9
"""Reads are counted up to this number, so the mean gap reflects about the last eight gaps."""

_SHORT, _LONG = 1 / 8, 2.0
_EXPONENT_BIAS, _MANTISSA_BITS = 1023, 52


class History(NamedTuple):
    """Read history of one page. ``last``: tick of its latest read; ``gap``: mean gap in ticks, 0 after one
    read; ``reads``: at most ``MOST_READS``.
    """

    last: float
    gap: float
    reads: int
    state: int


class Histories(NamedTuple):
    """Read histories of n pages: columns of shape (n,), as in ``History``."""

    last: Column
    gap: Column
    reads: NDArray[np.intp]
    state: NDArray[np.intp]

    def at(self, places: NDArray[np.intp] | NDArray[np.bool_]) -> "Histories":
        """Return the histories of the pages at ``places``."""
        return Histories(self.last[places], self.gap[places], self.reads[places], self.state[places])


def first_read(tick: float) -> History:
    """Return the history of a page that was read for the first time."""
    return History(tick, 0.0, 1, 0)


def read_again(before: History, tick: float) -> History:
    """Return the history after one more read."""
    distance, reads = tick - before.last, min(before.reads + 1, MOST_READS)
    if before.reads == 1:
        return History(tick, distance, reads, _state(reads, distance, 1))
    ratio = 0 if distance < _SHORT * before.gap else 2 if distance > _LONG * before.gap else 1
    gap = before.gap + (distance - before.gap) / (reads - 1)
    return History(tick, gap, reads, _state(reads, gap, ratio))


def _state(reads: int, gap: float, ratio: int) -> int:
    count = 0 if reads == 2 else 1 if reads <= 4 else 2
    octave = min(max(frexp(gap)[1] - 1, 0), GAP_OCTAVES - 1)
    return 1 + (count * GAP_OCTAVES + octave) * _RATIOS + ratio


def read_again_many(
    reads: NDArray[np.intp], gaps: Column, distances: Column
) -> tuple[NDArray[np.intp], Column, NDArray[np.intp]]:
    """Return the counts of reads, mean gaps and states of pages after one more read, as ``read_again`` does.

    reads: counts before that read, at least 1. distances: ticks since the last read. All of shape (n,).
    """
    more = np.minimum(reads + 1, MOST_READS)
    first = reads == 1
    gap = np.where(first, distances, gaps + (distances - gaps) / (more - 1))
    ratio = np.where(distances < _SHORT * gaps, 0, np.where(distances > _LONG * gaps, 2, 1))
    count = np.where(more == 2, 0, np.where(more <= 4, 1, 2))
    octave = np.clip(np.frexp(gap)[1] - 1, 0, GAP_OCTAVES - 1)
    return more, gap, 1 + (count * GAP_OCTAVES + octave) * _RATIOS + np.where(first, 1, ratio)


def told_by_uses(uses: Column, last_use: Column, admitted: Column) -> Histories:
    """Return approximate read histories, made from the number of uses since admission. Columns have shape
    (n,), times are in ticks.
    """
    reads = np.clip(uses, 0, 2).astype(np.intp)
    span = np.maximum(last_use - admitted, 1.0)
    gap = np.where(reads == 2, span / np.maximum(uses - 1, 1), 0.0)
    _, _, states = read_again_many(np.ones(len(gap), dtype=np.intp), np.zeros(len(gap)), gap)
    return Histories(last_use, gap, reads, np.where(reads == 2, states, 0))


def age_bins(ages: Column) -> NDArray[np.intp]:
    """Return the bin of each age. A bin is half an octave, so the binary exponent of the age's square is the
    number of the bin.
    """
    squares: Column = np.maximum(ages * ages, 1.0)
    bins: NDArray[np.intp] = (squares.view(np.int64) >> _MANTISSA_BITS) - _EXPONENT_BIAS
    return np.minimum(bins, AGE_BINS - 1)


def age_bin(age: float) -> int:
    """Return the bin of one age, as ``age_bins`` does."""
    return min(max(frexp(age * age)[1] - 1, 0), AGE_BINS - 1)


def gap_group(states: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the gap group of each state. Pages that were read once have no gap between reads, and are group
    0. All others are grouped by their mean gap: three octaves are one group.
    """
    octave = (states - 1) // _RATIOS % GAP_OCTAVES
    return np.where(states == 0, 0, 1 + octave // 3)


GAP_GROUPS = 1 + (GAP_OCTAVES + 2) // 3


def pooled_state(states: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return each state without its count of reads: a coarser state from 0 to POOLED_STATES - 1."""
    return np.where(states == 0, 0, 1 + (states - 1) % (GAP_OCTAVES * _RATIOS))


POOLED_STATES = 1 + GAP_OCTAVES * _RATIOS
