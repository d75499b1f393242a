"""Connects a worker to the coordinator, for one client connection."""

import asyncio
import socket

from shadeproxy.api.s3.port import relayed_name

_TRIES = 20
_AGAIN_S = 0.01


async def dial(relay: str, coordinator: asyncio.Protocol, peer: str, *, secure: bool = False) -> None:
    """Connect the protocol ``coordinator`` at ``relay``, for a client at ``peer``. Raises OSError.

    ``secure``: the client's connection has TLS.
    """
    for left in reversed(range(_TRIES)):
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.bind(relayed_name(peer, secure=secure))
            link.connect(relay)
        except OSError:
            link.close()
            if not left:
                raise
            # The coordinator has not accepted earlier connections yet: try again later.
            await asyncio.sleep(_AGAIN_S)
        else:
            await asyncio.get_running_loop().create_unix_connection(lambda: coordinator, sock=link)
            return
