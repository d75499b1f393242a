"""A GET of the fast lane whose page is on its way: it is answered by callbacks, without a task.

Laws: the head is sent with the first bytes of the body, so that a read that gets no byte can be answered with
an error. If callbacks cannot answer a read, a task in handler.py continues it over the same flight. That
happens after an error or a passed deadline before the first byte, and if the read needs bytes outside the
page. The client gets the same bytes from the callbacks as from the task.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from shadeproxy.api.s3.exchange import CLIENT_CLOSED, Asked, ReadReports, client_of, fast_head
from shadeproxy.api.s3.port import TURN_BYTES, HasPeer
from shadeproxy.api.s3.read import answer_for
from shadeproxy.api.s3.response import WRITE_BYTES
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.types import ObjectMeta, Source, Span
from shadeproxy.engine.base import NothingKnown, ReadRequest
from shadeproxy.engine.read.flight import DetachedBuffers, Flight
from shadeproxy.engine.read.reading import EngineReading
from shadeproxy.engine.read.taker import Taker


class LaneReading(Protocol):
    """The methods of a reading that a read of the fast lane calls. The reading is one of the engine, or of a
    worker (worker_misses.py).
    """

    @property
    def source(self) -> Source:
        """Source of the answer: the value of ``x-shade-cache``."""
        ...

    @property
    def deadline(self) -> Deadline | None:
        """Deadline for the first byte; None if there is none."""
        ...

    @property
    def detached(self) -> DetachedBuffers:
        """The buffers of stored pages that slow readers still hold."""
        ...

    def count(self, meta: ObjectMeta, span: Span) -> None:
        """Count the demand read of ``span``, of the version that ``meta`` describes."""
        ...


_Reading = TypeVar("_Reading", bound=LaneReading)
_Left_contra = TypeVar("_Left_contra", contravariant=True)


class KeepsReadings(Protocol[_Left_contra]):
    """The part of the engine, or of a worker, that a read uses after it has begun. ``page_size``: bytes of a
    page.
    """

    page_size: int

    def leave(self, reading: _Left_contra, *, served: bool = False) -> None:
        """Release a reading that no task continues. ``served``: its answer was sent to its end."""
        ...


class BeginsReads(KeepsReadings[EngineReading], Protocol):
    """The methods of the engine by which this lane reads."""

    def begin(
        self, request: ReadRequest, found: ObjectMeta | NothingKnown
    ) -> tuple[EngineReading, Flight] | None:
        """Begin a read of one page that is not resident, without waiting. Return the reading, and the flight
        of its page. ``found``: the result of ``find_now``. Return None, with nothing done, if ``open`` must
        be called instead.

        The caller follows the flight, and then calls ``leave``, or ``resume`` to continue in a task.
        """
        ...

    def resume(self, reading: EngineReading) -> AbstractAsyncContextManager[EngineReading]:
        """Open the object of ``reading``, which was begun, for a task. Raises as ``open``."""
        ...


class LaneOutlet(HasPeer, Protocol):
    """The methods of a client's connection (connection.py) for a read that is answered by callbacks."""

    @property
    def paused(self) -> bool:
        """True while the client takes bytes more slowly than they are written."""
        ...

    def write_pieces(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write ``pieces`` of an answer."""
        ...

    def call_in_turn(self, function: Callable[[], None]) -> None:
        """Call ``function`` in a later turn of the loop."""
        ...

    def read_ended(self, *, keep: bool) -> None:
        """Note that the read has ended. Then serve the next request, or end the connection if not
        ``keep``.
        """
        ...

    def go_on_by_task(self) -> None:
        """Continue the read in a task. No byte of its answer may have been sent."""
        ...

    def cut(self) -> None:
        """Reset the connection, so that the client sees that the answer broke off."""
        ...


class TakerOutlet(LaneOutlet, Protocol):
    """The connection of a client of this process's own engine."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken yet."""
        ...


class LaneRead(Generic[_Reading]):
    """One GET whose page is on its way. It follows the page's flight, and writes bytes of the answer as they
    arrive. Implements flight.py ``Follower``.
    """

    __slots__ = (
        "_flight", "_head", "_left", "_monotonic_s", "_outlet", "_position", "_reports", "_resumed", "_stop",
        "_turn_ends", "asked", "bytes_sent", "deadline", "engine", "now_s", "reading", "request_id",
        "started_s", "status",
    )  # fmt: skip

    def __init__(
        self,
        outlet: LaneOutlet,
        reports: ReadReports,
        engine: KeepsReadings[_Reading],
        asked: Asked,
        *,
        clock: Clock,
        reading: _Reading,
        flight: Flight,
        request_id: str,
    ) -> None:
        """Begin to follow ``flight``. Nothing is written before this call returns."""
        self.asked = asked
        self.engine = engine
        self.reading = reading
        self.request_id = request_id
        self.now_s = clock.now_s()
        self.started_s = clock.monotonic_s()
        self.deadline: Deadline | None = reading.deadline
        """The deadline for the first byte; None once this byte was sent."""
        self.status = 0
        self.bytes_sent = 0
        self._outlet = outlet
        self._reports = reports
        self._monotonic_s = clock.monotonic_s
        self._resumed = False
        self._flight = flight
        self._head = b""
        # The next byte and the end of the answer, counted in the flight's buffer. -1: not known yet.
        self._position = self._stop = -1
        self._turn_ends = TURN_BYTES
        self._left = False
        flight.followers.append(self)
        if flight.meta is not None or flight.ended:
            outlet.call_in_turn(self.look)

    # ------------------------------------------------------------------ what the flight calls

    @property
    def taker(self) -> Taker | None:
        """None: the fill memory of a worker is not counted by the ledger; see ``Follower.taker``."""
        return None

    @property
    def waiting(self) -> bool:
        """True if all bytes that have arrived were sent; see ``Follower.waiting``."""
        return self._flight.filled <= max(self._position, 0)

    def look(self) -> None:
        """Write the bytes that have arrived, as far as the client takes them."""
        flight = self._flight
        if self._left or (self._stop < 0 and not self._open(flight)):
            return
        outlet = self._outlet
        while self._position < self._stop and flight.filled > self._position and not outlet.paused:
            self._send(flight)
            if self.bytes_sent >= self._turn_ends:
                self._turn_ends = self.bytes_sent + TURN_BYTES
                outlet.call_in_turn(self.look)
                break
        if self._position == self._stop:
            # The page's memory stays in use until the client has taken the last bytes. So do not end the read
            # before that.
            if not outlet.paused:
                self._leave(self.status, served=True)
                outlet.read_ended(keep=self.asked.keep_alive)
        elif flight.ended and flight.filled <= self._position:
            self._fail(flight) if self.bytes_sent else self._by_task()

    def too_late(self) -> None:
        """Let a task answer, because the deadline has passed; see ``Follower.too_late``."""
        if not self._left and not self.bytes_sent:
            self._by_task()

    def cancel(self) -> None:
        """Give the read up, because the client has gone. Later calls do nothing."""
        if not self._left:
            self._leave(CLIENT_CLOSED)

    # ------------------------------------------------------------------ inside

    def _open(self, flight: Flight) -> bool:
        """Prepare the head of the answer. Return False if it cannot be sent now: the read then waits, or a
        task continues it.
        """
        meta, (call, wanted, keep, _, found, _) = flight.meta, self.asked
        # A client cannot check a part of an object. So send a part only after the flight has ended well, if
        # its bytes may be wrong until then.
        must_end = flight.doubtful and wanted.range is not None
        if not flight.ended and (must_end or not flight.filled):
            return False
        if meta is None or not flight.filled or (must_end and flight.error is not None):
            return self._by_task()
        try:
            answer = answer_for(call, wanted, meta)
        except ShadeProxyError:
            return self._by_task()
        span, start = answer.body, flight.number * self.engine.page_size + flight.start
        is_here = start <= span.start < span.stop <= start + len(flight.buffer)
        is_other = isinstance(found, ObjectMeta) and (meta.etag, meta.size) != (found.etag, found.size)
        if not is_here or is_other:
            return self._by_task()
        self._head = fast_head(
            answer,
            method=call.request.method,
            request_id=self.request_id,
            now_s=self.now_s,
            source=self.reading.source,
            keep=keep,
        )
        self._position, self._stop = span.start - start, span.stop - start
        self.status = answer.status
        self.reading.count(meta, span)
        return True

    def _send(self, flight: Flight) -> None:
        start = self._position
        stop = min(flight.filled, self._stop, start + WRITE_BYTES)
        piece = flight.buffer[start:stop].toreadonly()
        if self.reading.detached.crowded and self.reading.detached.many:
            piece = memoryview(bytes(piece))
        self._position = stop
        self.bytes_sent += stop - start
        if self._head:
            head, self._head, self.deadline = self._head, b"", None
            self._outlet.write_pieces((head, piece))
        else:
            self._outlet.write_pieces((piece,))

    def _by_task(self) -> bool:
        """Let a task continue the read. Return False, as ``_open`` does then."""
        self._left = True
        self._flight.followers.remove(self)
        self._outlet.go_on_by_task()
        return False

    def _fail(self, flight: Flight) -> None:
        """Reset the connection, because the rest of an answer that has begun will not come."""
        error = flight.error
        assert isinstance(error, ShadeProxyError), "a flight ends complete or with an error of our tree"
        self._leave(self.status)
        self._reports.report_cut_read(
            f"{type(error).__name__}: {error}", self.asked.call, self.bytes_sent, request_id=self.request_id
        )
        self._outlet.cut()
        self._outlet.read_ended(keep=False)

    def _leave(self, status: int, *, served: bool = False) -> None:
        """Release the reading, and report the end of the read."""
        self._left = True
        if self in self._flight.followers:
            self._flight.followers.remove(self)
        self.engine.leave(self.reading, served=served)
        self._reports.report_hit(
            self.asked.call,
            status,
            self.reading.source,
            self.bytes_sent,
            request_id=self.request_id,
            duration_s=self._monotonic_s() - self.started_s,
        )


class EngineLaneRead(LaneRead[EngineReading]):
    """A read from this process's own engine. If callbacks cannot answer it, a task continues it. Implements
    taker.py ``Taker``.
    """

    __slots__ = ()
    engine: BeginsReads
    _outlet: TakerOutlet

    @property
    def taker(self) -> Taker:
        """This reader; see ``Follower.taker``."""
        return self

    @property
    def held_bytes(self) -> int:
        """Bytes of the ledger that the page takes; see ``Taker``."""
        return self._flight.budget_bytes

    @property
    def bytes_taken(self) -> int:
        """Number of bytes that the client has taken; see ``Taker``."""
        return self.bytes_sent - self._outlet.unsent_bytes

    @property
    def client(self) -> str:
        """The name of the client; see ``Taker``."""
        return client_of(self._outlet, self.asked.call.identity)

    def cut(self) -> None:
        """Give the read up, and reset the connection; see ``Taker.cut``."""
        if not self._left:
            self._leave(CLIENT_CLOSED)
            self._outlet.cut()
            self._outlet.read_ended(keep=False)

    def take_over(self, sent: int, length: int, *, now_s: float, started_s: float) -> None:
        """Continue a plain miss that has sent the first ``sent`` of the ``length`` bytes of an object."""
        self.now_s, self.started_s = now_s, started_s
        if sent:
            self.status, self.bytes_sent, self.deadline = 200, sent, None
            self._position, self._stop = sent, length

    def resume(self) -> AbstractAsyncContextManager[EngineReading]:
        """Open the reading for the task that continues it; see ``BeginsReads.resume``."""
        self._resumed = True
        return self.engine.resume(self.reading)

    def release(self, _task: object) -> None:
        """Release the reading if the task that was to continue it never began."""
        if not self._resumed:
            self._leave(CLIENT_CLOSED)
