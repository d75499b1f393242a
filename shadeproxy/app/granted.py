"""Mark a cache directory whose objects were granted to clients with upstreams of their own.

Law: a mark in the state stands from before the first read for such a client. A proxy that starts without such
clients and finds it checks each object with its own credentials before that answers from the cache.
"""

import asyncio
from contextlib import suppress

from shadeproxy.app.clients import has_own_upstreams
from shadeproxy.config import Settings
from shadeproxy.core.errors import StateError
from shadeproxy.engine.cache import PageCache
from shadeproxy.state.store import StateStore

_KIND, _NAME = "granted", "to clients"


class Grants:
    """The mark in ``state``."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def take_over(self, settings: Settings, cache: PageCache) -> None:
        """Make the mark, or do what an earlier one asks for, before anything is answered."""
        found = await asyncio.to_thread(self._state.load_all, _KIND)
        if has_own_upstreams(settings):
            self.note(settings)
            with suppress(StateError):  # said by the store, and tried again
                await self._state.flush()
        elif found:
            cache.distrust_all()
            self._state.delete(_KIND, _NAME)

    def note(self, settings: Settings) -> None:
        """Make the mark where ``settings`` have clients with upstreams of their own."""
        if has_own_upstreams(settings):
            self._state.put(_KIND, _NAME, b"1")
