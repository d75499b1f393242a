"""Mark a cache directory that holds objects read for clients with upstreams of their own.

Law: the mark is in the state before the first read for such a client. A proxy that starts without such
clients and finds the mark checks each object with its own credentials before it answers from the cache.
"""

import asyncio
from contextlib import suppress

from shadeproxy.app.clients import has_own_upstreams
from shadeproxy.config import Settings
from shadeproxy.core.errors import StateError
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.state.store import StateStore

_KIND, _NAME = "granted", "to clients"


class Grants:
    """The mark in ``state``."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def take_over(self, settings: Settings, cache: PageCache) -> None:
        """Make the mark, or act on an earlier one, before the first request is answered."""
        found = await asyncio.to_thread(self._state.load_all, _KIND)
        if has_own_upstreams(settings):
            self.note(settings)
            with suppress(StateError):  # the store logs it and tries again
                await self._state.flush()
        elif found:
            cache.mark_all_stale()
            self._state.delete(_KIND, _NAME)

    def note(self, settings: Settings) -> None:
        """Make the mark if ``settings`` have clients with upstreams of their own."""
        if has_own_upstreams(settings):
            self._state.put(_KIND, _NAME, b"1")
