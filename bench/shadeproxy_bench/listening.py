"""Listeners of a server process, which prints its port as its first line."""

import asyncio
import socket
import ssl
from collections.abc import Callable

_BACKLOG = 4096


async def listen(
    connection: Callable[[], asyncio.BaseProtocol], port: int = 0, *, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Return a listener on ``port`` of loopback (0: any free one)."""
    return await asyncio.get_running_loop().create_server(
        connection, "127.0.0.1", port, backlog=_BACKLOG, family=socket.AF_INET, reuse_address=True, ssl=tls
    )


def port_of(server: asyncio.Server) -> int:
    """Return the port of a listener."""
    port: int = server.sockets[0].getsockname()[1]
    return port


def shared_sockets(count: int) -> list[socket.socket]:
    """Return ``count`` sockets that listen at the same free port of loopback. The kernel divides connections
    among them.
    """
    sockets: list[socket.socket] = []
    for _ in range(count):
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", sockets[0].getsockname()[1] if sockets else 0))
        one.listen(_BACKLOG)
        sockets.append(one)
    return sockets


async def serve_at(
    listener: socket.socket,
    connection: Callable[[], asyncio.BaseProtocol],
    *,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve the connections of ``listener`` until cancelled."""
    server = await asyncio.get_running_loop().create_server(
        connection, sock=listener, backlog=_BACKLOG, ssl=tls
    )
    await server.serve_forever()


async def serve(
    connection: Callable[[], asyncio.BaseProtocol], port: int = 0, *, tls: ssl.SSLContext | None = None
) -> None:
    """Listen on ``port`` of loopback (0: any free one), print the port, and serve until cancelled."""
    server = await listen(connection, port, tls=tls)
    print(port_of(server), flush=True)
    await server.serve_forever()
