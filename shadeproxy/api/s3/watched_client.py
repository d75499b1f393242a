"""The part of a worker's client connection that a timer checks.

Laws: an idle connection is closed. A client is cut if it takes none of the bytes that wait for it, as in
connection.py.
"""

import asyncio
from typing import cast

from shadeproxy.api.s3.response import break_off
from shadeproxy.api.s3.sender import Copying


class WatchedClient(asyncio.Protocol):
    """A client connection with its timer. Subclasses say whether a request is under way, and record what the
    client does.
    """

    def __init__(self, keepalive_s: float) -> None:
        """``keepalive_s``: seconds between two checks."""
        self._loop = asyncio.get_running_loop()
        self._client: asyncio.Transport | None = None
        self.writer: Copying | None = None
        """Writes to the client while the connection is open."""
        self._active = False
        """True if anything was answered or relayed since the last check."""
        self._steps = 0
        """Number of requests begun, and of times when the client had taken most of the bytes that waited."""
        self._keepalive_s = keepalive_s
        self._silent = 0
        self._taken: tuple[int, int] | None = None
        """``_steps`` and the bytes that waited at the last check; None: no bytes waited."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _is_busy(self) -> bool:
        """True if a request is under way."""
        raise NotImplementedError

    @property
    def _most_silent(self) -> int:
        """Number of silent checks after which the connection is closed."""
        return 0

    def _close(self) -> None:
        """Close the connection once the waiting bytes are sent."""
        if self._client is not None:
            self._client.close()

    def cut(self) -> None:
        """Close the connection now, so that the client sees a failure."""
        if self._client is not None:
            break_off(self._client)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own transport class, which is no subclass of asyncio's.
        self._client = cast("asyncio.Transport", transport)
        self.writer = Copying(self._client)
        self._timer = self._loop.call_later(self._keepalive_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.writer is not None:
            self.writer.close()
        self._client = self.writer = None
        if self._timer is not None:
            self._timer.cancel()

    def note_hit(self) -> None:
        """Note that the compiled request cache has answered a request."""
        self._steps += 1
        self._active = True

    def _look(self) -> None:
        waiting_bytes = 0 if self._client is None else self._client.get_write_buffer_size()
        before, self._taken = self._taken, (self._steps, waiting_bytes) if waiting_bytes else None
        if self._taken is not None and self._taken == before:
            self.cut()
            return
        busy = self._active or self._is_busy
        self._active, self._silent = False, 0 if busy else self._silent + 1
        if self._silent > self._most_silent:
            self._close()
            return
        self._timer = self._loop.call_later(self._keepalive_s, self._look)
