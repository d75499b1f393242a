"""Features of pages: the columns by which a policy ranks resident pages and admission candidates.

Laws: plain defs. This module decides nothing. It computes weights and next uses only if the policy looks at
them.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.residents import Residents, Slots
from shadeproxy.engine.placement.candidates import AdmissionCandidates
from shadeproxy.engine.placement.histories import PageHistories
from shadeproxy.hints.order.upcoming import NextUses
from shadeproxy.policy.base import Column, PageColumns, Policy, constant
from shadeproxy.policy.hazard import LEAST_RATE

_ONE_USE, _NO_USE, _NO_RATE, _NO_WEIGHT = constant(1.0), constant(np.inf), constant(0.0), constant(np.nan)


class WeightSource(Protocol):
    """Source of the weights of pages, f64[n]: 1 for a page of mean importance, nan if unknown."""

    def weights_of(self, object_hashes: NDArray[np.uint64], numbers: NDArray[np.uint32]) -> Column: ...


class PageFeatures:
    """Computes the features that ``policy`` looks at, from the other parameters."""

    def __init__(
        self,
        residents: Residents,
        policy: Policy,
        *,
        weights: WeightSource,
        next_uses: NextUses,
        histories: PageHistories,
        rng: np.random.Generator,
    ) -> None:
        self._residents = residents
        self._policy = policy
        self._weights = weights
        self._next_uses = next_uses
        self._histories = histories
        self._rng = rng

    def of(self, slots: Slots, tick: float, *, displacing: int = 0) -> PageColumns:
        """Return the features of pages that have a slot.

        ``displacing``: how many pages, at the beginning of ``slots``, are candidates for the places of other
        pages. Storing a page has a price, which is subtracted from the learnt rates of these candidates.
        """
        rows = self._residents.rows(slots)
        learnt = _NO_RATE(len(slots))
        if self._policy.learns:
            learnt = self._histories.rates(slots, tick, displacing=displacing)
        return self._columns(
            rows["object_hash"],
            rows["number"],
            learnt,
            last_use=rows["last_use"],
            admitted=rows["admitted"],
            uses=rows["uses"].astype(np.float64),
            size_bytes=rows["record_bytes"].astype(np.float64),
            tick=tick,
        )

    def of_candidates(self, candidates: AdmissionCandidates, tick: float) -> PageColumns:
        """Return the features of pages without a slot, as if each were read now for the first time."""
        count = len(candidates.object_hash)
        now, learnt = np.empty(count), _NO_RATE(count)
        now.fill(tick)
        if self._policy.learns:
            learnt = self._histories.rates_of(candidates.object_hash, candidates.number, tick)
        return self._columns(
            candidates.object_hash,
            candidates.number,
            learnt,
            last_use=now,
            admitted=now,
            uses=_ONE_USE(count),
            size_bytes=candidates.record_bytes.astype(np.float64),
            tick=tick,
        )

    def _columns(
        self,
        object_hashes: NDArray[np.uint64],
        numbers: NDArray[np.uint32],
        learnt: Column,
        *,
        last_use: Column,
        admitted: Column,
        uses: Column,
        size_bytes: Column,
        tick: float,
    ) -> PageColumns:
        count, policy = len(object_hashes), self._policy
        if not policy.looks_ahead:
            next_use, rate = _NO_USE(count), learnt
        else:
            # Pass the same array of hashes to both calls, so that objects are looked up only once.
            next_use, draws = self._next_uses.expect(object_hashes, numbers, tick)
            rate = np.maximum(learnt + draws, LEAST_RATE)
        weighs = policy.weighs
        return PageColumns(
            next_use=next_use,
            rate=rate,
            weight=self._weights.weights_of(object_hashes, numbers) if weighs else _NO_WEIGHT(count),
            last_use=last_use,
            admitted=admitted,
            uses=uses,
            size_bytes=size_bytes,
            draw=self._rng.random(count),
            tick=tick,
        )
