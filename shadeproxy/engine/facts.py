"""What is known of pages, as the columns that a policy ranks them by: residents, and pages in no tier.

Laws: plain defs; nothing is decided here. How soon pages of a prefix are read again is learnt from batches of
demand reads: one call for a few hundred costs little more than a call for one.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.knowledge.upcoming import NextUses
from shadeproxy.engine.newcomers import Newcomers
from shadeproxy.engine.residents import Residents, Slots
from shadeproxy.policy.base import Column, PageColumns
from shadeproxy.policy.reuse import ReuseEstimator

_OBSERVATIONS_PER_BATCH = 256


class WeightSource(Protocol):
    """Importance by page: f64[n], 1 being a mean sample, nan where unknown."""

    def weights_of(self, object_hashes: NDArray[np.uint64], numbers: NDArray[np.uint32]) -> Column: ...


class Facts:
    """Of the pages of ``residents`` and of others, by ``weights``, ``next_uses`` and what was observed."""

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
        ] = {}  # the tick, by job and when it was last heard of

    def observe(self, group: int, tick: float, distance: float) -> None:
        """A demand read of a page that was read ``distance`` ticks before; nan: it is not known."""
        self._observed.append((group, tick, distance))
        if len(self._observed) >= _OBSERVATIONS_PER_BATCH:
            self.learn()

    def observe_many(self, groups: NDArray[np.int32], ticks: Column, distances: Column) -> None:
        """As ``observe``, oldest first."""
        # In the order of the reads: reuse before anything was seen to be read would look like quick reuse.
        self.learn()
        self._reuse.observe(groups, ticks, distances)

    def learn(self) -> None:
        """Take in what was observed."""
        if not self._observed:
            return
        groups, ticks, distances = zip(*self._observed, strict=True)
        self._observed.clear()
        self._reuse.observe(groups, ticks, distances)

    def idle_after(self, groups: NDArray[np.int32]) -> Column:
        """See ``ReuseEstimator.idle_after``."""
        return self._reuse.idle_after(groups)

    def of(self, slots: Slots, tick: float) -> PageColumns:
        """Of pages that have a slot."""
        table = self._residents
        # The same array for both, whose objects are then found once.
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

    def of_newcomers(self, newcomers: Newcomers, tick: float) -> PageColumns:
        """Of pages that have none, were they read now."""
        count = len(newcomers.object_hash)
        now = np.full(count, tick)
        return PageColumns(
            next_use_s=self._next_uses.next_use_s(newcomers.object_hash, newcomers.number),
            weight=self._weights.weights_of(newcomers.object_hash, newcomers.number),
            last_use=now,
            admitted=now,
            uses=np.ones(count),
            size_bytes=newcomers.record_bytes.astype(np.float64),
            idle_after=np.full(count, np.inf),
            draw=self._rng.random(count),
            tick=tick,
        )

    def _are_abandoned(self, hashes: NDArray[np.uint64], last_use: Column, tick: float) -> NDArray[np.bool_]:
        """Which pages are of data sets whose jobs are gone, and were read by nobody since."""
        abandoned = self._next_uses.abandoned
        known = self._abandoned_at
        self._abandoned_at = {
            (one.job, one.since_s): known.get((one.job, one.since_s), tick) for one in abandoned
        }
        found = np.zeros(len(hashes), dtype=np.bool_)
        for one, at in zip(abandoned, self._abandoned_at.values(), strict=True):
            found |= one.holds(hashes) & (last_use <= at)
        return found
