"""Serves the requests that a worker itself forwards to the origin. aiohttp parses them, in the worker's
process.

Laws: the client's connection belongs to relay.py. relay.py passes one request at a time to this module, and
gets the answer through a transport that has no socket of its own. Before the worker reads a request's body,
it decides whether to forward the request. It forwards a request that is authorised, whose client shares the
proxy's upstream, and that the cache may not answer. Every other request is relayed to the coordinator.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from aiohttp import web

from shadeproxy.api.refusing import RefusingHandler
from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.connection import HANDLER_LIMITS
from shadeproxy.api.s3.forward_handler import ForwardHandler
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.types import SHARED

# aiohttp's own keep-alive timer stays off, because relay.py has a timer for the client's connection.
_KEEPALIVE_S = 1e6


class ClientConnection(Protocol):
    """The methods of the client's connection (relay.py) for requests that are forwarded."""

    def forward_full(self, *, full: bool) -> None:
        """Stop reading from the client if ``full``, because aiohttp accepts no more bytes; else resume."""
        ...

    def forward_sent(self) -> None:
        """Note that bytes of a forwarded request's answer were written to the client."""
        ...

    def forward_answered(self) -> None:
        """Note that the answer is complete, and that the connection continues."""
        ...

    def forward_closed(self) -> None:
        """Close the client's connection when all bytes are sent."""
        ...


class ForwardServer:
    """Passes to ``handler`` the requests that this process forwards. ``authorizer`` decides which requests
    these are.
    """

    def __init__(self, handler: ForwardHandler, authorizer: RequestAuthorizer) -> None:
        self._handler = handler
        self._authorizer = authorizer
        self._server = web.Server(self._serve, handler_cancellation=True)

    def takes(self, raw: bytes) -> bool:
        """Return True if this process forwards the request with the head ``raw``."""
        try:
            line, *rest = raw[:-4].decode("utf-8", "surrogateescape").split("\r\n")
            method, target, _ = line.split(" ")
            pairs = (one.partition(":") for one in rest)
            fields = tuple((name, value.strip(" \t")) for name, _, value in pairs)
            call, _ = self._authorizer.identify(method, target, fields)
        except (ValueError, ShadeProxyError):
            return False  # The request is relayed: the coordinator finds the same error and answers it.
        return call.identity.upstream == SHARED and not self._authorizer.reads_cache(call)

    def open(self, client: ClientConnection, transport: asyncio.Transport) -> "ForwardConnection":
        """Return an aiohttp connection for the requests of ``client`` that are forwarded."""
        return ForwardConnection(self._server, self._handler, client, transport)

    async def aclose(self) -> None:
        """End the requests that are still under way."""
        await self._server.shutdown(0.0)

    async def _serve(self, http: web.BaseRequest) -> web.StreamResponse:
        response = await self._handler(http)
        protocol = http.protocol
        assert isinstance(protocol, ForwardConnection), "this server has no others"
        if response.keep_alive:
            protocol.answered()
        return response


class ForwardConnection(RefusingHandler):
    """Passes the requests of one client's connection to aiohttp, one after the other."""

    __slots__ = ("_client", "_handler")

    def __init__(
        self,
        server: web.Server,
        handler: ForwardHandler,
        client: ClientConnection,
        transport: asyncio.Transport,
    ) -> None:
        super().__init__(
            server, loop=asyncio.get_running_loop(), keepalive_timeout=_KEEPALIVE_S, **HANDLER_LIMITS
        )
        self._client = client
        self._handler = handler
        self.connection_made(ForwardTransport(client, transport))

    def refuse_malformed(self, request: web.BaseRequest, reason: str) -> web.StreamResponse:  # noqa: ARG002
        return self._handler.refuse_malformed(request)

    def answered(self) -> None:
        """Call ``ClientConnection.forward_answered`` as soon as aiohttp can take the next request."""
        self._loop.call_soon(self.call_when_idle, self._client.forward_answered)


class ForwardTransport(asyncio.Transport):
    """A transport for aiohttp, without a socket. It writes to ``transport``, which is the client's. When
    aiohttp wants to stop or resume reading, it asks ``client``.
    """

    def __init__(self, client: ClientConnection, transport: asyncio.Transport) -> None:
        super().__init__()
        self._client = client
        self._transport = transport
        self._closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def write(self, data: Any) -> None:
        self._transport.write(data)
        self._client.forward_sent()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._transport.writelines(list_of_data)
        self._client.forward_sent()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._client.forward_full(full=True)

    def resume_reading(self) -> None:
        self._client.forward_full(full=False)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.forward_closed()

    def abort(self) -> None:
        self._closed = True
        self._transport.abort()
