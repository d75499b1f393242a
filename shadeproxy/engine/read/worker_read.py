"""One page that a worker fetches, as the coordinator sees it. The flight reads the page by callbacks, as it
would from the origin.

Laws: the flight sees bytes only after the worker has reported them. If the worker ends, is stuck or fails,
the flight treats this like an origin that broke off, and a task fetches the rest of the page. But if only the
worker could verify the rest, the fill fails.
"""

import asyncio
from typing import Protocol

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.delegated_body import BodyWriter
from shadeproxy.core.errors import BodyCutShort, BodyDamaged, ObjectChanged, OriginError, OriginUnavailable
from shadeproxy.core.types import SHARED, Intent, Span
from shadeproxy.engine.read.fill_memory import FillMemory
from shadeproxy.engine.read.fill_messages import (
    AbortFill,
    AllowFill,
    ClientLeft,
    FillComplete,
    FillFailure,
    FillHead,
    FillProgress,
    Outbox,
    RefuseFill,
)
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.reading import EngineReading
from shadeproxy.origin.base import HandedOver, Sink, Wanted
from shadeproxy.origin.callback_reads import CountsReads, TakesSlots
from shadeproxy.origin.link import LinkSlot

_ERRORS: dict[str, type[OriginError]] = {
    error.__name__: error for error in (BodyCutShort, BodyDamaged, ObjectChanged, OriginUnavailable)
}
_ENDED = "the worker that fetched it ended"
_SILENT = "the worker that fetched it got no answer in time"


class LeavesReadings(Protocol):
    """The part of the engine that a read calls when it is over."""

    def leave(self, reading: EngineReading, *, served: bool) -> None:
        """Release a reading, see ``KeepsReadings.leave`` in lane_read.py."""
        ...


class SharedReads(Protocol):
    """The objects that all reads of one worker share; worker_fills.py implements this interface."""

    memory: FillMemory
    outbox: Outbox
    slots: TakesSlots
    counts: CountsReads
    orders: set[int]

    @property
    def engine(self) -> LeavesReadings:
        """The engine that began the reads."""
        ...

    def free(self, start: int) -> None:
        """Tell the worker that the coordinator no longer uses an extent."""
        ...

    def writer_of(self, start: int, length: int) -> BodyWriter | None:
        """Return a writer that lets the worker write a body from its fill memory. Return None if a copy by
        this process costs less.
        """
        ...

    def forget(self, ident: int) -> None:
        """Forget the read with the number ``ident``, which is over."""
        ...


class WorkerRead:
    """One read of a worker's client, and the page that the worker fetches for it. A prefetch has no client.

    For the flight of the page it implements ``CallbackOrigin`` and ``StartedRead`` of origin/base.py; for the
    client it implements ``Follower`` of flight.py.
    """

    __slots__ = (
        "_doubtful",
        "_filled",
        "_fills",
        "_flight",
        "_goes_on",
        "_ident",
        "_length",
        "_opened",
        "_reading",
        "_sink",
        "_start",
        "_wanted",
        "deadline",
        "lends_memory",
        "slot",
        "started_s",
    )  # fmt: skip

    def __init__(self, fills: SharedReads, ident: int) -> None:
        self.lends_memory = True
        """True, because the bytes come in fill memory; see ``CallbackOrigin.lends_memory``."""
        self.slot: str | None = None
        """The client to which the slot of this read is charged; None: the read holds no slot."""
        self.deadline: Deadline | None = None
        """The client's deadline for the first byte, see ``Follower.deadline``."""
        self._fills = fills
        self._ident = ident
        self._sink: Sink | None = None  # None: the worker's fill has ended.
        self._wanted: Wanted
        self.started_s = 0.0
        """The time at which the fill began."""
        self._reading: EngineReading | None = None  # None: the client has left.
        self._flight: Flight | None = None
        self._opened = self._doubtful = False
        self._goes_on = False  # True if a task continues the fill.
        self._start = self._length = self._filled = 0

    @classmethod
    def of_plain(
        cls,
        fills: SharedReads,
        ident: int,
        flight: Flight,
        reading: EngineReading | None,
        sink: Sink | None,
        *,
        start: int,
    ) -> "WorkerRead":
        """Return a read that continues a plain read (plain_read.py). ``reading``: None if the client has
        left. ``sink``: None if the fill has ended. ``start``: start of the body in fill memory; -1: no head
        has come.
        """
        read = cls(fills, ident)
        read._reading, read._flight, read._sink = reading, flight, sink
        read._wanted = Wanted(flight.ref, None, None, SHARED)
        read.deadline = None if reading is None else reading.deadline
        read._opened, read._doubtful = start >= 0, flight.doubtful
        read._start, read._length, read._filled = max(start, 0), flight.length, flight.filled
        return read

    # ------------------------------------------------------------------ calls of the flight

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> "WorkerRead":  # noqa: ARG002 - as CallbackOrigin
        """Note what the flight wants, see ``CallbackOrigin.start``. ``allow`` then tells the worker."""
        self._wanted, self._sink = wanted, sink
        self.started_s = self._fills.counts.now_s()
        return self

    def abort(self) -> None:
        """End the worker's fill, because no reader wants the page; see ``StartedRead.abort``."""
        if self._sink is None:
            return
        self._sink = None
        self._fills.outbox.send(AbortFill(self._ident))
        failure: BaseException = asyncio.CancelledError()
        if not self._opened:
            failure = self._fills.counts.unanswered(self.started_s, failure)
        self._note(failure)
        self._forget_if_over()

    @property
    def taker(self) -> None:
        """None, because the worker sends the bytes; see ``Follower.taker``."""
        return

    @property
    def waiting(self) -> bool:
        """True if more bytes are to come; see ``Follower.waiting``."""
        return self._filled < self._length or not self._opened

    def look(self) -> None:
        """Tell the worker of bytes that it has not fetched itself; see ``Follower.look``.

        While the worker fills the page, this does nothing. Once the worker's fill is over, only a task can
        still fetch the page. If the client may already have a part of the page, the worker gets a report of
        the rest. If the client has no byte yet, the worker relays its request, which will join the same
        flight. Until that request is answered, this read keeps the flight going, unless the flight fails.
        """
        flight = self._flight
        if self._sink is not None or flight is None or not (flight.meta or flight.ended):
            return
        if self._filled and self._goes_on:
            self._tell_rest(flight)
        elif not self._filled and flight.error is not None:
            self._leave(served=False)

    def too_late(self) -> None:
        """Refuse the worker's client, because the deadline has passed; see ``Follower.too_late``. Other
        readers of the page may go on waiting.
        """
        flight = self._flight
        if self._reading is None or self.deadline is None:
            return  # The client has left, or a first byte has come, since the flight saw the deadline pass.
        self._fills.outbox.send(RefuseFill(self._ident, late=True))
        if self._sink is not None and not self._opened and flight is not None and flight.waiters > 1:
            # The worker may be stuck. Present and later readers of the page must not wait for the worker as
            # well.
            self._fills.outbox.send(AbortFill(self._ident))
            self._hand_over(OriginUnavailable(_SILENT), 0)
        self._leave(served=False)

    # ------------------------------------------------------------------ messages of the worker

    def allow(self, reading: EngineReading, flight: Flight) -> None:
        """Let the worker fetch the page, for ``reading``."""
        self._reading, self._flight = reading, flight
        self.deadline = reading.deadline
        flight.followers.append(self)
        wanted = self._wanted
        self._fills.outbox.send(
            AllowFill(self._ident, flight.number, flight.part, wanted.span, wanted.if_match),
        )

    def hear(self, message: FillHead | FillProgress | FillComplete | FillFailure | ClientLeft) -> None:
        """Process a message of the worker about this read."""
        match message:
            case FillHead():
                self._open(message)
            case FillProgress():
                self._arrived(message.filled)
            case FillComplete():
                self._done(message)
            case FillFailure():
                self._failed(message)
            case ClientLeft():
                self._ended(message)

    def lose(self) -> None:
        """Continue the fill without the worker, which has ended, and without its client."""
        self._leave(served=False)
        if self._sink is not None:
            self._failed(FillFailure(self._ident, "OriginUnavailable", _ENDED, self._filled))

    def give_slot(self) -> None:
        """Release the slot; further calls do nothing."""
        if self.slot is not None:
            slot, self.slot = self.slot, None
            self._fills.slots.give(slot)

    # ------------------------------------------------------------------ inside

    def _open(self, message: FillHead) -> None:
        fills, sink = self._fills, self._sink
        memory = fills.memory.view(message.start, message.length, fills.free)
        fills.orders.discard(self._ident)
        if sink is not None:
            self._opened, self._start, self._length = True, message.start, message.length
            self._doubtful = message.doubtful
            fills.counts.note_first_byte(self.started_s)
            if isinstance(self.slot, LinkSlot):
                self.slot.charge(message.length)
            if sink.opened(message.meta, message.length, doubtful=message.doubtful, memory=memory) is None:
                fills.outbox.send(AbortFill(self._ident))
                self._hand_over(None, 0)
            self._arrived(message.filled)
        if message.complete is not None:
            self._done(message.complete)

    def _arrived(self, filled: int) -> None:
        count = filled - self._filled
        if self._sink is not None and self._opened and count > 0:
            self._filled = filled
            self.deadline = None
            self._sink.arrived(count)

    def _done(self, message: FillComplete) -> None:
        self._arrived(self._length)
        if message.left is not None:
            self._ended(message.left)
        sink, self._sink = self._sink, None
        if sink is not None:
            self._note(None)
            sink.complete(self._fills.writer_of(self._start, self._length))
        self._forget_if_over()

    def _failed(self, message: FillFailure) -> None:
        if self._sink is None:
            return
        kind = _ERRORS.get(message.error, OriginUnavailable)
        error = kind(message.text) if message.error else None
        # Only the worker has summed the bytes that came, so a task could not verify the whole page.
        if error is not None and (message.final or (self._doubtful and self._filled)):
            sink, self._sink = self._sink, None
            self._note(error)
            sink.failed(error)
        else:
            self._hand_over(error, message.received)
        self._forget_if_over()

    def _hand_over(self, error: OriginError | None, received: int) -> None:
        sink, self._sink = self._sink, None
        assert sink is not None, "asked for before"
        self._goes_on = True
        slot, self.slot = self.slot, None
        handed = HandedOver(
            started_s=self.started_s,
            error=error,
            received_bytes=received,
            slot=slot,
            keeps_slot=self._opened,
            close=self._close,
        )
        sink.hand_over(handed)

    def _tell_rest(self, flight: Flight) -> None:
        if flight.filled > self._filled:
            self._filled = flight.filled
            self._fills.outbox.send(FillProgress(self._ident, flight.filled))
        if flight.error is not None:
            self._goes_on = False
            self._fills.outbox.send(AbortFill(self._ident))

    def _close(self, handed: HandedOver) -> None:
        if (slot := handed.take_slot()) is not None:
            self._fills.slots.give(slot)

    def _note(self, failure: BaseException | None) -> None:
        self.give_slot()
        self._fills.counts.note("get", self._filled, self.started_s, failure)

    def _ended(self, message: ClientLeft) -> None:
        reading, flight = self._reading, self._flight
        if reading is not None and flight is not None and flight.meta is not None and message.start >= 0:
            reading.count(flight.meta, Span(message.start, message.stop))
        self._leave(served=message.served)

    def _leave(self, *, served: bool) -> None:
        reading, self._reading = self._reading, None
        if reading is not None and self._flight is not None:
            self._flight.followers.remove(self)
            self._fills.engine.leave(reading, served=served)
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        if self._sink is None and self._reading is None:
            self._fills.forget(self._ident)
