"""The read for whose answer a connection waits. Callbacks (lane_read.py) or a task answer it.

Laws: a connection has at most one pending read, and serves no other request meanwhile. Interim answers are
sent only before the first byte of the answer.
"""

import asyncio
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

from shadeproxy.api.s3.exchange import Asked
from shadeproxy.api.s3.handler import BegunRead, S3Handler
from shadeproxy.api.s3.lane_read import EngineLaneRead
from shadeproxy.api.s3.plain_miss import PlainMiss
from shadeproxy.api.s3.port import Outlet, Port
from shadeproxy.api.s3.relay_read import RelayRead
from shadeproxy.api.s3.response import break_off, unsent_bytes
from shadeproxy.core.tracing import CONNECTION
from shadeproxy.origin.interim import MOST_INTERIM, PROCESSING


class ReadingConnection(Outlet, Protocol):
    """The methods of a connection that its pending read calls."""

    def read_over(self, *, keep: bool) -> None:
        """Note that the pending read has ended. Then serve the next request, or end the connection if not
        ``keep``.
        """
        ...


class PendingRead:
    """Answers the reads of ``connection``, one after another; at most one is pending. Implements
    ``MissOutlet`` of plain_miss.py.
    """

    __slots__ = (
        "__weakref__", "_connection", "_interim", "_loop", "_over", "_port", "_read", "_s3", "_task",
        "_timer", "paused", "peer",
    )  # fmt: skip

    def __init__(self, connection: ReadingConnection, s3: S3Handler) -> None:
        self.peer = connection.peer
        """The client's address without its port."""
        self.paused = False
        """True while the client takes bytes more slowly than they are written. The connection sets this."""
        self._connection = connection
        self._s3 = s3
        self._loop = asyncio.get_running_loop()
        self._read: BegunRead | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._port: Port | None = None
        self._interim = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, asked: Asked) -> None:
        """Begin the read that ``asked`` describes. Its answer is written as the bytes arrive."""
        self._read = self._s3.begin_read(self, asked)
        if self._read is None:
            self._task = self._loop.create_task(self._run(asked), context=Context())
        if self._s3.interim_every_s:
            self._interim = 0
            self._timer = self._loop.call_later(self._s3.interim_every_s, self._say_so)

    def look(self) -> None:
        """Continue to write the answer, because the client has taken enough of the bytes sent so far."""
        if self._read is not None:
            self._read.look()

    def cancel(self) -> None:
        """End the read, because the client has gone or the time for a shutdown is over. Later calls do
        nothing.
        """
        if self._timer is not None:
            self._stop_timer()
        if self._task is not None:
            self._task.cancel()
        if self._read is not None:
            self._read.cancel()
            self._end()

    async def over(self) -> None:
        """Wait until no read is pending."""
        if self._task is not None:
            await asyncio.wait({self._task})
        elif self._read is not None:
            self._over = self._over or self._loop.create_future()
            await asyncio.wait({self._over})
            await self.over()  # The read may now continue in a task.

    # ------------------------------------------------------------------ what a read by callbacks calls

    def write_pieces(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write ``pieces`` of the answer to the client."""
        transport = self._connection.transport
        # If the transport is closing, ``connection_lost`` will soon cancel this read in any case.
        if transport is not None and not transport.is_closing():
            transport.writelines(pieces)

    def call_in_turn(self, function: Callable[[], None]) -> None:
        """Call ``function`` in a later turn of the event loop, when the turn limiter lets it run."""
        self._loop.call_soon(self._s3.pace.call, function)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken yet, see ``ClientConnection``."""
        return unsent_bytes(self._connection.transport)

    def cut(self) -> None:
        """Reset the connection, so that the client sees that the answer broke off."""
        if self._connection.transport is not None:
            break_off(self._connection.transport)

    def read_ended(self, *, keep: bool) -> None:
        """Note that the read has ended. The connection then serves the next request, or ends if not
        ``keep``.
        """
        if self._timer is not None:
            self._stop_timer()
        self._read = None
        if self._over is not None:
            self._end()
        self._connection.read_over(keep=keep)

    def replace_read(self, read: EngineLaneRead) -> None:
        """Let ``read`` continue instead of the plain miss."""
        self._read = read

    def go_on_by_task(self) -> None:
        """Continue the read in a task, because callbacks cannot answer it. No byte of its answer was sent."""
        read = self._read
        assert read is not None, "it calls"
        assert not isinstance(read, PlainMiss), "replaced before"
        self._end()
        # The caller may run in the context of another reader of the same page, so give the task a new
        # context.
        self._task = self._loop.create_task(self._run(read.asked, read), context=Context())
        # Release the read by this callback, because a task that is cancelled before its first step runs no
        # line of ``_run``.
        self._task.add_done_callback(read.release)

    # ------------------------------------------------------------------ inside

    async def _run(self, asked: Asked, begun: EngineLaneRead | RelayRead | None = None) -> None:
        keep = False
        CONNECTION.set(weakref.ref(self))
        try:
            method = asked.call.request.method
            self._port = Port(self._connection, method, keep_alive=asked.keep_alive)
            keep = await self._s3.serve_read(self._port, asked, begun)
        finally:
            if self._timer is not None:
                self._stop_timer()
            self._task = self._port = None
            self._connection.read_over(keep=keep)

    def _say_so(self) -> None:
        """Send an interim answer if the read still waits for its first byte."""
        self._timer, transport = None, self._connection.transport
        is_answering = self._port.is_answering if self._port is not None else False
        sent = self._read is not None and self._read.bytes_sent
        if is_answering or sent or transport is None or transport.is_closing():
            return
        transport.write(PROCESSING)
        self._interim += 1
        if self._interim < MOST_INTERIM:
            self._timer = self._loop.call_later(self._s3.interim_every_s, self._say_so)

    def _stop_timer(self) -> None:
        assert self._timer is not None, "asked before"
        self._timer.cancel()
        self._timer = None

    def _end(self) -> None:
        self._read = None
        if self._over is not None:
            self._over.set_result(None)
            self._over = None
