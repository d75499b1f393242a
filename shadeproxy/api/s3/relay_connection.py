"""A worker's connection to the coordinator. Each client connection that relays requests has its own."""

import asyncio
import errno
import socket
from typing import Protocol, cast

from shadeproxy.api.s3.port import relayed_name

_TRIES = 20
_AGAIN_S = 0.01
# EAGAIN: the coordinator has not accepted earlier connections yet. The others: the kernel lacks memory or
# files now. ENOENT and ECONNREFUSED are not here, because a coordinator that is gone stays gone.
_PASSING = frozenset({errno.EAGAIN, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class RelaysAnswers(Protocol):
    """The methods of the client's connection (relay.py) that a ``RelayConnection`` calls."""

    def coordinator_sent(self, data: bytes) -> None:
        """Pass bytes of the coordinator's answers on to the client."""
        ...

    def coordinator_lost(self) -> None:
        """Handle the end of the connection to the coordinator."""
        ...

    def coordinator_full(self, *, full: bool) -> None:
        """Stop reading from the client if the coordinator accepts no more bytes (``full``), or resume it."""
        ...


class RelayConnection(asyncio.Protocol):
    """The connection to the coordinator for the requests of one client connection."""

    def __init__(self, client: RelaysAnswers) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's own transport class is no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._client.coordinator_lost()

    def data_received(self, data: bytes) -> None:
        self._client.coordinator_sent(data)

    def pause_writing(self) -> None:
        self._client.coordinator_full(full=True)

    def resume_writing(self) -> None:
        self._client.coordinator_full(full=False)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def dial(relay: str, coordinator: asyncio.Protocol, peer: str, *, secure: bool = False) -> None:
    """Connect the protocol ``coordinator`` to the coordinator's socket ``relay``, for a client at ``peer``.
    Raises OSError.

    ``secure``: the client's connection has TLS.
    """
    for left in reversed(range(_TRIES)):
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.bind(relayed_name(peer, secure=secure))
            link.connect(relay)
        except OSError as error:
            link.close()
            if not left or error.errno not in _PASSING:
                raise
            await asyncio.sleep(_AGAIN_S)
        else:
            await asyncio.get_running_loop().create_unix_connection(lambda: coordinator, sock=link)
            return
