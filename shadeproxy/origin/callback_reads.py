"""Page GETs by callbacks: a read needs no task, no coroutine and no wrapper.

Laws: a read by callbacks never waits, and sends one request. If the answer is not the plain one (a failure,
another status, an answer that cannot be cached), a coroutine continues the read through the wrappers of the
origin. The coroutine gets a ``HandedOver`` with all that the read held. A read that ends well is counted,
limited and verified as the wrappers would do it, with the same slots, pool and statistics. docs/adr/0028 has
the measurements.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from shadeproxy.core.errors import OriginError
from shadeproxy.core.types import SHARED, Intent, ObjectRef
from shadeproxy.origin.base import Arrived, HandedOver, Sink, Wanted
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import BadAnswer, Head
from shadeproxy.origin.link import LinkSlot
from shadeproxy.origin.receiver import Dead, Receiver, Surplus
from shadeproxy.origin.s3pages import (
    Exchange,
    PageGets,
    broken_off,
    failed_before_head,
    interpret,
)
from shadeproxy.origin.verified import HELD_BYTES, Check, check_of, damage_of

_READABLE = frozenset({200, 206})
_WHOLE = Wanted(ObjectRef("", ""), None, None, SHARED)
"""The arguments of the GET of a plain read. The object is left out: the other arguments are always these."""
_TIMED = 32
"""One read in this many is timed until its first byte, which is enough for the mean (docs/adr/0048). Reads
are numbered when they start. If they were numbered by their answers, the slowest of 32 reads that start
together would always be the one that is timed.
"""


class TakesSlots(Protocol):
    """The slots for reads of the origin, which ``LimitedOrigin`` (limit.py) gives."""

    def take_now(self, intent: Intent) -> str | None:
        """Acquire a slot, and return the client to which it is charged. Return None if the caller would have
        to wait.
        """
        ...

    def give(self, *clients: str) -> None:
        """Release one slot of each client in ``clients``."""
        ...


class CountsReads(Protocol):
    """Counts reads of the origin, as ``CountedOrigin`` (counted.py) does."""

    def now_s(self) -> float:
        """Return the time on the clock by which requests are measured."""
        ...

    def unanswered(self, started_s: float, error: BaseException) -> BaseException:
        """Return the failure to count for a read that ended with ``error`` before its answer arrived."""
        ...

    def note(self, kind: str, size_bytes: int, started_s: float, failure: BaseException | None) -> None:
        """Count a request that has ended. ``failure``: why it failed; None if it did not."""
        ...

    def note_first_byte(self, started_s: float) -> None:
        """Count the time from ``started_s`` until a read's first byte. Call it when this byte has arrived."""
        ...

    def note_whole(self, reads: Iterable[tuple[int, float]]) -> None:
        """Count reads that got all their bytes. ``reads``: for each, its bytes and the time of its start."""
        ...


class OriginRead(Receiver, Protocol):
    """A read that holds its slot and its connection itself: a ``CallbackRead``, or a plain miss."""

    slot: str | None
    connection: Connection | None
    head: Head | None
    is_timed: bool
    """True if the time until the read's first byte is to be counted."""
    is_aborted: bool
    length: int
    started_s: float

    @property
    def summing(self) -> "_Summing | None":
        """See ``CallbackRead.summing``."""
        ...

    def refuse(self) -> None:
        """See ``CallbackRead.refuse``."""
        ...

    def complete(self) -> None:
        """See ``CallbackRead.complete``."""
        ...

    def abort(self) -> None:
        """See ``CallbackRead.abort``."""
        ...


class CallbackReads:
    """Reads pages by callbacks. ``gets``: sends the GETs. ``limited``: gives the slots. ``counted``: counts
    the reads.
    """

    lends_memory = False
    """See ``CallbackOrigin.lends_memory``."""

    def __init__(self, gets: PageGets, limited: TakesSlots, counted: CountsReads) -> None:
        self.gets = gets
        self.limited = limited
        self.counted = counted
        self.received: list[OriginRead] = []
        """Reads whose last byte arrived in this turn of the loop."""
        self._started = 0

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> "CallbackRead | None":
        """Begin a read. Return None, with nothing done, if the read would have to wait or to make a
        connection.
        """
        slot = self.limited.take_now(intent)
        if slot is None:
            return None
        read = CallbackRead(self, wanted, sink, slot)
        self._started += 1
        read.is_timed = not self._started % _TIMED
        read.connection = self.gets.start(wanted, read)
        if read.connection is None:
            self.limited.give(slot)
            return None
        return read

    def take(self, ref: ObjectRef, read: OriginRead, request_id: str) -> bytes | None:
        """Take a slot and a connection for ``read``, which fetches all of ``ref`` with the proxy's own
        credentials. Return the request to send; None, with nothing taken, if the read would have to wait or
        to make a connection. ``request_id``: the id of the client's request.
        """
        slot = self.limited.take_now(Intent.DEMAND)
        if slot is None:
            return None
        prepared = self.gets.prepare(ref, _WHOLE, request_id)
        if prepared is None:
            self.limited.give(slot)
            return None
        self._started += 1
        read.slot, read.is_timed = slot, not self._started % _TIMED
        read.connection, request = prepared
        return request

    def give_back(self, read: OriginRead) -> None:
        """Give back what ``take`` has taken, if anything, because ``read`` does not begin."""
        if read.connection is not None and read.slot is not None:
            self.gets.pool.put_back(read.connection)
            self.limited.give(read.slot)

    def note_received(self, read: OriginRead) -> None:
        """End ``read``, whose last byte has arrived, in the next turn of the loop."""
        received = self.received
        if not received:
            asyncio.get_running_loop().call_soon(self.finish)
        received.append(read)

    def close(self, handed: HandedOver) -> None:
        """Release the slot and the exchange of a read that was handed over, unless the wrappers took them."""
        if (slot := handed.take_slot()) is not None:
            self.limited.give(slot)
        if isinstance(exchange := handed.take_exchange(), Exchange):
            exchange.connection.abort()
            self.gets.pool.put_back(exchange.connection)

    def finish(self) -> None:
        """End the reads whose last bytes arrived in the turn before. First give back the connections and
        slots of all reads that end well, and then call the sinks.
        """
        received, self.received = self.received, []
        connections: list[Connection] = []
        slots: list[str] = []
        counts: list[tuple[int, float]] = []
        for read in received:
            connection, slot = read.connection, read.slot
            if connection is None or slot is None:
                continue  # The read was aborted meanwhile.
            if isinstance(connection.failure, BadAnswer) or (read.summing and read.summing.is_damaged):
                continue
            read.connection = read.slot = None
            connections.append(connection)
            slots.append(slot)
            counts.append((read.length, read.started_s))
        self.gets.pool.put_back(*connections)
        self.limited.give(*slots)
        self.counted.note_whole(counts)
        for read in received:
            try:
                if read.connection is not None:
                    read.refuse()
                elif not read.is_aborted:
                    read.complete()
            except Exception as error:  # noqa: BLE001 - a bug in one read must not keep what the others hold
                context = {"message": "a read by callbacks failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
                read.abort()
        if (head := received[-1].head) is not None:
            self.gets.note_date(head)


class CallbackRead:
    """One page GET that passes its answer to ``sink``. Implements receiver.py ``Receiver``."""

    __slots__ = (
        "_reads", "_wanted", "connection", "head", "is_aborted", "is_timed", "length", "sink", "slot",
        "started_s", "summing",
    )  # fmt: skip

    def __init__(self, reads: CallbackReads, wanted: Wanted, sink: Sink, slot: str) -> None:
        self._reads = reads
        self._wanted = wanted
        self.sink = sink
        self.slot: str | None = slot
        self.started_s = reads.counted.now_s()
        self.connection: Connection | None = None
        self.head: Head | None = None
        self.length = 0
        """Length of the body; 0 until the sink has given memory for it."""
        self.summing: _Summing | None = None
        """Verifies the checksum of the body; None if it has none."""
        self.is_aborted = False
        self.is_timed = False
        """True if the time until the read's first byte is to be counted."""

    def abort(self) -> None:
        """Close the connection, because no reader wants the bytes. The sink is not called any more.
        Idempotent.
        """
        self.is_aborted = True
        if self.connection is None:
            return
        came = self._release(abort=True)
        failure: BaseException = asyncio.CancelledError()
        if not self.length:
            failure = self._reads.counted.unanswered(self.started_s, failure)
        self._reads.counted.note("get", came, self.started_s, failure)

    # ------------------------------------------------------------------ what the connection calls

    def opened(self, head: Head) -> tuple[memoryview, Arrived] | None:
        """See ``Receiver.opened``."""
        self.head = head
        wanted, length = self._wanted, head.length
        if head.status not in _READABLE or not length or not head.length_given or head.flawed:
            self._leave(head)
            return None
        try:
            meta, span, skip = interpret(head, wanted.span)
        except OriginError:
            self._leave(head)
            return None
        is_other = wanted.if_match is not None and meta.etag != wanted.if_match
        if skip or span[1] - span[0] != length or is_other or not meta.identified:
            self._leave(head)
            return None
        check = check_of(meta.headers) if wanted.span is None and head.places.has_checksum else None
        is_held = check is not None and length <= HELD_BYTES
        is_doubtful = check is not None and not is_held
        memory = self.sink.opened(meta, length, doubtful=is_doubtful, held=is_held)
        if memory is None:
            self._leave(head)
            return None
        self.length = length
        if self.is_timed:
            self._reads.counted.note_first_byte(self.started_s)
        if isinstance(self.slot, LinkSlot):
            self.slot.charge(length)
        if check is None:
            return memory, self.sink.arrived
        self.summing = _Summing(check, memory, self.sink)
        return memory, self.summing.arrived

    def interim(self) -> None:
        """See ``Receiver.interim``. Do nothing, because the time limits concern the origin's final answer."""

    def received(self) -> None:
        """See ``Receiver.received``."""
        self._reads.note_received(self)

    def complete(self) -> None:
        """End a read that has all its bytes, which are right."""
        self.sink.complete()

    def failed(self, error: Exception) -> None:
        """See ``Receiver.failed``."""
        if self.length:
            self._hand_over(broken_off(error))
        elif isinstance(error, Dead) and self.connection is not None and self.connection.exchanges > 1:
            self._hand_over()  # The server had closed a kept connection, which counts as no attempt.
        else:
            self._hand_over(failed_before_head(self._reads.gets.origin_of(self._wanted), error))

    def refuse(self) -> None:
        """End a read that has all its bytes but cannot be used: they are wrong, or more bytes came."""
        assert self.connection is not None, "it has its connection until then"
        has_surplus = isinstance(self.connection.failure, BadAnswer)
        error: OriginError | None = broken_off(Surplus()) if has_surplus else None
        if self.summing is not None and self.summing.is_damaged:
            error = error or damage_of(self.summing.check, self._wanted.ref)
            if self.length <= HELD_BYTES:
                self._hand_over(error)  # No byte was passed on, so the body can be read once more.
                return
        assert error is not None, "called because of one"
        came = self._release(abort=has_surplus)
        self._reads.counted.note("get", came, self.started_s, error)
        self.sink.failed(error)

    # ------------------------------------------------------------------ inside

    def _leave(self, head: Head) -> None:
        """Let a coroutine read the answer, unless the read was aborted meanwhile."""
        if self.connection is not None:
            self._reads.gets.note_date(head)
            self._reads.gets.note_region(self._wanted.ref.bucket, self.connection, head)
            exchange, self.connection = Exchange(self.connection, head), None
            self._hand_over(exchange=exchange)

    def _hand_over(self, error: OriginError | None = None, *, exchange: Exchange | None = None) -> None:
        """Let a coroutine continue the read. With ``exchange``, it reads the answer there. Otherwise it sends
        a new request, after ``error``. If an answer has come, the read keeps its slot, because the sink holds
        memory. Reads that hold all slots may wait for that memory.
        """
        slot, came, has_memory = None, 0, self.length > 0
        if exchange is not None or has_memory:
            slot, self.slot = self.slot, None
        if exchange is None:
            came = self._release(abort=True)
        handed = HandedOver(
            started_s=self.started_s,
            error=error,
            received_bytes=came,
            slot=slot,
            exchange=exchange,
            check=self.summing.check if self.summing and self.length > HELD_BYTES else None,
            keeps_slot=has_memory,
            close=self._reads.close,
        )
        self.sink.hand_over(handed)

    def _release(self, *, abort: bool) -> int:
        """Put the connection back, and release the slot. Return how many bytes of the body have arrived."""
        connection, self.connection = self.connection, None
        came = 0
        if connection is not None:
            came = connection.filled if self.length else 0
            if abort:
                connection.abort()
            self._reads.gets.pool.put_back(connection)
        if self.slot is not None:
            slot, self.slot = self.slot, None
            self._reads.limited.give(slot)
        return came


class _Summing:
    """Verifies a body that has a checksum, and passes its bytes on. A long body is passed on as it arrives,
    except for its last bytes. These, and all of a short body, are passed on only if the checksum of the whole
    body is right.
    """

    __slots__ = ("_filled", "_memory", "_sink", "check", "is_damaged")

    def __init__(self, check: Check, memory: memoryview, sink: Sink) -> None:
        self.check = check
        self.is_damaged = False
        self._memory = memory
        self._sink = sink
        self._filled = 0

    def arrived(self, count: int) -> None:
        """Take in ``count`` more bytes, which are in the memory."""
        length = len(self._memory)
        self.check.update(self._memory[self._filled : self._filled + count])
        self._filled += count
        if self._filled < length:
            if length > HELD_BYTES:
                self._sink.arrived(count)
        elif self.check.is_right:
            self._sink.arrived(count if length > HELD_BYTES else length)
        else:
            self.is_damaged = True
