"""Drops the objects of a write to the origin from the cache, before and after the write. Reads in between are
not stored.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import OriginError, WriteRefused
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.storage.page_cache import PageCache

_UNKNOWN_OUTCOME_S = 60.0
"""Longer than the origin's default read timeout: after that time, a write that the origin still carries out
is over.
"""


class Writes:
    """Invalidates the objects of each write in ``versions``, ``flights`` and ``cache``."""

    def __init__(self, versions: Versions, flights: SingleFlight, cache: PageCache, *, clock: Clock) -> None:
        self._versions = versions
        self._flights = flights
        self._cache = cache
        self._clock = clock
        self._lingering: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def writing(self, refs: Iterable[ObjectRef]) -> AsyncIterator[None]:
        """See ``ReadPath.writing``."""
        touched = list(refs)
        self._versions.begin_write(touched)
        try:
            self._invalidate(touched)
            # Erase before the origin changes: otherwise a crash could bring back the overwritten version.
            await self._cache.erasing.over()
            if refused := self._cache.erasing.unmarked(touched):
                raise WriteRefused(refused)
            yield
        except (asyncio.CancelledError, OriginError):
            # If the client hung up or the origin stayed silent, the write may still be carried out.
            self._linger(touched)
            raise
        finally:
            self._invalidate(touched)
            self._versions.end_write(touched)

    def _linger(self, touched: list[ObjectRef]) -> None:
        """Keep reads of ``touched`` from being stored until a write with unknown outcome must be over."""
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
