"""Erasures on their way to the media: who waits, what is tried again, and what may not be written yet."""

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.knowledge.hashing import object_hash
from shadeproxy.engine.transfers import Medium, Transfers, run_io

_log = structlog.get_logger(__name__)
_SETTLE_S = 30.0
"""About when the kernel writes by itself: flushing earlier writes what is evicted soon."""
_RETRY_S, _MOST_RETRY_S = 1.0, 60.0


class Erasing:
    """Erases dropped pages from all ``media``. Event loop only."""

    def __init__(self, media: Sequence[Medium], transfers: Transfers) -> None:
        self._media = media
        self._transfers = transfers
        self._done = [0] * len(media)  # of each medium, how many releases are known to be carried out
        self._task: asyncio.Task[None] | None = None
        # Of each medium, one at a time: who waits for the flush of another must not take a thread for it.
        self._settling = [asyncio.Lock() for _ in media]

    def note(self) -> None:
        """Something of which no slot tells is on its way to the media: ``over`` waits for it too."""
        self._transfers.released = [count + 1 for count in self._transfers.released]

    async def over(self) -> None:
        """Return once everything dropped so far is erased from media that are written by a thread, or owed.

        At once where nothing was dropped since the last call. It waits twice, because a page that was
        dropped while it was being written is released after its write.
        """
        for index, medium in enumerate(self._media):
            released = self._transfers.released[index]
            if medium.write is not None and released != self._done[index]:
                await medium.write(_nothing)
                await medium.write(_nothing)
                self._done[index] = max(self._done[index], released)

    def unmarked(self, refs: Iterable[ObjectRef]) -> str:
        """Why an old version of one of these could come back after a restart; "" when none can."""
        hashes = [object_hash(ref) for ref in refs if ref.key]
        reasons = (medium.tier.erasures.unmarked(hashes) for medium in self._media)
        return next((reason for reason in reasons if reason), "")

    def any_unmarked(self) -> str:
        """Return the reason of ``unmarked`` for any object that was dropped so far, or ""."""
        reasons = (medium.tier.erasures.any_unmarked for medium in self._media)
        return next((reason for reason in reasons if reason), "")

    # ------------------------------------------------------------------ in the background

    def start(self, clock: Clock) -> None:
        """Settle now and then from now on."""
        self._task = asyncio.create_task(self._work(clock), name="erasures")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def settle(self) -> bool:
        """Try again what is owed, and have on the media what is erased; whether nothing is left."""
        left = False
        for index, medium in enumerate(self._media):
            if medium.tier.erasures.unsettled:
                left |= not await self._settle(index)
        return not left

    async def keep_purged(self) -> None:
        """After a purge: records that no slot tells of, evicted or in a segment that cannot be read, may be
        under its prefix. Have their erasures on the media, or put the tier in doubt.
        """
        for index, medium in enumerate(self._media):
            if medium.tier.awaited_segments or not await self._settle(index):
                await run_io(medium.load, medium.tier.erasures.doubt)

    async def _settle(self, index: int) -> bool:
        async with self._settling[index]:
            return await self._settle_alone(self._media[index])

    async def _settle_alone(self, medium: Medium) -> bool:
        erasures = medium.tier.erasures
        turned = erasures.turn()
        await self.over()
        await run_io(medium.write, erasures.retry)
        if medium.tier.awaited_segments:
            # Names stay until the last record of theirs is found.
            return not erasures.owed
        settled = False

        def settle() -> None:
            nonlocal settled
            settled = erasures.settle(turned)

        await run_io(medium.load, settle)
        return settled

    @property
    def _owed(self) -> bool:
        return any(medium.tier.erasures.owes for medium in self._media)

    async def _work(self, clock: Clock) -> None:
        waited_s, backoff_s = 0.0, _RETRY_S
        while True:
            await clock.sleep(_RETRY_S)
            waited_s += _RETRY_S
            crowded = not self._owed and any(medium.tier.erasures.crowded for medium in self._media)
            if waited_s < (backoff_s if self._owed else _SETTLE_S) and not crowded:
                continue
            waited_s = 0.0
            try:
                await self.settle()
            except Exception:  # noqa: BLE001 - logged; the task must outlive a bug elsewhere
                _log.exception("erasures were not settled")
            backoff_s = min(2 * backoff_s, _MOST_RETRY_S) if self._owed else _RETRY_S


def _nothing() -> None:
    """Run when everything before it has."""
