"""A listener in a server process. The process prints the listener's port as its first line."""

import asyncio
import socket
import ssl
from collections.abc import Callable


async def listen(
    connection: Callable[[], asyncio.BaseProtocol], port: int = 0, *, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Return a listener on ``port`` of loopback (0: any free one)."""
    return await asyncio.get_running_loop().create_server(
        connection, "127.0.0.1", port, backlog=4096, family=socket.AF_INET, reuse_address=True, ssl=tls
    )


def port_of(server: asyncio.Server) -> int:
    """Return the port of a listener."""
    port: int = server.sockets[0].getsockname()[1]
    return port


async def serve(
    connection: Callable[[], asyncio.BaseProtocol], port: int = 0, *, tls: ssl.SSLContext | None = None
) -> None:
    """Listen as ``listen``, print the port, and serve until cancelled."""
    server = await listen(connection, port, tls=tls)
    print(port_of(server), flush=True)
    await server.serve_forever()
