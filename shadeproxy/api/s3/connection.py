"""One client connection: the fast lane answers a request if it can, and a task answers all others.

Laws: requests are answered in their order, one after another. Bytes behind a request wait here until it has
ended. This module knows no operation and no engine.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial

from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.exchange import LATER
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.head import MOST_HEAD_BYTES, NO_HEAD, may_begin, too_long
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.part_writer import PartWriter, client_transport, is_unsent
from shadeproxy.api.s3.pending_forward import PendingForward
from shadeproxy.api.s3.pending_read import PendingRead
from shadeproxy.api.s3.port import peer_of
from shadeproxy.api.s3.request_body import ClientBody
from shadeproxy.api.s3.response import break_off, close_later
from shadeproxy.api.s3.sender import Sender
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.pace import set_done

MOST_HELD_BYTES = 256 * 1024
_ABORT_S = 0.2
"""Time for a cancelled request to end."""
_LOOK_S = 0.02


class OpenConnections(set["S3Protocol"]):
    """The open connections of a listener. ``are_ending``: the listener stops, so a connection that opens now,
    after its TLS handshake, is closed at once.
    """

    are_ending = False


class S3Protocol(asyncio.Protocol):
    """One client connection. Many requests may follow each other on it. ``others``: gets this connection too
    while it is open.
    """

    __slots__ = (
        "_active", "_answer", "_begun", "_body", "_drained", "_dropped_bytes", "_ending", "_half_closed",
        "_held", "_keepalive_s", "_limiter", "_look", "_loop", "_others", "_parse", "_paused",
        "_pending", "_reading", "_refused", "_resumed", "_s3", "_sender", "_stopped", "_taken", "_timer",
        "_waits", "breaks_off_with_fin", "peer", "transport",
    )  # fmt: skip

    def __init__(
        self,
        others: OpenConnections,
        s3: S3Handler,
        fast: FastLane,
        *,
        keepalive_s: float,
        limiter: ConnectionLimiter,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._others = others
        self._s3 = s3
        self._answer = fast.answer if fast.hits is None else fast.hits.answer
        self._look = fast.look
        self._parse = fast.parse
        self._keepalive_s = keepalive_s
        self._limiter = limiter
        self.transport: asyncio.Transport | None = None
        """The client's transport; None before the connection begins, and after it has ended."""
        self.peer, self.breaks_off_with_fin = "", s3.breaks_off_with_fin
        """The client's address (port.py ``HasPeer``), and the setting of the same name in ``S3Handler``."""
        self._held = b""
        self._sender: Sender | None = None  # None before the connection is admitted, and after it has ended.
        self._pending: PendingRead | None = None  # Made for the first read, and used for all later ones.
        # That object while a read is pending, or a forwarded request; otherwise None.
        self._reading: PendingRead | PendingForward | None = None
        self._body: ClientBody | None = None  # That request's body, while it arrives.
        self._waits = False  # True if the first request in ``_held`` waits for its turn.
        self._paused = False  # True while the client takes bytes more slowly than they are written.
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._active = False  # True if a request was answered since the timer last ran.
        # Counters for ``_progress``: how often the client caught up, and how many requests were begun.
        self._resumed = self._begun = 0
        self._taken: tuple[int, int, int, int] | None = None  # ``_progress`` when the timer last ran.
        self._ending = False  # True if no further request is served, except one that waits for its turn.
        self._refused = False  # True if further bytes are dropped until the connection is closed.
        self._half_closed = False
        self._dropped_bytes = 0
        self._stopped = False  # True if the transport was told to stop reading from the client.

    # ------------------------------------------------------------------ what the transport calls

    def receive(self, data: bytes) -> None:
        """Process bytes of the client."""
        if self._refused:
            self._drop(data)
        elif self._body is not None:
            self._body.take(data)
        elif self._held:
            self._hold(self._held + data)
            self._go_on()
        else:
            self._serve(data)

    data_received = receive

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the connection, or refuse it if the limit of connections is reached."""
        self.transport = client_transport(transport)
        if not self._limiter.enter():
            self._ending = self._refused = True
            self._limiter.turn_away(transport)
            return
        self._others.add(self)
        self.peer = peer_of(transport)
        self._sender = Sender(self.transport, self._go_on, self._s3.report_cut)
        self._timer = self._loop.call_later(self._keepalive_s, self._check)
        if self._others.are_ending:
            self._close()

    def pause_writing(self) -> None:
        """Stop sending, because the client takes bytes more slowly than they are written."""
        self._paused = True
        if self._pending is not None:
            self._pending.paused = True

    def resume_writing(self) -> None:
        """Continue sending, because the client has taken enough of the written bytes."""
        self._paused = False
        if self._pending is not None:
            self._pending.paused = False
        self._resumed += 1
        if isinstance(self.transport, PartWriter):
            self.transport.go_on()
            if self._paused:
                return
        if self._drained is not None:
            # Many clients may become ready in one turn of the loop. The turn limiter spreads their work.
            self._s3.pace.call(partial(set_done, self._drained))
            self._drained = None
        if self._reading is not None:
            self._reading.look()
        if self._held or self._half_closed:
            self._loop.call_soon(self._go_on)

    def eof_received(self) -> bool:
        """Keep the connection open until earlier requests are answered. The transport alone would close it
        when its buffer is empty, because the transport does not know that a file is still being sent.
        """
        if isinstance(self.transport, PartWriter):
            self.transport.write_rest()
        self._half_closed = self._waits or (self._sender is not None and self._sender.busy)
        return self._half_closed

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel the request under way, and drop all that this connection holds."""
        self.transport, self._ending = None, True
        if self._sender is None:
            return  # The limiter has refused the connection.
        self._limiter.leave()
        self._others.discard(self)
        self._held = b""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
        self._sender.close()
        # These objects refer back to this connection. Break the cycle, which only the collector would free.
        self._sender = self._reading = self._pending = self._body = self._timer = None

    def drained(self, *, gives_way: bool) -> Awaitable[None] | None:
        """Return what to await before more is written, or None; see port.py ``Outlet.drained``."""
        if self.transport is None:
            raise ConnectionResetError("the client is gone")
        if self._paused:
            self._drained = self._loop.create_future()
            return self._drained
        return self._s3.pace.turn() if gives_way else None

    # ------------------------------------------------------------------ the end

    async def shutdown(self, limit_s: float) -> bool:
        """Let the request under way end, then close. After ``limit_s`` seconds, cut it off and return
        True.
        """
        cut, self._ending = False, True
        try:
            async with asyncio.timeout(limit_s):
                if self._waits and (turn := self._s3.pace.turn()) is not None:
                    await turn
                if self._reading is not None:
                    await self._reading.over()
                if self._sender is not None:
                    await self._sender.idle()
                self._close()
                while self.transport is not None and is_unsent(self.transport):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            cut, reading = True, self._reading
            if self.transport is not None:
                break_off(self.transport)
            if reading is not None:
                reading.cancel()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ABORT_S):
                        await reading.over()
        self._close()
        if self._sender is not None:
            # Close the sender here too: if the loop stops early, ``connection_lost`` is never called.
            self._sender.close()
        return cut

    def _close(self) -> None:
        """Serve no further request. Close the connection once the written bytes are sent."""
        self._ending, self._held = True, b""
        if self.transport is not None:
            self.transport.close()

    def _refuse(self, error: InvalidRequest) -> None:
        """Answer ``error`` to bytes that are not a request, and end the connection."""
        self._ending = self._refused = True
        self._held = b""
        self._reading = PendingForward(self, self._s3, NO_HEAD, refused=error)

    def _drop(self, data: bytes) -> None:
        """Drop bytes of a refused client. They are read for a while, so that the client gets the refusal."""
        self._dropped_bytes += len(data)
        if self._dropped_bytes > MOST_HELD_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def _check(self) -> None:
        """End the connection if its client is idle, or takes no bytes. A timer calls this."""
        before, self._taken = self._taken, self._progress()
        if self._taken is not None and self._taken == before:
            # Cut off a client that takes no bytes: it keeps a page pinned, or memory that other clients need.
            waits_for_disk = self._sender is not None and self._sender.is_loading
            cause = "a disk gave nothing" if waits_for_disk else "the client took nothing"
            self._s3.report_cut(f"{cause} for {self._keepalive_s:g} s")
            if self.transport is not None:
                break_off(self.transport)
            return
        if self._active or self._busy or self._taken is not None:
            self._active = False
            self._timer = self._loop.call_later(self._keepalive_s, self._check)
        else:
            self._close()

    def _progress(self) -> tuple[int, int, int, int] | None:
        """Return counters that change as the client takes bytes; None if no bytes wait for the client."""
        waiting_bytes = 0 if self.transport is None else self.transport.get_write_buffer_size()
        sender = self._sender
        if not waiting_bytes and (sender is None or not sender.busy):
            return None
        # Two answers in a row may have equally many bytes waiting, so count the begun requests as well.
        return self._resumed, self._begun, waiting_bytes, 0 if sender is None else sender.sent

    # ------------------------------------------------------------------ requests

    def _serve(self, data: bytes, *, in_turn: bool = False) -> None:
        """Answer the complete requests in ``data``, as long as the client takes the answers. ``in_turn``: the
        first request has waited for its turn of the loop.
        """
        while data:
            sender = self._sender
            # Drop all bytes of a connection that ends. They may be the body of a request that is not served.
            # The next condition repeats ``_busy``, because each hit comes here, and a call would cost more.
            if sender is None or sender.transport.is_closing() or (self._ending and not in_turn):
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
                self._forward(raw, b"" if raw is data else data[end:])
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
                self._close()
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
        """Serve the next request, because one has ended; see ``ReadingConnection.read_over``."""
        ended, self._reading, self._body, self._active = self._reading, None, None, True
        if keep and not self._ending:
            if self._held or self._half_closed:
                self._go_on()
        elif isinstance(ended, PendingForward) and ended.may_be_followed and self.transport is not None:
            # Requests may be on their way. If they are unread at the close, the kernel resets the connection,
            # and the client may lose the answer.
            self._ending = self._refused = True
            close_later(self.transport)
        else:
            self._close()

    def _forward(self, raw: bytes, data: bytes) -> None:
        """Answer, by a task, the request with the head ``raw``. ``data`` follows the head."""
        try:
            head = self._parse(raw)
        except InvalidRequest as error:
            self._refuse(error)
            return
        self._reading = pending = PendingForward(self, self._s3, head)
        if not pending.body.is_over:
            self._body = pending.body
            self._body.take(data)
        elif data:
            self._hold(data)

    def body_over(self, rest: bytes) -> None:
        """Note that the body has arrived, and hold the bytes behind it; see ``BodyConnection.body_over``."""
        if self._body is not None:
            self._body = None
            if rest:
                self._hold(rest)

    def body_full(self, *, full: bool) -> None:
        """Stop or resume reading from the client; see ``BodyConnection.body_full``."""
        self._stopped = full
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading() if full else self.transport.resume_reading()

    def _hold(self, data: bytes) -> None:
        """Hold bytes that cannot be served now. Refuse them if no request begins so."""
        self._held = data
        if b"\r\n\r\n" in data or self._busy:
            if len(data) > MOST_HELD_BYTES:
                self.body_full(full=True)
        elif len(data) > MOST_HEAD_BYTES:
            self._refuse(too_long())
        elif not may_begin(data):
            self._refuse(InvalidRequest("The request is not HTTP/1.1", hint="use HTTP/1.1"))

    def _go_on(self, *, in_turn: bool = False) -> None:
        """Serve the held bytes, unless the next request must wait."""
        if self._busy:
            return
        held, self._held = self._held, b""
        if self._stopped:
            self.body_full(full=False)
        self._serve(held, in_turn=in_turn)
        if self._half_closed and not self._busy:
            self._close()
