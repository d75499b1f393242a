"""Erasure of dropped pages on the media: waits for erasures, retries failed ones, and names those that are
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
"""Seconds between flushes. The kernel itself writes after about this time. More frequent flushes would also
write pages that are evicted soon.
"""
_RETRY_S, _MOST_RETRY_S = 1.0, 60.0


class Erasing:
    """Sees to it that dropped pages are erased on all ``media``. Use it on the event loop only."""

    def __init__(self, media: Sequence[Medium], transfers: Transfers) -> None:
        self._media = media
        self._transfers = transfers
        self._done = [0] * len(media)  # By medium: number of releases whose erasures are done.
        self._task: asyncio.Task[None] | None = None
        # Only one flush at a time for each medium: a second one would occupy a thread while it waits for the
        # first.
        self._locks = [asyncio.Lock() for _ in media]

    def note(self) -> None:
        """Count the erasure of a record that has no slot, so that ``over`` waits for it too."""
        self._transfers.released = [count + 1 for count in self._transfers.released]

    async def over(self, since: Sequence[int] | None = None) -> None:
        """Return when all pages dropped so far are erased from the media with a writer thread. A failed
        erasure, which will be retried, counts as done.

        Returns at once if nothing was dropped since the last call. Otherwise waits for two turns of each
        writer, because a page that is dropped while it is written is released only after the write.

        ``since``: an earlier copy of ``Transfers.released``. The call does not wait for a medium that has
        released nothing since then, if tombstones stand for its earlier erasures.
        """
        for index, medium in enumerate(self._media):
            released = self._transfers.released[index]
            if medium.write is None or released == self._done[index]:
                continue
            if since is not None and released == since[index] and medium.tier.erasures.names_all:
                continue
            await medium.write(_nothing)
            await medium.write(_nothing)
            self._done[index] = max(self._done[index], released)

    def unmarked(self, refs: Iterable[ObjectRef]) -> str:
        """Return the reason why an old version of one of these objects could come back after a restart; "" if
        no old version can.
        """
        hashes = [object_hash(ref) for ref in refs if ref.key]
        reasons = (medium.tier.erasures.unmarked(hashes) for medium in self._media)
        return next((reason for reason in reasons if reason), "")

    def any_unmarked(self) -> str:
        """Return such a reason for any object that was dropped so far; "" if there is none."""
        reasons = (medium.tier.erasures.any_unmarked for medium in self._media)
        return next((reason for reason in reasons if reason), "")

    # ------------------------------------------------------------------ in the background

    def start(self, clock: Clock) -> None:
        """Start a task that calls ``settle`` at intervals."""
        self._task = asyncio.create_task(self._work(clock), name="erasures")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def settle(self) -> bool:
        """Retry failed erasures, and flush all erasures to the media. Return whether all are on the media
        now.
        """
        left = False
        for index, medium in enumerate(self._media):
            if medium.tier.erasures.unsettled:
                left |= not await self._settle(index)
        return not left

    async def keep_purged(self) -> None:
        """Make a purge durable.

        Records that have no slot may also lie under the purged prefix: of evicted pages, or in a segment that
        cannot be read. So flush their erasures to the media. If that is not possible, put the tier in doubt.
        """
        for index, medium in enumerate(self._media):
            if medium.tier.pending_segments or not await self._settle(index):
                await run_io(medium.load, medium.tier.erasures.doubt)

    async def _settle(self, index: int) -> bool:
        async with self._locks[index]:
            return await self._settle_one(self._media[index])

    async def _settle_one(self, medium: Medium) -> bool:
        erasures, pending = medium.tier.erasures, medium.tier.pending_segments > 0
        turned = erasures.turn()
        await self.over()
        await run_io(medium.write, erasures.retry)
        if pending:
            # Tombstones stay until recovery has read the last record that they name. If recovery has ended
            # only meanwhile, the erasures of such records may still wait for the writer.
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
            except Exception:  # noqa: BLE001 - logged; a bug elsewhere must not end the task
                _log.exception("erasures were not settled")
            backoff_s = min(2 * backoff_s, _MOST_RETRY_S) if self._owed else _RETRY_S


def _nothing() -> None:
    """Do nothing. When the writer has run this, it has done all earlier work."""
