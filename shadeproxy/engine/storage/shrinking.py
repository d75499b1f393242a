"""Evicts pages from a tier that holds more than its limit, because other files take space of its medium.

Laws: the pages that the policy ranks worst leave first. As few pages as possible are evicted, and none while
the free space cannot be measured. Pinned pages stay. The tier measures the space, and this module decides by
the last measurement. Tiers may share a medium, so only one tier evicts at a time, and all of them measure
again before the next one does. Each step on the event loop takes a few milliseconds.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement.eviction_pool import EvictionPool, draw_to_rank
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.recovery import Recovery
from shadeproxy.engine.storage.transfers import Transfers

_log = structlog.get_logger(__name__)
_EVERY_S = 1.0


class Shrinking:
    """Keeps all tiers of ``media`` within their limits. Use it on the event loop only."""

    def __init__(
        self,
        residents: Residents,
        media: Sequence[Medium],
        placement: Placement,
        transfers: Transfers,
        *,
        recovery: Recovery,
        rng: np.random.Generator,
    ) -> None:
        self._residents = residents
        self._media = media
        self._placement = placement
        self._transfers = transfers
        self._recovery = recovery
        self._rng = rng
        self._first = 0  # The tier that may evict first.
        self._resting = False
        self._task: asyncio.Task[None] | None = None

    def start(self, clock: Clock) -> None:
        """Start a task that calls ``shrink`` at intervals."""
        self._task = asyncio.create_task(self._work(clock), name="shrinking")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def shrink(self) -> None:
        """Evict pages from one tier until it is within its limit. Have the free space of all tiers measured
        for the next call.
        """
        # Recovery itself leaves out pages that do not fit. Until it ends, pending segments count too.
        resting = self._resting or self._recovery.coming
        self._resting = False if resting else await self._shrink_one()
        for medium in self._media:
            medium.tier.measure_room()

    async def _shrink_one(self) -> bool:
        """Shrink the next tier that holds too much. Return whether any page was evicted."""
        for place in range(self._first, self._first + len(self._media)):
            index = place % len(self._media)
            if evicted := await self._shrink(index):
                self._first = index + 1
                _log.info("evicted for free space", tier=self._media[index].tier.name, pages=evicted)
                return True
        return False

    async def _shrink(self, index: int) -> int:
        tier, members, evicted = self._media[index].tier, self._residents.members[index], 0
        while tier.excess_bytes and members.count:
            drawn = draw_to_rank(self._rng, members.slots)
            ranked = drawn[np.argsort(-self._placement.keys(drawn), kind="stable")]
            for slot in ranked[: EvictionPool.ahead(len(ranked))].tolist():
                self._transfers.drop(slot, "medium full")
                evicted += 1
                if not tier.excess_bytes:
                    return evicted
            await asyncio.sleep(0)
        return evicted

    async def _work(self, clock: Clock) -> None:
        while True:
            try:
                await self.shrink()
            except Exception:  # noqa: BLE001 - logged; a bug elsewhere must not end the task
                _log.exception("tiers were not shrunk")
            await clock.sleep(_EVERY_S)
