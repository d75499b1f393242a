"""Page GETs by callbacks: without a task, a coroutine or a wrapper for each read.

Laws: a callback read never waits, and sends one request. If the answer is not the plain one (a failure,
another status, an answer that cannot be cached), a coroutine continues the read over the wrappers of the
origin. The coroutine gets a ``HandedOver``, which has all that the read held. A read that ends well is
counted, limited and verified as by those wrappers, with the same slots, pool and statistics. Measured in
docs/adr/0028.
"""

import asyncio
from typing import Protocol

from shadeproxy.core.errors import BodyDamaged, OriginError
from shadeproxy.core.types import Intent
from shadeproxy.origin.base import HandedOver, Sink, Wanted
from shadeproxy.origin.connection import Connection, Dead, Surplus
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.s3pages import (
    Exchange,
    PageGets,
    broken_off,
    failed_before_head,
    interpret,
)
from shadeproxy.origin.verified import HELD_BYTES, Check, check_of, require

_NOTHING = memoryview(b"")


class TakesSlots(Protocol):
    """The slots for reads of the origin, as in limit.py ``LimitedOrigin``."""

    def take_now(self, intent: Intent) -> str | None:
        """Acquire a slot, and return the client to which it is charged. None: that would have to wait."""
        ...

    def give(self, client: str) -> None:
        """Release the slot of a read of ``client``."""
        ...


class CountsReads(Protocol):
    """Counts reads of the origin, as counted.py ``CountedOrigin``."""

    def now_s(self) -> float:
        """Return the time by which requests are measured."""
        ...

    def unanswered(self, started_s: float, error: BaseException) -> BaseException:
        """Return the failure to count for a read that ended with ``error`` before its answer came."""
        ...

    def note(self, kind: str, size_bytes: int, started_s: float, failure: BaseException | None) -> None:
        """Count a finished request."""
        ...


class CallbackReads:
    """Callback reads by ``gets``, within the slots of ``limited``, counted by ``counted``."""

    lends_memory = False
    """See ``CallbackOrigin.lends_memory``."""

    def __init__(self, gets: PageGets, limited: TakesSlots, counted: CountsReads) -> None:
        self.gets = gets
        self.limited = limited
        self.counted = counted
        self._received: list[CallbackRead] = []

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> "CallbackRead | None":
        """Begin a read. Return None, with nothing done, if it would have to wait or to connect."""
        slot = self.limited.take_now(intent)
        if slot is None:
            return None
        read = CallbackRead(self, wanted, sink, slot)
        read.connection = self.gets.start(wanted, read)
        if read.connection is None:
            self.limited.give(slot)
            return None
        return read

    def close(self, handed: HandedOver) -> None:
        """Release the slot and the exchange of a read that was handed over, unless a wrapper took them."""
        if (slot := handed.take_slot()) is not None:
            self.limited.give(slot)
        if isinstance(exchange := handed.take_exchange(), Exchange):
            exchange.connection.abort()
            self.gets.pool.put_back(exchange.connection)

    def finish_soon(self, read: "CallbackRead") -> None:
        """Finish ``read`` after this turn of the loop, in which more bytes than announced may still come."""
        if not self._received:
            asyncio.get_running_loop().call_soon(self._finish)
        self._received.append(read)

    def _finish(self) -> None:
        received, self._received = self._received, []
        if (head := received[-1].head) is not None:
            self.gets.note_date(head)
        for read in received:
            try:
                read.finish()
            except Exception as error:  # noqa: BLE001 - a bug in one read must not keep what the others hold
                context = {"message": "a read by callbacks failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
                read.abort()


class CallbackRead:
    """One callback read. Implements connection.py ``Receiver``."""

    __slots__ = (
        "_check", "_filled", "_is_damaged", "_length", "_memory", "_reads", "_sink", "_slot", "_started_s",
        "_wanted", "connection", "head",
    )  # fmt: skip

    def __init__(self, reads: CallbackReads, wanted: Wanted, sink: Sink, slot: str) -> None:
        self._reads = reads
        self._wanted = wanted
        self._sink = sink
        self._slot: str | None = slot
        self._started_s = reads.counted.now_s()
        self._memory = _NOTHING
        self._check: Check | None = None
        self._length = self._filled = 0
        self._is_damaged = False
        self.connection: Connection | None = None
        self.head: Head | None = None

    def abort(self) -> None:
        """Close the connection, because no reader wants the bytes; idempotent. The sink is called no more."""
        if self.connection is None:
            return
        self._release(abort=True)
        failure: BaseException = asyncio.CancelledError()
        if not self._length:
            failure = self._reads.counted.unanswered(self._started_s, failure)
        self._note(failure)

    # ------------------------------------------------------------------ what the connection calls

    def opened(self, head: Head) -> memoryview | None:
        """See ``Receiver.opened``."""
        self.head = head
        memory = self._opened(head)
        if memory is not None:
            self._memory = memory
        elif self.connection is not None:
            self._reads.gets.note_date(head)
            exchange, self.connection = Exchange(self.connection, head), None
            self._hand_over(exchange=exchange)
        return memory

    def arrived(self, count: int) -> None:
        """See ``Receiver.arrived``."""
        self._filled += count
        if self._check is None:
            self._sink.arrived(count)
        else:
            self._verify(self._check, count)

    def received(self) -> None:
        """See ``Receiver.received``."""
        self._reads.finish_soon(self)

    def failed(self, error: Exception) -> None:
        """See ``Receiver.failed``."""
        if self._length:
            self._hand_over(broken_off(error))
        elif isinstance(error, Dead) and self.connection is not None and self.connection.exchanges > 1:
            self._hand_over()  # the server had closed a kept connection, which does not count as an attempt
        else:
            self._hand_over(failed_before_head(self._reads.gets.origin_of(self._wanted), error))

    def finish(self) -> None:
        """End a read that has all bytes. Called in a later turn of the loop."""
        connection = self.connection
        if connection is None:
            return  # aborted meanwhile
        if not connection.finish():
            error = broken_off(Surplus())
            # No byte of a damaged short body was passed on, so the body can be read once more.
            unseen = self._is_damaged and self._length <= HELD_BYTES
            self._hand_over(error) if unseen else self._fail(error, abort=True)
        elif self._is_damaged and self._check is not None:
            try:
                require(self._check, self._wanted.ref)
            except BodyDamaged as damage:
                self._hand_over(damage) if self._length <= HELD_BYTES else self._fail(damage)
        else:
            self._release()
            self._note(None)
            self._sink.complete()

    # ------------------------------------------------------------------ inside

    def _opened(self, head: Head) -> memoryview | None:
        wanted = self._wanted
        if head.status not in {200, 206} or not head.length or head.flawed or not head.length_given:
            return None
        try:
            meta, span, skip = interpret(head, wanted.span)
        except OriginError:
            return None
        if skip or span[1] - span[0] != head.length or not meta.identified:
            return None
        if wanted.if_match is not None and meta.etag != wanted.if_match:
            return None
        check = None if wanted.span is not None else check_of(meta.headers)
        held = check is not None and head.length <= HELD_BYTES
        doubtful = check is not None and not held
        memory = self._sink.opened(meta, head.length, doubtful=doubtful, held=held)
        if memory is not None:
            self._check, self._length = check, head.length
        return memory

    def _verify(self, check: Check, count: int) -> None:
        """Pass on the arrived bytes of a long body. Pass on the last bytes, and a short body, only if the
        checksum of the whole body is right.
        """
        filled, length = self._filled, self._length
        check.update(self._memory[filled - count : filled])
        if filled < length:
            if length > HELD_BYTES:
                self._sink.arrived(count)
        elif check.is_right:
            self._sink.arrived(count if length > HELD_BYTES else length)
        else:
            self._is_damaged = True

    def _fail(self, error: OriginError, *, abort: bool = False) -> None:
        self._release(abort=abort)
        self._note(error)
        self._sink.failed(error)

    def _hand_over(self, error: OriginError | None = None, *, exchange: Exchange | None = None) -> None:
        """Let a coroutine continue: with the unread ``exchange`` and the slot, or else with a new request,
        after ``error``.
        """
        slot = None
        if exchange is None:
            self._release(abort=True)
        else:
            slot, self._slot = self._slot, None
        handed = HandedOver(
            started_s=self._started_s,
            error=error,
            received_bytes=self._filled,
            slot=slot,
            exchange=exchange,
            check=self._check if self._length > HELD_BYTES else None,
            close=self._reads.close,
        )
        self._sink.hand_over(handed)

    def _release(self, *, abort: bool = False) -> None:
        """Put the connection back, and give the slot back."""
        connection, self.connection = self.connection, None
        if connection is not None:
            if abort:
                connection.abort()
            self._reads.gets.pool.put_back(connection)
        if self._slot is not None:
            slot, self._slot = self._slot, None
            self._reads.limited.give(slot)

    def _note(self, failure: BaseException | None) -> None:
        self._reads.counted.note("get", self._filled, self._started_s, failure)
