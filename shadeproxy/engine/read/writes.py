"""Drops the objects of a write from the cache, before the origin gets the write and again afterwards. Reads
in between are not stored.

Law in a cluster: only the owner of an object writes it, and answers success only while it still is the owner.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import NotOwnerNow, OriginError, ShadeProxyError, WriteRefused, WriteUnconfirmed
from shadeproxy.core.tracing import WRITE_SLOT, WriteSlot
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.ownership import Here, Ownership
from shadeproxy.engine.read.fill import PageFiller
from shadeproxy.engine.storage.page_cache import PageCache

_ERASED_S = 15.0
"""The longest wait for erasures before a write. A client that gets 503 after it still has time to try again
before its own timeout.
"""
_HANGS = (
    f"a disk of the cache has not answered for {_ERASED_S:g} s, so the version before the write could come"
    " back after a restart: nothing was written; look for errors of the disk, or start the proxy without it"
)


class Writes:
    """Invalidates the objects of each write in ``versions``, ``flights`` and ``cache``."""

    def __init__(
        self,
        versions: Versions,
        filler: PageFiller,
        cache: PageCache,
        *,
        clock: Clock,
        ownership: Ownership | None = None,
    ) -> None:
        self._versions = versions
        self._flights, self._late_write_s = filler.flights, filler.late_write_s
        self._cache = cache
        self._clock = clock
        self._ownership = ownership
        self._lingering: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def writing(self, refs: Iterable[ObjectRef]) -> AsyncIterator[Here]:
        """Wrap a write to ``refs``, see ``ReadPath.writing``."""
        touched, ownership = list(refs), self._ownership
        here: Here = None
        slot: WriteSlot | None = None  # None until the block runs, which sends the write.
        if ownership is not None:
            touched, here = await self._divide(ownership, touched)
        erasing = self._cache.erasing
        released = list(self._cache.transfers.released)
        if self._cache.residents.other_pages:
            for ref in touched:
                await self._cache.drop_most(ref, "invalidated")
        self._versions.begin_write(touched)
        try:
            self._invalidate(touched)
            # Wait for the erasures before the origin changes. Otherwise a crash could bring back the
            # overwritten version. Do not wait for a disk that had no page of these objects: it may be slow.
            try:
                async with asyncio.timeout(_ERASED_S):
                    await erasing.over(released)
            except TimeoutError:
                raise WriteRefused(_HANGS) from None
            if refused := erasing.unmarked(touched):
                raise WriteRefused(refused)
            if ownership is not None and not _are_mine(ownership, touched):
                raise NotOwnerNow
            WRITE_SLOT.set(slot := WriteSlot())
            yield here
            if ownership is not None:
                # Drop first, and confirm the lease afterwards, because a reader may have stored an old
                # version just before the lease was lost.
                self._invalidate(touched)
                await self._confirm(ownership, touched)
        except (asyncio.CancelledError, OriginError):
            # The client hung up, or the origin stayed silent. So the origin may still carry the write out,
            # unless the write was still waiting for its slot.
            if slot is not None and not slot.unsent:
                self._linger(touched)
            raise
        finally:
            self._invalidate(touched)
            self._versions.end_write(touched)

    async def _divide(self, ownership: Ownership, refs: list[ObjectRef]) -> tuple[list[ObjectRef], Here]:
        """Split the objects of a write into those that this process writes and those that other proxies
        write. Drop the others from the cache. Wait until this process may write its own objects, and return
        these as a list and as ``Here``. Raises NotOwnerNow.
        """
        touched = [ref for ref in refs if not ref.key or ownership.writes_here(ref)]
        mine = [ref for ref in touched if ref.key]
        if mine and not await ownership.wait_until_mine(mine):
            raise NotOwnerNow
        if len(touched) == len(refs):
            return touched, None
        here = frozenset(touched)
        self._invalidate(ref for ref in refs if ref not in here)
        return touched, here

    async def _confirm(self, ownership: Ownership, touched: list[ObjectRef]) -> None:
        """Make sure that no other proxy can answer with an older version than the one just written. Raises
        WriteUnconfirmed if another proxy may do so.
        """
        for ref in touched:
            if not ref.key:
                try:
                    await ownership.distrust_bucket(ref.bucket, ref.namespace)
                except ShadeProxyError as error:
                    raise WriteUnconfirmed(
                        f"the origin answered, but other proxies may not know yet that it changed: {error}"
                    ) from error
        if not _are_mine(ownership, touched):
            raise WriteUnconfirmed

    def _linger(self, touched: list[ObjectRef]) -> None:
        """Let no read of ``touched`` be stored until a write of unknown outcome must be over."""
        if not touched:
            return
        self._versions.begin_write(touched)
        task = asyncio.create_task(self._clock.sleep(self._late_write_s), name="outcome unknown")
        self._lingering.add(task)

        def over(_task: asyncio.Task[None]) -> None:
            self._lingering.discard(task)
            self._invalidate(touched)
            self._versions.end_write(touched)

        task.add_done_callback(over)

    def _invalidate(self, touched: Iterable[ObjectRef]) -> None:
        for ref in touched:
            self._versions.touch(ref)
            if ref.key:
                self._flights.invalidate_object(ref)
                self._cache.drop_object(ref, "invalidated")
            else:
                self._flights.invalidate_bucket(ref.bucket, ref.namespace)
                self._cache.mark_stale(ref.bucket, ref.namespace)

    async def aclose(self) -> None:
        """Stop waiting for writes whose outcome is unknown."""
        for task in (lingering := list(self._lingering)):
            task.cancel()
        await asyncio.gather(*lingering, return_exceptions=True)


def _are_mine(ownership: Ownership, refs: Iterable[ObjectRef]) -> bool:
    """Return whether this process, and no other, may write all these objects now. A change of a bucket itself
    may be written by any process.
    """
    return all(not ref.key or ownership.mine(ref) for ref in refs)
