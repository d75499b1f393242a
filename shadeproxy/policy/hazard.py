"""Learnt hazards: how likely a page of some state and age is read in the next tick.

Pure functions. Evidence is a table of events (reads) and exposure (ticks waited) by state and age bin. A
hazard is events divided by exposure. Where evidence is thin, the hazard of a coarser class is mixed in. Pages
are ranked by the Gittins index of their state and age. For one waiting time, that is the probability of a
read within it, divided by the mean ticks that the page holds its place meanwhile. The index is the largest
such value over all waiting times (docs/adr/0027). For an admission candidate, the price of storing it is
first subtracted from the probability (docs/adr/0041).
"""

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy import kernels
from shadeproxy.policy.base import Column
from shadeproxy.policy.history import (
    AGE_BINS,
    EDGES,
    GAP_GROUPS,
    POOLED_STATES,
    STATES,
    age_bins,
    gap_group,
    pooled_state,
)

Table = NDArray[np.float64]
Index = NDArray[np.intp]

_MEMORY = 100.0  # Events that a cell remembers. Old evidence fades as new evidence comes, not with time.
_PRIOR = 5.0  # Number of events at which a cell counts as much as its coarser class.
_WIDTHS: Column = np.diff(EDGES)
# Least ticks of exposure for each read. So a hazard predicts reads of at most 98 % of pages within a bin.
_LEAST_WAIT = _WIDTHS / 4
_SURPRISE_EVENTS = 64.0
_LEAST_EXPECTED = 8.0
_SURPRISED = 0.5
# Lower limits of the factor of ``_surprise``, by gap group. Without them, a mere pause would count as the end
# of all reads. Pages that were read once have a higher limit. The first pages of a new dataset are such
# pages, and until its second epoch they look like those of a scan (docs/adr/0027).
_FLOORS: Column = np.where(np.arange(GAP_GROUPS) == 0, 0.25, 0.15)
_EARLY_STORE, _STORE = 0.05, 0.25
"""Prices of storing a page, in hits: of a page that was read once or twice, and of any other page. At 0.25
for all pages, the pages of a new dataset would replace those of the last dataset too slowly in its first
epoch.
"""

_ALL_STATES: Index = np.arange(STATES)
_POOLED: Index = pooled_state(_ALL_STATES)
_GROUPS: Index = gap_group(_ALL_STATES)
# The states below POOLED_STATES are those of one read and of two.
_PRICES: Column = np.where(_ALL_STATES < POOLED_STATES, _EARLY_STORE, _STORE)
LEAST_RATE = 1e-18
"""Reads per tick of a page without a known reader. The value is not 0, so that keys stay finite."""

_UNLEARNT_RATE = 1e-12
"""Reads per tick of a page that was read, as long as nothing is learnt. The value exceeds ``LEAST_RATE``, so
that such a page is kept before a page without reads.
"""


class Waits(NamedTuple):
    """Pages that were not read from age ``since`` to age ``until``, in ticks. Columns of shape (n,)."""

    prefixes: Index
    states: Index
    since: Column
    until: Column


@dataclass(slots=True)
class Evidence:
    """Evidence of P prefixes. events, exposure: f64[P * STATES, AGE_BINS], reads and ticks waited.

    met: f64[P * GAP_GROUPS], reads that came. expected: reads that the table promised for the same time. The
    two are compared by ``_surprise``. fresh: reads since ``met`` and ``expected`` began to count.
    """

    events: Table
    exposure: Table
    met: Column
    expected: Column
    fresh: Column

    @classmethod
    def empty(cls, prefixes: int) -> Self:
        """Return evidence of no reads and no waits."""
        rows, groups = prefixes * STATES, prefixes * GAP_GROUPS
        return cls(
            np.zeros((rows, AGE_BINS)), np.zeros((rows, AGE_BINS)), np.zeros(groups), np.zeros(groups),
            np.zeros(groups),
        )  # fmt: skip

    @property
    def prefixes(self) -> int:
        """Number of prefixes; each has its own rows."""
        return len(self.events) // STATES

    def grown(self, prefixes: int) -> "Evidence":
        """Return a copy with empty rows added, so that it has ``prefixes`` prefixes."""
        more = Evidence.empty(prefixes - self.prefixes)
        columns = ((getattr(self, one.name), getattr(more, one.name)) for one in fields(self))
        return Evidence(*map(np.concatenate, columns))

    def add(self, other: "Evidence") -> None:
        """Add ``other`` to this evidence. Both have the same number of prefixes."""
        for one in fields(self):
            mine: Table = getattr(self, one.name)
            mine += getattr(other, one.name)

    def sum(self, other: "Evidence") -> "Evidence":
        """Return the sum of this evidence and ``other``. Both have the same number of prefixes."""
        total = self.grown(self.prefixes)
        total.add(other)
        return total

    def meet(self, prefixes: Index, states: Index, ages: Column) -> None:
        """Add one read for each page. ``ages``: the pages' ages when they were read; all of shape (n,)."""
        np.add.at(self.events, (prefixes * STATES + states, age_bins(ages)), 1.0)
        groups = prefixes * GAP_GROUPS + gap_group(states)
        np.add.at(self.met, groups, 1.0)
        np.add.at(self.fresh, groups, 1.0)

    def expose(self, waits: Waits, hazards: "Hazards") -> None:
        """Add the ticks that pages waited, and the reads that ``hazards`` promised for them."""
        prefixes, states, since, until = waits
        if kernels.COMPILED:
            kernels.expose(self.exposure, self.expected, hazards.hazards, *waits)
            return
        rows = prefixes * STATES + states
        bins, last, cells = age_bins(since), age_bins(until), rows * AGE_BINS
        flat, start = self.exposure.ravel(), since
        # Most pages wait within one bin. The loop goes on with the few that reach the next bin.
        while len(bins):
            stop = np.where(bins < last, EDGES[bins + 1], until)
            np.add.at(flat, cells + bins, stop - start)
            on = np.flatnonzero(bins < last)
            bins, last, cells, start, until = bins[on] + 1, last[on], cells[on], stop[on], until[on]
        promised = hazards.hazards.take(rows * AGE_BINS + age_bins(since)) * (waits.until - since)
        np.add.at(self.expected, prefixes * GAP_GROUPS + gap_group(states), promised)


@dataclass(frozen=True, slots=True)
class Hazards:
    """The learnt table: three columns of shape (P * STATES * AGE_BINS,), all in reads per tick. rates: those
    by which resident pages are ranked. candidates: those by which admission candidates are ranked. hazards:
    those that were observed.
    """

    rates: Column
    candidates: Column
    hazards: Column

    @classmethod
    def unknown(cls, prefixes: int) -> Self:
        """Return the table before anything is learnt: all pages have the same rate."""
        rates = np.full(prefixes * STATES * AGE_BINS, _UNLEARNT_RATE)
        return cls(rates, rates, rates)


def learn(evidence: Evidence) -> Hazards:
    """Compute the table from ``evidence``. Also scale down, in place, each cell of ``evidence`` with more
    than ``_MEMORY`` events, so that later evidence counts for more.
    """
    surprise = _surprise(evidence)
    hazards = _hazards(evidence.events, evidence.exposure)
    full = evidence.events + evidence.exposure * hazards / 2
    kept = np.minimum(_MEMORY / np.maximum(full, _MEMORY), 1.0)
    evidence.events *= kept
    evidence.exposure *= kept
    factors = surprise.reshape(evidence.prefixes, GAP_GROUPS)[:, _GROUPS].reshape(-1, 1)
    prices = np.tile(_PRICES, evidence.prefixes)
    # Rows without evidence take the hazards of a coarser class, so many rows are equal. Each different row is
    # computed once.
    rows = np.column_stack([prices, hazards])
    _, firsts, inverse = np.unique(_fingerprint(rows), return_index=True, return_inverse=True)
    rates, candidates = (
        (table[inverse] * factors).ravel() for table in gittins(hazards[firsts], prices[firsts])
    )
    return Hazards(rates, candidates, hazards.ravel())


def _fingerprint(rows: Table) -> NDArray[np.void]:
    """Return each row as one value, so that equal rows can be found."""
    return rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()


def _surprise(evidence: Evidence) -> Column:
    """Return, for each gap group, the factor by which the learnt rates of its pages are multiplied. It is 1,
    or less where far fewer reads came than the table promised. Also scale down old counts, in place.
    """
    few = evidence.fresh < _SURPRISE_EVENTS
    evidence.met[few] = evidence.expected[few] = _SURPRISE_EVENTS / 2
    met, expected = evidence.met, evidence.expected
    surprised = (expected > _LEAST_EXPECTED) & (met < _SURPRISED * expected)
    floors = np.tile(_FLOORS, evidence.prefixes)
    factor = np.where(surprised, np.maximum((met + 1) / (expected + 1), floors), 1.0)
    scale = np.minimum(_SURPRISE_EVENTS / np.maximum(met + expected, _SURPRISE_EVENTS), 1.0)
    evidence.met *= scale
    evidence.expected *= scale
    return factor


def _hazards(events: Table, exposure: Table) -> Table:
    """Return reads per tick: f64[P * STATES, AGE_BINS]. There are four classes, from fine to coarse: the
    state in its prefix, the state over all prefixes, the state without its count of reads, and all pages of
    that age. Each class takes the next coarser one as its prior.
    """
    prefixes = len(events) // STATES
    # A page that is always read at the lower bound of a bin adds reads to the bin, but no exposure.
    exposure = np.maximum(exposure, events * _LEAST_WAIT)
    by_state, waited = (column.reshape(prefixes, STATES, AGE_BINS).sum(0) for column in (events, exposure))
    total, total_waited = by_state.sum(0), waited.sum(0)
    known, rate = np.empty(AGE_BINS), float((1 + total.sum()) / (1 + total_waited.sum()))
    ages = zip(total.tolist(), total_waited.tolist(), strict=True)
    for age, (read, ticks) in enumerate(ages):  # An age without evidence takes the rate of the age before it.
        rate = known[age] = _estimate_one(read, ticks, rate)
    coarse = _estimate(_pool(by_state), _pool(waited), known)[_POOLED]
    coarse[0] = known
    if prefixes > 1:
        coarse = _estimate(by_state, waited, coarse)
    return _estimate(events, exposure, np.tile(coarse, (prefixes, 1)))


def _pool(by_state: Table) -> Table:
    """Return the sums over the states of each pooled state: f64[POOLED_STATES, AGE_BINS]."""
    repeated = by_state[1:].reshape(-1, POOLED_STATES - 1, AGE_BINS)
    return np.concatenate([by_state[:1], repeated.sum(0)])


def _estimate(events: Table, exposure: Table, prior: Table) -> Table:
    """Return events over exposure. The fewer events there are, the closer the result is to ``prior``. Without
    events it is at most ``prior``.
    """
    waited = np.maximum(exposure, 1e-9)
    weight = events / (events + _PRIOR)
    rate = weight * events / waited + (1 - weight) * np.minimum(prior, _PRIOR / waited)
    return np.where(exposure > 0, rate, prior)


def _estimate_one(events: float, exposure: float, prior: float) -> float:
    """Return the result of ``_estimate`` for one number, at a tenth of the cost."""
    if exposure <= 0:
        return prior
    waited = max(exposure, 1e-9)
    weight = events / (events + _PRIOR)
    return weight * events / waited + (1 - weight) * min(prior, _PRIOR / waited)


def gittins(hazards: Table, prices: Column) -> tuple[Table, Table]:
    """Return the Gittins index at the start of each age bin, in reads per tick: the largest value over all
    waiting times tau of P(read within tau) / E[min(time to read, tau)]. Also return the index for admission
    candidates, with P - price in place of P. That is 0 if the reads do not repay the price of storing a page.

    ``hazards``: f64[n, AGE_BINS], constant within a bin. ``prices``: f64[n].
    """
    expected = hazards * _WIDTHS
    survives = np.exp(-expected)
    held = np.where(expected > 1e-9, (1 - survives) / np.maximum(hazards, 1e-300), _WIDTHS)
    best, repaid = np.empty((2, *hazards.shape))
    if kernels.COMPILED:
        kernels.gittins(survives, held, prices, best, repaid)
    else:
        _gittins(survives, held, prices, best, repaid)
    return best + LEAST_RATE, np.maximum(repaid, 0.0) + LEAST_RATE


def _gittins(survives: Table, held: Table, prices: Column, best: Table, repaid: Table) -> None:
    for age in range(AGE_BINS):
        alive = np.cumprod(survives[:, age:], axis=1)
        before = np.concatenate([np.ones((len(prices), 1)), alive[:, :-1]], axis=1)
        waited, read = np.cumsum(before * held[:, age:], axis=1), 1 - alive
        best[:, age] = (read / waited).max(axis=1)
        repaid[:, age] = ((read - prices[:, None]) / waited).max(axis=1)
