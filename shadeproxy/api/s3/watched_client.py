"""The part of a worker's client connection that writes to the client, and that a timer checks.

Laws, as in connection.py: an idle connection is closed. A connection is reset if bytes wait for its client
and the client takes none.
"""

import asyncio
from collections.abc import Awaitable, Callable

from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.held_answers import COUNTED_BYTES, HeldAnswers
from shadeproxy.api.s3.part_writer import PartWriter, client_transport
from shadeproxy.api.s3.port import peer_of
from shadeproxy.api.s3.response import break_off
from shadeproxy.api.s3.sender import Copying
from shadeproxy.core.pace import set_done


class WatchedClient(asyncio.Protocol):
    """A client connection with its timer. Subclasses tell whether a request is under way, and note what the
    client does.
    """

    def __init__(
        self, keepalive_s: float, limiter: ConnectionLimiter | None = None, held: HeldAnswers | None = None
    ) -> None:
        """``keepalive_s``: seconds between two checks. ``limiter``: limits the connections. ``held``: counts
        the bytes that wait for clients.
        """
        self._loop = asyncio.get_running_loop()
        self._limiter = limiter
        self._client: asyncio.Transport | None = None
        self.writer: Copying | None = None
        """Writes to the client. None unless the connection is open, and below the limit of connections."""
        self._paused = False
        self._held_answers = held
        self._held_bytes = 0
        """Number of this client's bytes that ``held`` counts."""
        self._drained: asyncio.Future[None] | None = None
        self._active = False
        """True if bytes of an answer were sent since the last check."""
        self._steps = 0
        """Number of requests begun, plus the number of times that the client had taken most of the waiting
        bytes.
        """
        self._keepalive_s = keepalive_s
        self._silent = 0
        """Number of checks in a row without activity."""
        self._taken: tuple[int, int] | None = None
        """``_steps`` and the number of waiting bytes at the last check; None if no bytes waited."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def transport(self) -> asyncio.Transport | None:
        """The client's transport; None after the connection has ended."""
        return self._client

    @property
    def peer(self) -> str:
        """The client's address without its port."""
        return peer_of(self._client)

    @property
    def paused(self) -> bool:
        """True while the client takes bytes more slowly than they are written."""
        return self._paused

    def write_pieces(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write ``pieces`` of an answer to the client."""
        if self._client is not None and not self._client.is_closing():
            self._client.writelines(pieces)
            self._active = True

    def call_in_turn(self, function: Callable[[], None]) -> None:
        """Call ``function`` in a later turn of the event loop."""
        self._loop.call_soon(function)

    def drained(self, *, gives_way: bool) -> Awaitable[None] | None:  # noqa: ARG002 - of ``Outlet``
        """Return what to await before more is written, or None; see port.py ``Outlet.drained``."""
        if self._client is None:
            raise ConnectionResetError("the client is gone")
        if not self._paused:
            return None
        self._drained = self._loop.create_future()
        return self._drained

    @property
    def _is_busy(self) -> bool:
        """True if a request is under way."""
        raise NotImplementedError

    @property
    def _most_silent(self) -> int:
        """Number of checks in a row with no activity that are allowed before the connection is closed."""
        return 0

    def _close(self) -> None:
        """Close the connection once the waiting bytes have been sent."""
        if self._client is not None:
            self._client.close()

    def cut(self) -> None:
        """Reset the connection now, so that the client sees that the answer broke off."""
        if self._client is not None:
            break_off(self._client)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = client_transport(transport)
        if self._limiter is not None and not self._limiter.enter():
            self._limiter.turn_away(transport)
            return
        self.writer = Copying(self._client)
        self._timer = self._loop.call_later(self._keepalive_s, self._look)

    def pause_writing(self) -> None:
        self._paused = True
        client, writer = self._client, self.writer
        if self._held_answers is not None and client is not None and writer is not None:
            # The memory of an answer is freed when the client has taken all of it.
            kept_bytes = client.kept_bytes if isinstance(client, PartWriter) else writer.writing_bytes
            waiting_bytes = max(client.get_write_buffer_size(), kept_bytes)
            if waiting_bytes > max(self._held_bytes, COUNTED_BYTES):
                self._hold(waiting_bytes)

    def _hold(self, waiting_bytes: int) -> None:
        if self._held_answers is not None:
            self._held_answers.change(waiting_bytes - self._held_bytes)
            self._held_bytes = waiting_bytes

    def resume_writing(self) -> None:
        self._paused = False
        self._steps += 1
        if isinstance(self._client, PartWriter):
            self._client.go_on()
        if self._held_bytes and not self._paused:
            self._hold(0)
        if self._drained is not None and not self._paused:
            set_done(self._drained)
            self._drained = None

    def eof_received(self) -> None:
        """Write what is left of a hit, because its client has closed its sending side."""
        if isinstance(self._client, PartWriter):
            self._client.write_rest()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.writer is not None:
            self.writer.close()
            if self._limiter is not None:
                self._limiter.leave()
        self._client = self.writer = None
        self._hold(0)
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
