"""One page that a worker fetches for one of its clients, or for a prefetch.

Laws: callbacks take the bytes from the origin and pass them on to the client as they arrive. The coordinator
gets reports of the head, of the progress of slow or big pages, of the end, and of a client that leaves
(fill_reports.py). A read that fails before its first byte is relayed; if it fails later, the coordinator
fills the rest of the page.
"""

from collections.abc import Callable
from typing import Protocol

from shadeproxy.api.s3.exchange import Asked, ReadReports
from shadeproxy.api.s3.fill_reports import FillReports
from shadeproxy.api.s3.lane_read import LaneOutlet, LaneRead
from shadeproxy.api.s3.timeout_answers import TimeoutAnswers
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import Deadline
from shadeproxy.core.delegated_body import BodyWriter
from shadeproxy.core.errors import OriginError, OriginUnavailable, ShadeProxyError
from shadeproxy.core.pace import TurnLimiter
from shadeproxy.core.tracing import REQUEST_ID, next_request_id
from shadeproxy.core.types import OWN, SHARED, Intent, ObjectMeta, ObjectRef, Source, Span
from shadeproxy.engine.base import UNKNOWN
from shadeproxy.engine.read.fill_memory import FillExtents
from shadeproxy.engine.read.fill_messages import (
    AllowFill,
    FillHead,
    OrderFill,
    Outbox,
)
from shadeproxy.engine.read.flight import DetachedBuffers, Flight
from shadeproxy.origin.addressing import Peer
from shadeproxy.origin.base import CallbackOrigin, HandedOver, Wanted

PROGRESS_BYTES = 256 * 1024
"""Bytes of a page between two progress reports. Clients of other processes may wait for these bytes."""


WHOLE = AllowFill(0, 0, None, None, None)
"""Allows the read of a whole object, as ``AllowFills`` does. The fill does not use the number."""
_NONE_DETACHED = DetachedBuffers(0)


class WorkerOutlet(LaneOutlet, Protocol):
    """The methods of the client's connection (relay.py) for a read whose page the worker fetches."""

    def relay(self) -> None:
        """Relay the request to the coordinator. No byte of an answer may have been sent."""
        ...


class Misses(Protocol):
    """The objects that all fills of a worker share. worker_misses.py implements it."""

    page_size: int
    reads: CallbackOrigin
    extents: FillExtents
    outbox: Outbox
    reports: ReadReports
    late: TimeoutAnswers
    clock: Clock
    pace: TurnLimiter

    def leave(self, reading: "WorkerFill", *, served: bool = False) -> None:
        """Release a reading that no task continues. ``served``: its answer was sent to its end."""
        ...

    def connect(self, peer: Peer, fill: "WorkerFill") -> None:
        """Call ``fill.connected`` once a connection to ``peer`` is idle, or none could be made."""
        ...

    def forget(self, ident: int) -> None:
        """Forget the fill with this number, because it has ended."""
        ...


class WorkerFill:
    """A client's read, and its page. Implements origin/base.py ``Sink`` and lane_read.py ``LaneReading``."""

    __slots__ = (
        "_allowed", "_asked", "_flight", "_held", "_ident", "_is_late", "_lane", "_misses", "_ordered",
        "_outlet", "_peer", "_read", "_refused", "_relayed", "_reports", "_served", "_span", "deadline",
        "detached", "source",
    )  # fmt: skip

    def __init__(
        self,
        misses: Misses,
        ident: int,
        peer: Peer,
        outlet: WorkerOutlet | None = None,
        asked: Asked | None = None,
    ) -> None:
        """``outlet``, ``asked``: the client's connection and read; None for a prefetch. ``peer``: the server
        of the origin to ask.
        """
        self.source = Source.ORIGIN
        """Source of the answer: the value of ``x-shade-cache``."""
        self.deadline: Deadline | None = misses.late.deadline()
        """Deadline for the first byte. The coordinator watches it; ``look_at_time`` watches it too, in case
        the coordinator is stuck.
        """
        self.detached = _NONE_DETACHED
        """No detached buffers: a slow reader holds fill memory, which has its own limit."""
        self._misses = misses
        self._ident = ident
        self._outlet = outlet  # None: the client has left, or there never was one.
        self._asked = asked
        self._peer: Peer | None = peer  # None: the fill has its connection, or needs none.
        self._ordered: ObjectRef | None = None  # The object of a prefetch; None if a client reads.
        self._allowed: AllowFill | None = None
        self._flight: Flight | None = None
        self._lane: LaneRead[WorkerFill] | None = None
        self._read: Callable[[], None] | None = None  # Ends the read from the origin; None: it has ended.
        self._relayed = False
        self._is_late = False
        self._refused = False  # True: the coordinator has left the read, and sends no more messages.
        self._reports = FillReports(misses.outbox, ident)
        self._held: tuple[FillHead, memoryview] | None = None  # A head that readers do not see yet.
        self._span = Span(-1, -1)
        self._served = False

    # ------------------------------------------------------------------ what the coordinator says

    def allow(self, allowed: AllowFill) -> None:
        """Ask the origin, because the coordinator allows it: now, or as soon as a connection is idle."""
        self._allowed = allowed
        if self._peer is not None:
            self._misses.connect(self._peer, self)

    def prefetch(self, order: OrderFill) -> None:
        """Ask the origin for a page that the coordinator wants, and that no client here waits for."""
        self._ordered = ObjectRef(order.bucket, order.key, OWN)
        self.allow(AllowFill(self._ident, 0, None, order.span, order.if_match))

    def connected(self) -> None:
        """Ask the origin over an idle connection. If there is none, the coordinator fills the page."""
        peer, self._peer = self._peer, None
        if peer is None:
            return  # The coordinator gave the fill up while it waited for a connection.
        if self._ordered is not None:
            self._start(self._ordered, Intent.PREFETCH)
            self._forget_if_over()
        elif self._outlet is not None and self._asked is not None:
            self._serve(self._outlet, self._asked)
        else:
            self._reports.fail(None)
            self._end()

    def _serve(self, outlet: WorkerOutlet, asked: Asked) -> None:
        """Ask the origin, and send its bytes to the client as they arrive."""
        misses = self._misses
        request_id = next_request_id()
        inside = REQUEST_ID.set(request_id)
        try:
            flight = self._start(asked.wanted.ref, Intent.DEMAND)
        finally:
            REQUEST_ID.reset(inside)
        if flight is None:
            self.relay()
            return
        self._lane = LaneRead(
            outlet,
            misses.reports,
            misses,
            # Compare no version here: the coordinator has chosen it, and compares it with the answer's.
            asked._replace(found=UNKNOWN),
            clock=misses.clock,
            reading=self,
            flight=flight,
            request_id=request_id,
        )

    def _start(self, ref: ObjectRef, intent: Intent) -> Flight | None:
        """Send the GET to the origin. If no connection is idle, tell the coordinator, and return None."""
        misses, allowed = self._misses, self._allowed
        assert allowed is not None, "it was told to begin"
        span = None if allowed.span is None else Span(*allowed.span)
        part = None if allowed.part is None else Span(*allowed.part)
        flight = Flight(ref, allowed.number, SHARED, intent, allowed.if_match, part=part, pace=misses.pace)
        read = misses.reads.start(Wanted(ref, span, allowed.if_match, SHARED), intent, self)
        if read is None:
            self._reports.fail(None)
            return None
        self._flight, self._read = flight, read.abort
        return flight

    def refuse(self, *, late: bool) -> None:
        """Leave the client's request to the coordinator or, if it is too ``late``, answer it here with a 503.
        A fill that has begun continues without this client, because other readers may want the page.
        """
        if self._allowed is None:
            self._peer = None
        self._refused = True
        self._too_late() if late else self.relay()
        self._forget_if_over()

    def stop(self) -> None:
        """End the read, because the coordinator has given the fill up."""
        self._peer = None
        self._abort()
        if self._flight is None:
            self.relay()
        else:
            self._flight.end(OriginUnavailable("the fill was given up"))
        self._forget_if_over()

    def progressed(self, filled: int) -> None:
        """Send the client the bytes that the coordinator has filled since this worker's read failed."""
        flight = self._flight
        if flight is not None and not flight.ended:
            flight.advance(filled - flight.filled)

    # ------------------------------------------------------------------ what the origin's read calls (Sink)

    def opened(
        self,
        meta: ObjectMeta,
        length: int,
        *,
        doubtful: bool = False,
        held: bool = False,
        memory: memoryview | None = None,
    ) -> memoryview | None:
        """Return fill memory for the page; None if ``length`` is not as expected, or no memory is free."""
        misses, flight, allowed = self._misses, self._flight, self._allowed
        assert flight is not None, "the head comes in a later turn of the loop"
        assert allowed is not None, "it was told to begin"
        assert memory is None, "the origin brings none"
        whole = min(meta.size, misses.page_size) if allowed.span is None else 0
        wanted = whole if allowed.span is None else min(allowed.span[1], meta.size) - allowed.span[0]
        if length != wanted or (taken := misses.extents.take(length)) is None:
            return None
        head = FillHead(self._ident, taken[0], length, meta.etag, meta.size, meta.headers, doubtful)
        if held:
            self._held = head, taken[1]
        else:
            self._open(flight, head, taken[1])
        return taken[1]

    def arrived(self, count: int) -> None:
        """Pass ``count`` more bytes to the client, and report the progress to the coordinator if due."""
        flight = self._flight
        assert flight is not None, "opened before"
        held, self._held = self._held, None
        if held is not None:
            self._open(flight, *held)
        flight.advance(count)
        # Report the first bytes at once, because the coordinator watches the client's deadline until then.
        reported = self._reports.reported
        due = not reported or flight.filled - reported >= PROGRESS_BYTES
        if due and not flight.ended:
            self.report_progress()

    def _open(self, flight: Flight, head: FillHead, buffer: memoryview) -> None:
        """Open the flight here. The coordinator gets the head with the first report."""
        self._reports.open(head)
        self._misses.extents.share(head.start)
        flight.open(head.meta, head.length, doubtful=head.doubtful, memory=buffer)

    def complete(self, writer: BodyWriter | None = None) -> None:  # noqa: ARG002 - as Sink
        """Tell the coordinator that all bytes have arrived; see ``Sink.complete``."""
        self._read = None
        self._reports.complete()
        self._forget_if_over()

    def failed(self, error: OriginError) -> None:
        """Tell the coordinator that the bytes are wrong, and end the flight; see ``Sink.failed``."""
        self._give_up()
        self._read = None
        self._reports.fail(error, final=True)
        self._end_flight(error)

    def hand_over(self, handed: HandedOver) -> None:
        """Leave the rest of the page to the coordinator, because this process's read has failed."""
        self.report_progress()
        self._give_up()
        self._read = self._held = None
        error = handed.take_error()
        self._reports.fail(error, received=handed.received_bytes)
        handed.close()
        if not self._reports.reported or self._lacks_proof or self._refused:
            self._end_flight(error)
        else:
            # The client may have left earlier, when it had got the part of the page that it wanted.
            self._forget_if_over()

    # ------------------------------------------------------------------ what the client's read calls

    def count(self, meta: ObjectMeta, span: Span) -> None:  # noqa: ARG002 - as LaneReading
        """Note the span of the read, which the coordinator counts when the client leaves."""
        self._span = span

    def left(self, *, served: bool) -> None:
        """Note that the client has left: with the whole answer (``served``), or before its end."""
        self._served = served
        self._end()

    # ------------------------------------------------------------------ what the client's connection calls

    def look(self) -> None:
        """Continue to write the answer, because the client has taken enough of the bytes sent so far."""
        if self._lane is not None:
            self._lane.look()

    def cancel(self) -> None:
        """Leave the read, because the client has gone. Later calls do nothing."""
        if self._outlet is None:
            return
        if self._lane is None or self._relayed:
            self._end()
        else:
            self._lane.cancel()

    def relayed(self) -> None:
        """Continue the fill without its client, because the coordinator now answers the client."""
        if self._outlet is not None:
            self._end()

    def relay(self) -> None:
        """Relay the request, of whose answer no byte was sent. Later calls do nothing."""
        if self._relayed or self._outlet is None or self._asked is None:
            return
        self._relayed = True
        # -1: the coordinator counts the relayed request, so this process reports no bytes.
        self._span = Span(-1, -1)
        if not self._is_late:
            self._outlet.relay()
            return
        outlet, lane = self._outlet, self._lane
        request_id = "" if lane is None else lane.request_id
        self._misses.late.send(outlet, self._asked, request_id, deadline=self.deadline)
        self._end()
        outlet.read_ended(keep=self._asked.keep_alive)

    def look_at_time(self) -> None:
        """Report how many bytes have arrived. Answer the client with a 503 if none came in time."""
        self.report_progress()
        came = self._flight is not None and self._flight.filled
        if not came and self.deadline is not None and self._misses.late.overdue(self.deadline):
            self._too_late()

    def report_progress(self) -> None:
        """Tell the coordinator how many bytes have arrived."""
        if self._flight is not None and self._read is not None:
            self._reports.progress(self._flight.filled)

    # ------------------------------------------------------------------ inside

    @property
    def _lacks_proof(self) -> bool:
        """True if the coordinator cannot fill the rest: only this process has summed the bytes so far."""
        return self._flight is not None and self._flight.doubtful

    def _too_late(self) -> None:
        self._is_late = True
        if self._lane is None:
            self.relay()
        else:
            self._lane.too_late()

    def _end_flight(self, error: ShadeProxyError | None) -> None:
        if self._flight is not None:
            error = error or OriginUnavailable("the fill goes on elsewhere")
            # The error's traceback would keep the flight, and so the fill memory, until garbage collection.
            self._flight.end(error.with_traceback(None))
        self._forget_if_over()

    def _give_up(self) -> None:
        if self._flight is not None:
            self._reports.give_up(self._flight.filled)

    def _abort(self) -> None:
        self._give_up()
        abort, self._read, self._held = self._read, None, None
        if abort is not None:
            abort()

    def _end(self) -> None:
        """Note that the client has left, with or without its answer, and tell the coordinator."""
        if self._outlet is not None:
            self._outlet = None
            flight, ends = self._flight, False
            if self._read is not None and flight is not None and flight.filled:
                ends = flight.filled == flight.length
            if not ends:
                # Report this first: otherwise the coordinator would count a complete page as given up.
                self.report_progress()
            self._reports.leave(self._span, served=self._served, ends=ends)
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        if self._outlet is None and self._read is None and self._peer is None:
            # Break a reference cycle, which would keep the fill memory until garbage collection.
            self._lane = None
            self._misses.forget(self._ident)
