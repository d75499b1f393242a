"""``S3Server``: listens for clients, and makes their connections (connection.py). If the request cache is
compiled, received bytes go to its compiled form first.
"""

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable

from shadeproxy.api.s3.compiled import compiled_protocol
from shadeproxy.api.s3.connection import OpenConnections, S3Protocol
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.handshake import Handshakes
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.response import KEEPALIVE_S
from shadeproxy.core.clock import SystemClock

BACKLOG = 1024


class S3Server:
    """One listener, and the protocol factory of its connections. Create it on the running loop."""

    def __init__(
        self,
        s3: S3Handler,
        fast: FastLane,
        *,
        keepalive_s: float = KEEPALIVE_S,
        limiter: ConnectionLimiter | None = None,
    ) -> None:
        """``limiter``: limits the connections of all listeners of the process together; None: no limit."""
        self.connections = OpenConnections()
        self._s3 = s3
        self._fast = fast
        self._keepalive_s = keepalive_s
        self._limiter = limiter or ConnectionLimiter(sys.maxsize, clock=SystemClock())
        self._protocol = S3Protocol if fast.hits is None else compiled_protocol(S3Protocol, fast.hits)
        self._accepting: list[asyncio.Server] = []
        self._handshakes: list[Handshakes] = []

    def __call__(self) -> S3Protocol:
        return self._protocol(
            self.connections, self._s3, self._fast, keepalive_s=self._keepalive_s, limiter=self._limiter
        )

    @property
    def is_accepting(self) -> bool:
        """True if new clients are accepted."""
        return bool(self._accepting)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Accept clients at an address, and return the address. ``port`` 0: any free port. Raises OSError."""
        loop = asyncio.get_running_loop()
        made = await loop.create_server(self._factory(tls), host, port, backlog=BACKLOG, reuse_address=True)
        self._accepting.append(made)
        at: tuple[str, int] = made.sockets[0].getsockname()[:2]
        return at

    async def accept(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept clients from a bound socket, which may be a Unix socket. It is closed with the listener."""
        loop = asyncio.get_running_loop()
        if bound.family == socket.AF_UNIX:
            made = await loop.create_unix_server(self, sock=bound, backlog=BACKLOG)
        else:
            made = await loop.create_server(self._factory(tls), sock=bound, backlog=BACKLOG)
        self._accepting.append(made)

    def _factory(self, tls: ssl.SSLContext | None) -> Callable[[], asyncio.Protocol]:
        """Return the protocol factory of a listener."""
        if tls is None:
            return self
        handshakes = Handshakes(self, tls, self._limiter)
        self._handshakes.append(handshakes)
        return handshakes

    def stop_accepting(self) -> None:
        """Accept no further clients. Connections stay open."""
        while self._accepting:
            self._accepting.pop().close()

    async def end_connections(self, limit_s: float) -> int:
        """Close connections without a request. Requests under way may end within ``limit_s`` seconds. Return
        how many were cut off then. New clients may still be accepted.
        """
        return sum(await asyncio.gather(*(one.shutdown(limit_s) for one in list(self.connections))))

    async def shutdown(self, limit_s: float) -> int:
        """Accept no further clients, and end the connections; see ``end_connections``."""
        self.stop_accepting()
        self.connections.are_ending = True
        for handshakes in self._handshakes:
            handshakes.end()
        return await self.end_connections(limit_s)
