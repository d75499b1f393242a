"""Pending loads: loads from a slow tier that go on while their read asks the origin.

If the origin fails, the read waits for the same load again, so a slow disk does not read a page twice. The
origin may fail after the head of its answer, so the load goes on until the read has all bytes of the page.
"""

import asyncio

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import DeadlineExceeded
from shadeproxy.core.types import Page
from shadeproxy.engine.storage.disk_page import DiskPage
from shadeproxy.engine.storage.page_cache import PageCache


class PendingLoads:
    """The loads of one read from ``cache`` that go on while the origin is asked, by page number."""

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self._running: dict[int, tuple[Page, asyncio.Task[memoryview | DiskPage]]] = {}

    async def view(
        self, number: int, record: Page, slot: int, limit: Deadline | None
    ) -> memoryview | DiskPage:
        """Return the body of ``record``, page ``number`` or a stored part of it; see ``PageViews.view``.

        Raises DeadlineExceeded if a disk has not given the body by ``limit``; the load then goes on until
        ``stop``, and the next call for the same record waits for it.
        """
        before, load = self._running.pop(number, (record, None))
        if load is not None and before != record:
            load.cancel()  # The page has come meanwhile, or its part has left.
            load = None
        if load is None:
            if limit is None or not self._cache.must_load(slot):
                return await self._cache.view(slot)
            load = asyncio.create_task(self._cache.view(slot))
            load.add_done_callback(_retrieve)
        try:
            ended = asyncio.wait((load,))  # Unlike a plain await, it does not cancel the load.
            await (ended if limit is None else limit.bound(ended))
        except DeadlineExceeded:
            self._running[number] = record, load
            raise
        except asyncio.CancelledError:
            load.cancel()
            raise
        return load.result()

    def stop(self, number: int) -> None:
        """Give up the load of a page, because the origin has sent the page, or nothing waits for it."""
        if number in self._running:
            self._running.pop(number)[1].cancel()

    def stop_all(self) -> None:
        """Give up the loads of all pages."""
        for number in list(self._running):
            self.stop(number)


def _retrieve(load: asyncio.Task[memoryview | DiskPage]) -> None:
    """Retrieve the error of a load, so that the event loop does not report one for which nothing waits."""
    if not load.cancelled():
        load.exception()
