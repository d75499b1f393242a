"""A fill by callbacks: fills a flight from the origin without a task.

Laws: this fill takes the same steps as the fill by a task (flight_filler.py), and uses the same objects. A
fill by callbacks never waits. Where it would have to wait, it hands the flight over to a task, which
continues the fill.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from shadeproxy.core.delegated_body import BodyWriter
from shadeproxy.core.errors import OriginError
from shadeproxy.core.types import ObjectMeta
from shadeproxy.engine.freshness.verdicts import AuthEpoch
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.flight_filler import FlightFiller
from shadeproxy.origin.base import CallbackOrigin, HandedOver, StartedRead


def fill_at_once(
    filler: FlightFiller, known: ObjectMeta | None, reads: CallbackOrigin | None, flight: Flight
) -> bool:
    """Begin to fill ``flight`` by ``reads``. Return False if this would have to wait; then a task must fill
    the flight. ``known``: the metadata of the requested version; None: any version. Tasks fill flights that
    share an answer.
    """
    if reads is None or flight.answer_stop is not None:
        return False
    epoch = filler.begin(flight)
    if known is not None and not reads.lends_memory:
        length = filler.within(flight, known.size).length
        if not filler.take_early(flight, length):
            return False
    wanted = filler.wanted(flight, known)
    fill = CallbackFill(filler, flight, known, epoch, whole=wanted.span is None)
    fill.read = reads.start(wanted, flight.intent, fill)
    if fill.read is None:
        return False
    flight.filling = fill
    return True


class CallbackFill:
    """The fill of one flight. Implements ``Sink`` (origin/base.py) and ``Filling`` (flight.py)."""

    __slots__ = ("_epoch", "_filler", "_flight", "_known", "_whole", "arrived", "read")

    def __init__(
        self,
        filler: FlightFiller,
        flight: Flight,
        known: ObjectMeta | None,
        epoch: AuthEpoch | None,
        *,
        whole: bool,
    ) -> None:
        """Prepare the fill of ``flight``. ``epoch``: the auth epoch before the origin was asked. ``whole``:
        True if the request to the origin has no range.
        """
        self._filler = filler
        self._flight = flight
        self._known = known
        self._epoch = epoch
        self._whole = whole
        self.read: StartedRead | None = None
        """The read of the origin; None once it has ended."""
        self.arrived: Callable[[int], None] = flight.advance
        """Called when more bytes have arrived; see ``Sink.arrived``."""

    def abort(self) -> None:
        """End the fill, because no reader wants the page; see ``Filling.abort``."""
        read, self.read = self.read, None
        self._let_go()
        if read is not None:
            read.abort()

    # ------------------------------------------------------------------ calls of the read

    def opened(
        self,
        meta: ObjectMeta,
        length: int,
        *,
        doubtful: bool = False,
        held: bool = False,
        memory: memoryview | None = None,
    ) -> memoryview | None:
        """Open the flight, and return memory for its bytes; see ``Sink.opened``."""
        filler, flight = self._filler, self._flight
        if length != (min(meta.size, filler.page_size) if self._whole else filler.length_of(flight, meta)):
            return None
        if held:
            if not filler.take_now(flight, length):
                return None
            memory = np.empty(length, np.uint8).data
            self.arrived = partial(self._arrived_whole, meta, memory)
            return memory
        meta = filler.accept(flight, meta, self._epoch, whole=self._whole)
        if memory is None and not filler.take_now(flight, length):
            return None
        flight.open(meta, length, doubtful=doubtful, memory=memory)
        return flight.buffer

    def _arrived_whole(self, meta: ObjectMeta, memory: memoryview, count: int) -> None:
        """Open the flight with ``memory``, which already holds all bytes of the page. The ledger has counted
        this memory.
        """
        self._let_go()
        flight = self._flight
        meta = self._filler.accept(flight, meta, self._epoch, whole=self._whole)
        flight.open(meta, count, memory=memory)
        flight.advance(count)

    def _let_go(self) -> None:
        """Drop the callback ``arrived``, which may hold memory and refer to this object."""
        self.arrived = self._flight.advance

    def complete(self, writer: BodyWriter | None = None) -> None:
        """Store the page, because all bytes have arrived; see ``Sink.complete``."""
        # The read of the origin refers to this object. Without a reference back, the page's memory is freed
        # at once, and does not wait for the garbage collector.
        self.read = None
        self._filler.complete(self._flight, writer, whole=self._whole)

    def failed(self, error: OriginError) -> None:
        """End the flight with ``error``; see ``Sink.failed``."""
        self.read = None
        self._let_go()
        self._filler.flights.end(self._flight, error)

    def hand_over(self, handed: HandedOver) -> None:
        """Let a task continue the fill; see ``Sink.hand_over``."""
        self.read = None
        self._let_go()
        fill = partial(self._filler.fill, self._known, handed=handed, epoch=self._epoch)
        task = self._filler.flights.fill_by_task(self._flight, fill)
        task.add_done_callback(lambda _task: handed.close())
