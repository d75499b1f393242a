"""One HTTP/1.1 connection to an origin, for requests without a body, one exchange at a time.

States: IDLE (no request is under way; a byte that arrives ends the connection) -> HEAD (a request was sent,
its answer has no complete head yet) -> BODY (the rest of the answer is to come) -> IDLE. The kernel copies
the body straight into the buffer of a reader that waits in ``receive``, or into memory of the receiver of
``start``. While the receiver of ``start_whole`` recognises the answer, its memory gets the head too. Without
any of these, reading is paused. Only a ``reusable`` connection may serve another exchange.
"""

import asyncio
import math
import socket
from collections.abc import AsyncGenerator, Callable
from copy import copy
from typing import cast

from shadeproxy.core.deadline import DEFAULT_BOUNDS, LeastRate, ReadBounds
from shadeproxy.origin.base import Arrived
from shadeproxy.origin.http1 import BODILESS, BadAnswer, ChunkedBody, Head, parse_head
from shadeproxy.origin.interim import INTERIM, MOST_INTERIM
from shadeproxy.origin.receiver import Broken, Dead, Receiver, State, Surplus, WholeReceiver

_SCRATCH_BYTES = 8 << 10
_DECRYPTED_BYTES = 128 << 10  # With TLS. An answer that fits arrives in one callback (docs/adr/0033).
_PIECE_BYTES = 64 << 10


class Connection(asyncio.BufferedProtocol):
    """One connection. ``lost(connection)`` is called once, when the transport has been closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lost: Callable[["Connection"], None],
        bounds: ReadBounds = DEFAULT_BOUNDS,
    ) -> None:
        self.exchanges = 0
        self.reusable = True  # The connection may serve another exchange.
        self.asked_region = ""  # The region for which the last page GET was signed.
        self.failure: Exception | None = None
        """The error that ended the connection. It is BadAnswer if bytes came after a whole answer."""
        self.filled = 0  # Number of bytes in the buffer of the reader, or in the memory of the receiver.
        self.state = State.IDLE
        self.since_s = loop.time()
        """Loop time of the last body byte; in IDLE, of the exchange's end; in HEAD, of the request."""
        self._window_s = bounds.window_s
        self._pace = LeastRate(bounds)
        self._loop = loop
        self._lost = lost
        self._transport = cast(asyncio.Transport, None)
        self._scratch = self._own_scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._held = self._taken = 0  # Bytes in the scratch buffer, and how many of them were handed out.
        self._head: Head | None = None
        self._remaining = 0  # Bytes of a body of known length that were not handed out yet.
        self._sink = self._scratch[:0]
        self._least = self._interim = 0
        self._arrived: Arrived | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.receiver: Receiver | None = None  # Until it has all bytes, or leaves the answer to a reader.
        self._whole: WholeReceiver | None = None  # The receiver, while its memory takes head and body.
        self._answered = False  # True if a byte came since the request was sent.
        self._on_interim: Callable[[], None] | None = None
        self.bodiless = False  # True if the answer has no body, whatever its head says.
        self._paused = self._ended = False  # ``_ended``: the peer ended the connection.

    # ------------------------------------------------------------------ exchanges

    @property
    def waiting(self) -> bool:
        """True if a reader waits for bytes now."""
        return self.receiver is not None or (self._waiter is not None and not self._waiter.done())

    @property
    def link(self) -> socket.socket | None:
        return cast(socket.socket | None, self._transport.get_extra_info("socket"))

    @property
    def patience_s(self) -> float:
        """Seconds after ``since_s`` within which a byte must come. Otherwise the body is too slow."""
        left_s = self._pace.patience_s
        return math.inf if left_s is None or self.state is not State.BODY else left_s

    async def ask(self, request: bytes, *, bodiless: bool = False) -> Head:
        """Send the head of a request, and return the head of its answer. ``bodiless``: the request is a HEAD.

        Raises Dead, Broken, BadAnswer, OSError.
        """
        if not self.reusable:
            self.exchanges += 1
            raise Dead  # The connection was lost after the pool handed it out.
        self.start(request)
        self.bodiless, self._on_interim = bodiless, INTERIM.get()
        while self._head is None:
            await self._arrival()
        return self._head

    def start(self, request: bytes, receiver: Receiver | None = None) -> None:
        """Send the head of a request. ``receiver`` gets the answer. Call it only while ``reusable``."""
        self.exchanges += 1
        self.reusable = self._answered = self.bodiless = False
        self.state, self._head = State.HEAD, None
        self.receiver, self._on_interim = receiver, None
        self._scratch, self._held, self._taken, self._interim = self._own_scratch, 0, 0, 0
        self._pace.left_s = self._window_s
        self.since_s = self._loop.time()
        self._transport.write(request)

    def start_whole(self, request: bytes, receiver: WholeReceiver) -> None:
        """Send the head of a request as ``start`` does. The answer arrives in memory of ``receiver``."""
        self.start(request, receiver)
        self._whole, self.filled = receiver, 0

    async def receive(self, buffer: memoryview, arrived: Arrived | None = None, *, least: int = -1) -> int:
        """Receive at least ``least`` body bytes (default: all) into ``buffer``. Return how many it holds.

        If the body's length is known, no bytes after its end are received. At the end of any other body, the
        result is 0. ``arrived`` is called as soon as bytes arrive. Raises Broken, OSError, TimeoutError.
        """
        known = self._head is not None and self._head.length is not None
        if known:
            buffer = buffer[: self._remaining]
        least = len(buffer) if least < 0 else min(least, len(buffer))
        self.filled = min(self._held - self._taken, len(buffer))
        if self.filled:
            buffer[: self.filled] = self._scratch[self._taken : self._taken + self.filled]
            self._taken += self.filled
            if arrived is not None:
                arrived(self.filled)
        if self.filled < least:
            self._sink, self._least, self._arrived = buffer, least, arrived
            try:
                if self._paused:
                    self._resume()
                while self.filled < least and not (self._ended and not known and self.failure is None):
                    await self._arrival()
            finally:
                self._sink, self._arrived = self._scratch[:0], None
        if known:
            self._remaining -= self.filled
            if not self._remaining:
                if isinstance(self.failure, BadAnswer):
                    raise Surplus
                self._finish()
        return self.filled

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the rest of the body, decoded, in pieces. Raises BadAnswer, and the errors of ``receive``."""
        assert self._head is not None, "read before it was asked"
        if self._head.length is not None:
            while self._remaining:
                piece = memoryview(bytearray(min(_PIECE_BYTES, self._remaining)))
                count = await self.receive(piece, least=1)
                yield bytes(piece[:count])
            return
        coding = ChunkedBody() if self._head.chunked else None
        piece = memoryview(bytearray(_SCRATCH_BYTES))
        while self.state is State.BODY:
            count = await self.receive(piece, least=1)
            data = bytes(piece[:count])
            if coding is None:
                if not count:
                    self._finish()
            else:
                if not count:
                    raise Broken
                data = coding.feed(data)
                if coding.surplus:
                    raise BadAnswer("bytes after the end of an answer")
                if coding.ended:
                    self._finish()
            if data:
                yield data

    def abort(self) -> None:
        """Close at once, even within an exchange. The receiver is not called any more. Idempotent."""
        self._let_go()
        self.reusable = False
        if self.failure is None:
            self.failure = Broken()
        if self._transport is not None:
            self._transport.abort()

    def time_out(self) -> None:
        """End the exchange with TimeoutError, because no byte arrived for too long."""
        self._fail(TimeoutError())

    # ------------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("sslcontext") is not None:
            self._scratch = self._own_scratch = memoryview(bytearray(_DECRYPTED_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        if not self._sink and self._whole is not None:
            self._sink = self._whole.make_memory()
        if self._sink:
            return self._sink[self.filled :]
        if self._held == len(self._scratch):
            self._scratch = memoryview(bytearray(self._scratch) + bytes(self._held))
        return self._scratch[self._held :]

    def buffer_updated(self, count: int) -> None:
        if self._whole is not None:
            self._arrive_whole(self._whole, count)
        elif self._sink:
            self._arrive(count)
        elif self.state is State.HEAD:
            self._held += count
            self._answered = True
            self._take_head()
        else:
            self._fail(BadAnswer("bytes after the end of the answer"))

    def eof_received(self) -> bool:
        self._ended, self.reusable = True, False
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self.reusable = True, False
        if self.failure is None:
            if self.state is State.HEAD and not self._answered:
                self.failure = Dead()
            elif exc is not None:
                self.failure = exc
        self._wake()
        self._tell_failure()
        self._lost(self)

    # ------------------------------------------------------------------ inside

    def _take_head(self) -> None:
        data = cast(bytearray, self._scratch.obj)
        try:
            while (head := parse_head(data, self._held)) is not None and head.status < 200:
                self._skip_interim(head)
        except BadAnswer as error:
            self._fail(error)
            return
        if head is None:
            return
        if self.bodiless or head.status in BODILESS:
            self.bodiless, head = True, head._replace(length=0, chunked=False)
        came = self._held - head.size_bytes
        if head.length is not None and came > head.length:
            self._fail(BadAnswer("bytes after the end of an answer"))
            return
        self._head, self._taken = head, head.size_bytes
        self._remaining = head.length or 0
        self.state = State.BODY
        if (receiver := self.receiver) is not None:
            opened = receiver.opened(head)
            if self.receiver is None:
                return  # The receiver gave up the exchange meanwhile.
            if opened is not None:
                self._sink, self._arrived = memory, _ = opened
                self.filled, self._least, self.since_s = 0, len(memory), self._loop.time()
                if came:
                    memory[:came] = self._scratch[self._taken : self._held]
                    self._arrive(came)
                return
            self.receiver = None
        self._leave_body(head, came)

    def _leave_body(self, head: Head, came: int) -> None:
        """Leave the body, of which ``came`` bytes have arrived, to a reader."""
        if head.length == 0:
            self._finish()
        elif head.length is None or came < head.length:
            self._pause()
        self._wake()

    def _arrive_whole(self, receiver: WholeReceiver, count: int) -> None:
        """Take in ``count`` more bytes of head and body, which are in the receiver's memory."""
        self.filled += count
        now_s = self._loop.time()
        if self.state is State.HEAD:
            self._answered = True
            self._remaining = receiver.recognised(self.filled)
            if not self._remaining:
                self._move_to_scratch()
                self._take_head()
                return
            self.state = State.BODY
        elif self.filled < self._remaining:
            self._pace.note(now_s - self.since_s, count)
        self.since_s = now_s
        if self.filled > self._remaining:
            self._fail(BadAnswer("bytes after the end of an answer"))
        elif self.filled == self._remaining:
            self._whole, self.receiver, self._sink = None, None, self._scratch[:0]
            self.state, self.reusable = State.IDLE, not self._ended
            receiver.received()
        else:
            receiver.arrived()

    def _move_to_scratch(self) -> None:
        """Move the bytes from the receiver's memory to the scratch buffer, where the head is parsed."""
        came, self._held = self._sink[: self.filled], self.filled
        if self._held > len(self._scratch):
            self._scratch = memoryview(bytearray(self._held))
        self._scratch[: self._held] = came
        self._whole, self._sink = None, self._scratch[:0]

    def _arrive(self, count: int) -> None:
        """Take in ``count`` more bytes, which are in the reader's buffer or in the receiver's memory."""
        self.filled += count
        is_whole, now_s = self.filled == self._remaining, self._loop.time()
        if not is_whole:
            self._pace.note(now_s - self.since_s, count)
        self.since_s = now_s
        if self._arrived is not None:
            self._arrived(count)
        if self.filled < self._least:
            return
        self._sink = self._scratch[:0]
        if is_whole:
            self._held = self._taken = 0  # Any further byte is an error.
        else:
            self._pause()
        receiver, self.receiver = self.receiver, None
        if receiver is None:
            self._wake()
            return
        # These lines repeat ``_finish``, because each miss comes here and a call would cost more.
        assert self._head is not None, "a body has a head"
        self.state, self._arrived = State.IDLE, None
        self.reusable = self._head.keep_alive and not self._ended
        receiver.received()

    def _tell_failure(self) -> None:
        if (receiver := self.receiver) is not None:
            self._let_go()
            receiver.failed(self.failure or Broken())

    def _let_go(self) -> None:
        """Stop calling the receiver, and drop its memory."""
        if self.receiver is not None:
            self.receiver = self._arrived = self._whole = None
            self._sink = self._scratch[:0]

    def _skip_interim(self, head: Head) -> None:
        """Skip a 1xx answer, after which the final one comes. Raises BadAnswer for too many, and for 101: no
        upgrade was requested.
        """
        self._interim += 1
        if head.status == 101:
            raise BadAnswer("an upgrade that was not asked for")
        if self._interim > self._most_interim():
            raise BadAnswer("interim answers without end")
        tell = self._on_interim if self.receiver is None else self.receiver.interim
        if tell is not None:
            tell()
        self._held -= head.size_bytes
        self._scratch[: self._held] = bytes(self._scratch[head.size_bytes : head.size_bytes + self._held])

    def _most_interim(self) -> float:
        return MOST_INTERIM

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        self._transport.resume_reading()

    def _finish(self) -> None:
        assert self._head is not None, "an exchange that ends has a head"
        self.state = State.IDLE
        self.reusable = self._head.keep_alive and self.failure is None and not self._ended
        if self._paused:
            self._resume()  # While reading is paused, the end of an idle connection is not noticed.
        self.since_s = self._loop.time()

    def _arrival(self) -> asyncio.Future[None]:
        """Return a future that is done when bytes arrive. Raises the error that ended the connection."""
        if self.failure is not None:
            # Raise a copy. The traceback of a raised error refers to this connection, so an error that this
            # connection also refers to would make a cycle, which only the garbage collector frees.
            raise copy(self.failure)
        if self._ended:
            raise Broken if self._answered else Dead
        self._waiter = self._loop.create_future()
        self.since_s = self._loop.time()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        self.reusable = False
        if self.failure is None:
            self.failure = error
        self._wake()
        self._tell_failure()
        self._transport.abort()
