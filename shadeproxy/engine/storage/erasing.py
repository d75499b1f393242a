"""Erasure of dropped pages on the media: waits for erasures, retries failed ones, and reports those that are
still missing.
"""

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.storage.medium import Medium, run_io
from shadeproxy.engine.storage.transfers import Transfers

_log = structlog.get_logger(__name__)
_SETTLE_S = 30.0
"""Seconds between flushes. After about this time the kernel writes by itself. More frequent flushes would
write pages that are evicted soon anyway.
"""
_RETRY_S, _MOST_RETRY_S = 1.0, 60.0


class Erasing:
    """Erases dropped pages from all ``media``. Use it on the event loop only."""

    def __init__(self, media: Sequence[Medium], transfers: Transfers) -> None:
        self._media = media
        self._transfers = transfers
        self._done = [0] * len(media)  # By medium: how many releases of places are known to be carried out.
        self._task: asyncio.Task[None] | None = None
        # One flush at a time for each medium: otherwise a flush that waits for another one would occupy a
        # thread.
        self._locks = [asyncio.Lock() for _ in media]

    def note(self) -> None:
        """Count an erasure of a record without a slot, so that ``over`` waits for this erasure too."""
        self._transfers.released = [count + 1 for count in self._transfers.released]

    async def over(self) -> None:
        """Return once all dropped pages are erased from media with a writer thread. An erasure that has
        failed, and will be retried, counts as done.

        Returns at once if nothing was dropped since the last call. Waits for two turns of the writer, because
        a page dropped during its write is released only after the write.
        """
        for index, medium in enumerate(self._media):
            released = self._transfers.released[index]
            if medium.write is not None and released != self._done[index]:
                await medium.write(_nothing)
                await medium.write(_nothing)
                self._done[index] = max(self._done[index], released)

    def unmarked(self, refs: Iterable[ObjectRef]) -> str:
        """Return why an old version of one of these objects could come back after a restart; "" if none
        can.
        """
        hashes = [object_hash(ref) for ref in refs if ref.key]
        reasons = (medium.tier.erasures.unmarked(hashes) for medium in self._media)
        return next((reason for reason in reasons if reason), "")

    def any_unmarked(self) -> str:
        """Return the reason of ``unmarked`` for any object that was dropped so far, or ""."""
        reasons = (medium.tier.erasures.any_unmarked for medium in self._media)
        return next((reason for reason in reasons if reason), "")

    # ------------------------------------------------------------------ in the background

    def start(self, clock: Clock) -> None:
        """Call ``settle`` at intervals from now on."""
        self._task = asyncio.create_task(self._work(clock), name="erasures")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def settle(self) -> bool:
        """Retry failed erasures and flush erasures to the media. Return whether no erasure is outstanding."""
        left = False
        for index, medium in enumerate(self._media):
            if medium.tier.erasures.unsettled:
                left |= not await self._settle(index)
        return not left

    async def keep_purged(self) -> None:
        """Make a purge durable.

        Records without a slot (of evicted pages, or in an unreadable segment) may also lie under the purged
        prefix. Flush their erasures to the media, or put the tier in doubt.
        """
        for index, medium in enumerate(self._media):
            if medium.tier.pending_segments or not await self._settle(index):
                await run_io(medium.load, medium.tier.erasures.doubt)

    async def _settle(self, index: int) -> bool:
        async with self._locks[index]:
            return await self._settle_one(self._media[index])

    async def _settle_one(self, medium: Medium) -> bool:
        erasures = medium.tier.erasures
        turned = erasures.turn()
        await self.over()
        await run_io(medium.write, erasures.retry)
        if medium.tier.pending_segments:
            # Tombstones stay until recovery has read the last record that they name.
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
    """Do nothing. When the writer has run this, all work queued before it is done."""
