"""Features of pages: the columns by which a policy ranks residents and candidates.

Laws: plain defs; nothing is decided here. The time to the next read of a prefix's pages is learnt from
batches of demand reads: one call for a few hundred costs little more than a call for one.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.residents import Residents, Slots
from shadeproxy.engine.placement.candidates import AdmissionCandidates
from shadeproxy.hints.order.upcoming import NextUses
from shadeproxy.policy.base import Column, PageColumns
from shadeproxy.policy.reuse import ReuseEstimator

_OBSERVATIONS_PER_BATCH = 256


class WeightSource(Protocol):
    """Importance by page: f64[n], 1 being a mean sample, nan where unknown."""

    def weights_of(self, object_hashes: NDArray[np.uint64], numbers: NDArray[np.uint32]) -> Column: ...


class PageFeatures:
    """Features of pages, from ``residents``, ``weights``, ``next_uses`` and observed reads."""

    def __init__(
        self, residents: Residents, weights: WeightSource, next_uses: NextUses, rng: np.random.Generator
    ) -> None:
        self._residents = residents
        self._weights = weights
        self._next_uses = next_uses
        self._rng = rng
        self._reuse = ReuseEstimator()
        self._observed: list[tuple[int, float, float]] = []
        self._abandoned_at: dict[
            tuple[str, float], float
        ] = {}  # the tick when found, by job and its last sign of life

    def observe(self, group: int, tick: float, distance: float) -> None:
        """Note a demand read of a page that was read ``distance`` ticks before; nan: not known."""
        self._observed.append((group, tick, distance))
        if len(self._observed) >= _OBSERVATIONS_PER_BATCH:
            self.learn()

    def observe_many(self, groups: NDArray[np.int32], ticks: Column, distances: Column) -> None:
        """Note demand reads as ``observe`` does, oldest first."""
        # Learn in the order of the reads: reuse seen before the first read would look like quick reuse.
        self.learn()
        self._reuse.observe(groups, ticks, distances)

    def learn(self) -> None:
        """Pass the observed reads to the estimator."""
        if not self._observed:
            return
        groups, ticks, distances = zip(*self._observed, strict=True)
        self._observed.clear()
        self._reuse.observe(groups, ticks, distances)

    def idle_after(self, groups: NDArray[np.int32]) -> Column:
        """See ``ReuseEstimator.idle_after``."""
        return self._reuse.idle_after(groups)

    def of(self, slots: Slots, tick: float) -> PageColumns:
        """Return the features of pages that have a slot."""
        table = self._residents
        # Use the same array for both, so that its objects are looked up once.
        hashes, last_use = table.object_hash[slots], table.last_use[slots]
        idle_after = self._reuse.idle_after(table.group[slots])
        if self._next_uses.abandoned:
            idle_after = np.where(self._are_abandoned(hashes, last_use, tick), 0.0, idle_after)
        return PageColumns(
            next_use_s=self._next_uses.next_use_s(hashes, table.number[slots]),
            weight=self._weights.weights_of(hashes, table.number[slots]),
            last_use=last_use,
            admitted=table.admitted[slots],
            uses=table.uses[slots].astype(np.float64),
            size_bytes=table.record_bytes[slots].astype(np.float64),
            idle_after=idle_after,
            draw=self._rng.random(len(slots)),
            tick=tick,
        )

    def of_candidates(self, candidates: AdmissionCandidates, tick: float) -> PageColumns:
        """Return the features of pages without a slot, as if they were read now."""
        count = len(candidates.object_hash)
        now = np.full(count, tick)
        return PageColumns(
            next_use_s=self._next_uses.next_use_s(candidates.object_hash, candidates.number),
            weight=self._weights.weights_of(candidates.object_hash, candidates.number),
            last_use=now,
            admitted=now,
            uses=np.ones(count),
            size_bytes=candidates.record_bytes.astype(np.float64),
            idle_after=np.full(count, np.inf),
            draw=self._rng.random(count),
            tick=tick,
        )

    def _are_abandoned(self, hashes: NDArray[np.uint64], last_use: Column, tick: float) -> NDArray[np.bool_]:
        """Return which pages are of datasets whose jobs are gone, and were not read since."""
        abandoned = self._next_uses.abandoned
        known = self._abandoned_at
        self._abandoned_at = {
            (one.job, one.since_s): known.get((one.job, one.since_s), tick) for one in abandoned
        }
        found = np.zeros(len(hashes), dtype=np.bool_)
        for one, at in zip(abandoned, self._abandoned_at.values(), strict=True):
            found |= one.holds(hashes) & (last_use <= at)
        return found
