"""Drops the objects of a write to the origin from the cache, before and after the write. Reads in between are
not stored.

Law in a cluster: the owner of an object writes the object, and answers success only while it still is the
owner.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import NotOwnerNow, OriginError, ShadeProxyError, WriteRefused, WriteUnconfirmed
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.ownership import Here, Ownership
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.storage.page_cache import PageCache

_UNKNOWN_OUTCOME_S = 60.0
"""A write with an unknown outcome may still run at the origin, but for no longer than this. The origin's
default read timeout is shorter.
"""


class Writes:
    """Invalidates the objects of each write in ``versions``, ``flights`` and ``cache``."""

    def __init__(
        self,
        versions: Versions,
        flights: SingleFlight,
        cache: PageCache,
        *,
        clock: Clock,
        ownership: Ownership | None = None,
    ) -> None:
        self._versions = versions
        self._flights = flights
        self._cache = cache
        self._clock = clock
        self._ownership = ownership
        self._lingering: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def writing(self, refs: Iterable[ObjectRef]) -> AsyncIterator[Here]:
        """See ``ReadPath.writing``."""
        touched, ownership = list(refs), self._ownership
        here: Here = None
        if ownership is not None:
            touched, here = await self._divide(ownership, touched)
        self._versions.begin_write(touched)
        try:
            self._invalidate(touched)
            # Erase before the origin changes: otherwise a crash could bring back the overwritten version.
            await self._cache.erasing.over()
            if refused := self._cache.erasing.unmarked(touched):
                raise WriteRefused(refused)
            if ownership is not None and not _are_mine(ownership, touched):
                raise NotOwnerNow
            yield here
            if ownership is not None:
                # Drop first and confirm the lease afterwards: a reader may have stored an old version just
                # before the lease was lost.
                self._invalidate(touched)
                await self._confirm(ownership, touched)
        except (asyncio.CancelledError, OriginError):
            # The client hung up or the origin stayed silent, so the origin may still carry the write out.
            self._linger(touched)
            raise
        finally:
            self._invalidate(touched)
            self._versions.end_write(touched)

    async def _divide(self, ownership: Ownership, refs: list[ObjectRef]) -> tuple[list[ObjectRef], Here]:
        """Split the objects of a write into those that this process writes and those that other proxies
        write. Wait until this process may write its objects. Return its objects as a list and as ``Here``.
        Drop the other objects from the cache. Raises NotOwnerNow.
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
        WriteUnconfirmed if a proxy may.
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
        """Keep reads of ``touched`` from being stored until even a write with an unknown outcome must be
        over.
        """
        if not touched:
            return
        self._versions.begin_write(touched)
        task = asyncio.create_task(self._clock.sleep(_UNKNOWN_OUTCOME_S), name="outcome unknown")
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
    """Return whether this process alone may write all these objects. Any process may write a change of a
    bucket itself.
    """
    return all(not ref.key or ownership.mine(ref) for ref in refs)
