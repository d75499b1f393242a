"""``S3Server``: listens for clients, and makes their connections (connection.py). If the request cache is
compiled, received bytes go to its compiled form first.
"""

import asyncio
import socket
import ssl
import sys

from shadeproxy.api.s3.compiled import compiled_protocol
from shadeproxy.api.s3.connection import OpenConnections, S3Protocol
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.part_writer import CLOSE_S
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
        closing_s = None if tls is None else CLOSE_S
        made = await loop.create_server(
            self, host, port, ssl=tls, ssl_shutdown_timeout=closing_s, backlog=BACKLOG, reuse_address=True
        )
        self._accepting.append(made)
        at: tuple[str, int] = made.sockets[0].getsockname()[:2]
        return at

    async def accept(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept clients from a bound socket, which may be a Unix socket. It is closed with the listener."""
        loop = asyncio.get_running_loop()
        if bound.family == socket.AF_UNIX:
            made = await loop.create_unix_server(self, sock=bound, backlog=BACKLOG)
        else:
            closing_s = None if tls is None else CLOSE_S
            made = await loop.create_server(
                self, sock=bound, ssl=tls, ssl_shutdown_timeout=closing_s, backlog=BACKLOG
            )
        self._accepting.append(made)

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
        return await self.end_connections(limit_s)
