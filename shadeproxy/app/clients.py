"""Builds the clients of the S3 listener, and their rights, from ``[auth]``. Also marks a cache that may hold
objects read with a client's own credentials.

Law: the mark is in the state before the first read for a client with an upstream of its own. A proxy that
starts without such clients and finds the mark checks each object with its own credentials before it answers
from the cache.
"""

import asyncio
from contextlib import suppress

from shadeproxy.api.s3.auth.clients import ClientKey, Right
from shadeproxy.app.origins import upstream_of
from shadeproxy.config import Settings
from shadeproxy.config.sections import Client
from shadeproxy.core.errors import StateError
from shadeproxy.core.types import OWN, SHARED, Upstream
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.state.store import StateStore

_KIND, _NAME = "granted", "to clients"


def build_clients(settings: Settings) -> tuple[ClientKey, ...]:
    """Build the clients of ``[[auth.clients]]``. Raises ConfigError when a secret cannot be read."""
    return tuple(
        ClientKey(
            client.access_key,
            client.secret(),
            session_token=client.session_token(),
            upstream=SHARED if client.upstream.is_shared else upstream_of(client.access_key),
            rights=_rights(client),
            namespace=settings.namespace_of(client),
        )
        for client in settings.auth.clients
    )


def build_upstreams(settings: Settings) -> dict[str, Upstream]:
    """Map each namespace to the upstream with which the proxy itself reads there: the upstream of the first
    client in that namespace.
    """
    upstreams = {OWN: SHARED}
    for client in settings.auth.clients:
        if not client.upstream.is_shared:
            upstreams.setdefault(settings.namespace_of(client), upstream_of(client.access_key))
    return upstreams


def has_own_upstreams(settings: Settings) -> bool:
    """Return whether a client has origin credentials of its own, so that each hit must be authorised."""
    return any(not client.upstream.is_shared for client in settings.auth.clients)


class Grants:
    """Keeps a mark in ``state``. The mark means that the cache may have objects that were read for clients
    with upstreams of their own.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state

    async def take_over(self, settings: Settings, cache: PageCache) -> None:
        """Make the mark if it is needed. If it is not, but an earlier start made it, distrust the cache and
        remove the mark. Await this before the first request is answered.
        """
        found = await asyncio.to_thread(self._state.load_all, _KIND)
        if has_own_upstreams(settings):
            self.note(settings)
            with suppress(StateError):  # If this fails, the store logs the error, and tries again later.
                await self._state.flush()
        elif found:
            cache.distrust()
            self._state.delete(_KIND, _NAME)

    def note(self, settings: Settings) -> None:
        """Make the mark if ``settings`` have clients with upstreams of their own."""
        if has_own_upstreams(settings):
            self._state.put(_KIND, _NAME, b"1")


def _rights(client: Client) -> tuple[Right, ...]:
    allowed = set(client.allow)
    return tuple(
        Right(bucket, prefix, read="read" in allowed, write="write" in allowed, list="list" in allowed)
        for bucket in client.buckets or ["*"]
        for prefix in client.prefixes or [""]
    )
