"""One client connection: the fast lane answers a request if it can, and a task answers all others.

Laws: bytes belong to exactly one lane, and lanes change only between two requests. If the head of a request
is not of the strict form (head.py), aiohttp gets the request unchanged, and keeps the connection until its
end. This module knows no operation and no engine.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, cast

from aiohttp import web

from shadeproxy.api.refusing import RefusingHandler
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.exchange import LATER
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.head import MAX_FIELD_BYTES, MAX_LINE_BYTES, MOST_FIELDS, Head
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.pending_forward import PendingForward
from shadeproxy.api.s3.pending_read import PendingRead
from shadeproxy.api.s3.port import peer_of
from shadeproxy.api.s3.request_body import ClientBody
from shadeproxy.api.s3.response import break_off
from shadeproxy.api.s3.sender import Sender
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.pace import set_done

_READ_BYTES = 256 * 1024
_LINGER_S, _LOOK_S = 5.0, 0.02
MOST_HEAD_BYTES = MAX_LINE_BYTES + 2 * MAX_FIELD_BYTES
MOST_HELD_BYTES = 256 * 1024
_HANDLER_LIMITS: dict[str, Any] = {
    "access_log": None,
    # An upload that is compressed by gzip goes to the origin as it was sent.
    "auto_decompress": False,
    "max_line_size": MAX_LINE_BYTES,
    "max_field_size": MAX_FIELD_BYTES,
    "max_headers": MOST_FIELDS,
    "read_bufsize": _READ_BYTES,
    "lingering_time": _LINGER_S,
}
"""Arguments for the constructor of aiohttp's protocol."""

# The lane that has the connection now. These are plain numbers, because they are compared often, and
# comparing Enum members takes longer.
_OURS = 0
"""The connection is between two requests, or one is answered without aiohttp."""
_GIVEN = 1
"""aiohttp has the connection until its end."""


class S3Protocol(RefusingHandler):
    """One client connection, which begins in the fast lane. Many requests may follow each other on it."""

    __slots__ = (
        "_active", "_admitted", "_answer", "_begun", "_body", "_drained", "_ending", "_half_closed",
        "_head_bytes", "_held", "_lane", "_limiter", "_look", "_parse", "_pending", "_reading",
        "_refused", "_resumed", "_s3", "_sender", "_stopped", "_taken", "_turned_from", "_waits",
        "breaks_off_with_fin", "peer",
    )  # fmt: skip

    def __init__(
        self,
        server: web.Server,
        s3: S3Handler,
        fast: FastLane,
        *,
        keepalive_s: float,
        limiter: ConnectionLimiter,
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, keepalive_timeout=keepalive_s, **_HANDLER_LIMITS)
        self._s3 = s3
        self._answer = fast.answer if fast.hits is None else fast.hits.answer
        self._look = fast.look
        self._parse = fast.parse
        self._limiter = limiter
        self.peer, self.breaks_off_with_fin = "", s3.breaks_off_with_fin
        """The client's address (port.py ``HasPeer``), and the setting of the same name in ``S3Handler``."""
        self._admitted = True
        self._lane, self._held = _OURS, b""
        self._sender: Sender | None = None
        self._pending: PendingRead | None = None  # Made for the first read, and used for all later ones.
        # That object while a read is pending, or a forwarded request; otherwise None.
        self._reading: PendingRead | PendingForward | None = None
        self._body: ClientBody | None = None  # That request's body, while it arrives.
        self._waits = False  # True if the first request in ``_held`` waits for its turn.
        self._drained: asyncio.Future[None] | None = None
        self._active = False  # True if a request was answered since the keep-alive timer last ran.
        # Counters for ``_progress``: how often the client caught up, and how many requests were begun.
        self._resumed = self._begun = 0
        self._taken: tuple[int, int, int, int] | None = None  # ``_progress`` when that timer last ran.
        self._ending = self._half_closed = False
        self._turned_from: asyncio.Transport | None = None  # The transport of a refused client.
        self._refused = False  # True if further bytes are dropped until the connection is closed.
        self._head_bytes = 0  # Bytes of an incomplete head that aiohttp has received.
        self._stopped = False  # True if the transport stopped reading, because too many bytes are held.

    # ------------------------------------------------------------------ what the transport calls

    def receive(self, data: bytes) -> None:
        """Process bytes of the client. aiohttp calls this with b"" when its own parser must continue."""
        if not self._admitted or self._refused:
            self._drop(data)
            return
        if self._body is not None and data:
            self._body.take(data)
        elif self._lane == _OURS and data:
            if self._held:
                self._hold(self._held + data)
                self._go_on()
            else:
                self._serve(data)
        else:
            self._watch_head(data)
            if not self._refused:
                super().data_received(data)

    data_received = receive

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the connection, or refuse it if the limit of connections is reached."""
        self._admitted = self._limiter.enter()
        if not self._admitted:
            # A cast, because uvloop's own transport class is no subclass of asyncio's.
            self._turned_from = cast("asyncio.Transport", transport)
            self._limiter.turn_away(transport)
            return
        super().connection_made(transport)
        assert self.transport is not None, "aiohttp keeps what it was given"
        self.peer = peer_of(self.transport)
        self._sender = Sender(self.transport, self._go_on, self._s3.report_cut)

    def pause_writing(self) -> None:
        """Stop sending, because the client takes bytes more slowly than they are written."""
        super().pause_writing()
        if self._pending is not None:
            self._pending.paused = True

    def resume_writing(self) -> None:
        """Continue sending, because the client has taken enough of the written bytes."""
        super().resume_writing()
        if self._pending is not None:
            self._pending.paused = False
        self._resumed += 1
        if self._drained is not None:
            # Many clients may become ready in one turn of the loop. The turn limiter spreads their work.
            self._s3.pace.call(partial(set_done, self._drained))
            self._drained = None
        if self._reading is not None:
            self._reading.look()
        if self._held:
            self._loop.call_soon(self._go_on)

    def eof_received(self) -> bool:  # type: ignore[override] # aiohttp's answers None, which is False
        """Keep the connection open until earlier requests are answered. The transport alone would close it
        when its buffer is empty, because the transport does not know that a file is still being sent.
        """
        self._half_closed = self._waits or (self._sender is not None and self._sender.busy)
        return self._half_closed

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel the read under way, and drop all that this connection holds."""
        if not self._admitted:
            return
        self._limiter.leave()
        self._held = b""
        if self._reading is not None:
            self._reading.cancel()
        if self._sender is not None:
            self._sender.close()
        # These objects refer back to this connection. Break the cycle, which only the collector would free.
        self._sender = self._reading = self._pending = self._body = None
        super().connection_lost(exc)

    def drained(self, *, gives_way: bool) -> Awaitable[None] | None:
        """Return what to await before more is written, or None; see port.py ``Outlet.drained``."""
        if self.transport is None:
            raise ConnectionResetError("the client is gone")
        if self._paused:
            self._drained = self._loop.create_future()
            return self._drained
        return self._s3.pace.turn() if gives_way else None

    # ------------------------------------------------------------------ what aiohttp calls

    def refuse_malformed(self, request: web.BaseRequest, reason: str) -> web.StreamResponse:  # noqa: ARG002
        return self._s3.refuse_malformed(request)

    def close(self) -> None:  # aiohttp's own task calls this only if it will not read the rest of the body.
        if asyncio.current_task() is self._task_handler or not self._awaits_body():
            super().close()  # Otherwise a body is arriving, and ``shutdown`` closes after the body.

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's signature
        """Let the read and the body under way end, then close. After ``timeout``, cut them off."""
        self._ending = True
        try:
            async with asyncio.timeout(timeout):
                if self._waits and (turn := self._s3.pace.turn()) is not None:
                    await turn
                if self._reading is not None:
                    await self._reading.over()
                if self._sender is not None:
                    await self._sender.idle()
                # aiohttp's ``shutdown``, called below, drops the rest of a body that a handler still reads.
                while self._awaits_body():  # noqa: ASYNC110 - aiohttp has no event for that
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            if self._reading is not None:
                self._reading.cancel()
            if self.transport is not None:
                break_off(self.transport)
        super().close()  # A connection without a request ends now.
        await super().shutdown(timeout)
        if self._sender is not None:
            # Close the sender here too: if the loop stops early, ``connection_lost`` is never called.
            self._sender.close()

    def _process_keepalive(self) -> None:
        before, self._taken = self._taken, self._progress()
        if self._taken is not None and self._taken == before:
            # Cut off a client that takes no bytes: it keeps a page pinned, or memory that other clients need.
            self._s3.report_cut(f"the client took nothing for {self.keepalive_timeout:g} s")
            if self.transport is not None:
                break_off(self.transport)
            return
        working = self._waiter is None or self._waiter.done()
        if self._active or self._busy or working or self._taken is not None:
            self._active = False
            self._keepalive_handle = self._loop.call_later(self.keepalive_timeout, self._process_keepalive)
        else:
            super()._process_keepalive()

    def _progress(self) -> tuple[int, int, int, int] | None:
        """Return counters that change as the client takes bytes; None if no bytes wait for the client."""
        waiting_bytes = 0 if self.transport is None else self.transport.get_write_buffer_size()
        sender = self._sender
        if not waiting_bytes and (sender is None or not sender.busy):
            return None
        # Two answers in a row may have equally many bytes waiting, so count the begun requests as well.
        return self._resumed, self._begun, waiting_bytes, 0 if sender is None else sender.sent

    # ------------------------------------------------------------------ the fast lane

    def _serve(self, data: bytes, *, in_turn: bool = False) -> None:
        """Answer the complete requests in ``data``, as long as the client takes the answers. ``in_turn``: the
        first request has waited for its turn of the loop.
        """
        while data:
            sender = self._sender
            # Drop all bytes of a connection that ends: after a refused head they may be the request's body.
            # The next condition repeats ``_busy``, because each hit comes here, and a call would cost more.
            if (
                sender is None
                or self._force_close
                or sender.transport.is_closing()
                or ((self._ending or self._close) and not in_turn)
            ):
                return
            if self._reading is not None or self._waits or self._paused or sender.waiting is not None:
                self._hold(data)
                return
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._hold(data)
                return
            raw = data if end == len(data) else data[:end]
            self._begun += 1
            outcome = self._look(raw, sender) if in_turn else self._answer(raw, sender)
            in_turn = False
            if outcome is None:
                head = self._parse(raw)
                if head is None:
                    self._give(data)
                else:
                    self._forward(head, b"" if raw is data else data[end:])
                return
            data = b"" if raw is data else data[end:]
            if outcome is True:
                self._active = True
            elif outcome == LATER:
                self._waits = True
                self._hold(raw + data)
                self._s3.pace.call(self._take_turn)
                return
            elif outcome is False:
                self.force_close()
                return
            else:
                self._reading = self._pending = self._pending or PendingRead(self, self._s3)
                self._reading.begin(outcome)

    def _take_turn(self) -> None:
        self._waits = False
        self._go_on(in_turn=True)

    @property
    def _busy(self) -> bool:
        """True if the next request must wait: for its turn, for an answer to end, or for a slow client."""
        sender = self._sender
        return (
            self._waits or self._paused or self._reading is not None or (sender is not None and sender.busy)
        )

    def read_over(self, *, keep: bool) -> None:
        """Serve the next request, because a read has ended; see ``ReadingConnection.read_over``."""
        self._active, self._reading, self._body = True, None, None
        gone = self.transport is None or self.transport.is_closing() or self._force_close
        if gone or not keep or self._ending or self._close:
            self.force_close()
        if self._held or self._half_closed:
            self._go_on()

    def _forward(self, head: Head, data: bytes) -> None:
        """Forward the request with the head ``head``. ``data`` follows the head."""
        self._reading = pending = PendingForward(self, self._s3, head)
        if pending.body.is_over:
            self._held = data
        else:
            self._body = pending.body
            self._body.take(data)

    def body_over(self, rest: bytes) -> None:
        """Note that the body has arrived, and hold the bytes behind it; see ``BodyConnection.body_over``."""
        if self._body is not None:
            self._body = None
            if rest:
                self._hold(rest)

    def body_full(self, *, full: bool) -> None:
        """Stop or resume reading from the client; see ``BodyConnection.body_full``."""
        if full:
            self._stop_reading()
        else:
            self._resume_reading()

    def _hold(self, data: bytes) -> None:
        self._held = data
        if len(data) > MOST_HEAD_BYTES and not self._busy and b"\r\n\r\n" not in data:
            self._refuse_head()
        elif len(data) > MOST_HELD_BYTES:
            self._stop_reading()

    def _stop_reading(self) -> None:
        # Reading may go on although it was stopped here, because aiohttp also stops and resumes it.
        self._stopped = True
        self._pause_transport_reading()

    def _resume_reading(self) -> None:
        self._stopped = False
        if not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _watch_head(self, data: bytes) -> None:
        """Refuse a head that is too long. aiohttp does not limit the bytes that follow a refused line."""
        idle = self._waiter is not None and not self._waiter.done()
        self._head_bytes = self._head_bytes + len(data) if idle and b"\r\n\r\n" not in data else 0
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()

    def _drop(self, data: bytes) -> None:
        """Drop bytes of a refused client. They are read for a while, so that the client gets the refusal."""
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HELD_BYTES and self._turned_from is not None:
            self._turned_from.pause_reading()

    def _refuse_head(self) -> None:
        self._refused, self._held, self._turned_from = True, b"", self.transport
        if self.transport is not None:
            error = InvalidRequest(f"The header of the request is longer than {MOST_HEAD_BYTES} bytes")
            self._limiter.refuse(self.transport, error)

    def _go_on(self, *, in_turn: bool = False) -> None:
        """Serve the held bytes, unless aiohttp has the connection or the next request must wait."""
        if self._lane != _OURS or self._busy:
            return
        held, self._held = self._held, b""
        if self._stopped:
            self._resume_reading()
        self._serve(held, in_turn=in_turn)
        if self._half_closed and not self._busy:
            # aiohttp's own ``close`` lets aiohttp finish the request that it has, whose body is complete.
            self.force_close() if self._lane == _OURS else super().close()

    def _give(self, data: bytes) -> None:
        """Let aiohttp keep the connection. Its next request begins with ``data``."""
        self._held, self._lane = b"", _GIVEN
        if self._stopped:
            self._resume_reading()
        super().data_received(data)
