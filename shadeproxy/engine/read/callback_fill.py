"""A fill by callbacks: fills a flight from the origin without a task.

Laws: this fill takes the same steps as the fill by a task (flight_filler.py), over the same objects. It never
waits. Where it would have to, it hands the flight over to a task, which continues the fill.
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


class CallbackFill:
    """The fill of one flight. Implements origin/base.py ``Sink`` and flight.py ``Filling``."""

    __slots__ = ("_epoch", "_filler", "_flight", "_known", "_read", "_whole", "arrived")

    def __init__(self, filler: FlightFiller, flight: Flight, known: ObjectMeta | None) -> None:
        """Prepare the fill of ``flight``. ``known``: the requested version; None: any."""
        self._filler = filler
        self._flight = flight
        self._known = known
        self._epoch: AuthEpoch | None = None
        self._whole = False
        self._read: StartedRead | None = None
        self.arrived: Callable[[int], None] = flight.advance
        """See ``Sink.arrived``."""

    def start(self, reads: CallbackOrigin) -> bool:
        """Ask the origin. Return False if that would have to wait; then a task must fill the flight."""
        filler, flight, known = self._filler, self._flight, self._known
        self._epoch = filler.begin(flight)
        if known is not None and not reads.lends_memory:
            length = filler.within(flight, known.size).length
            if not filler.take_early(flight, length):
                return False
        wanted = filler.wanted(flight, known)
        self._whole = wanted.span is None
        self._read = reads.start(wanted, flight.intent, self)
        if self._read is None:
            return False
        flight.filling = self
        return True

    def abort(self) -> None:
        """See ``Filling.abort``."""
        read, self._read = self._read, None
        self._let_go()
        if read is not None:
            read.abort()

    # ------------------------------------------------------------------ what the read calls

    def opened(
        self,
        meta: ObjectMeta,
        length: int,
        *,
        doubtful: bool = False,
        held: bool = False,
        memory: memoryview | None = None,
    ) -> memoryview | None:
        """See ``Sink.opened``."""
        filler, flight = self._filler, self._flight
        if filler.within(flight, meta.size).length != length:
            return None
        if held:
            if not filler.take_now(flight, length):
                return None
            memory = np.empty(length, np.uint8).data
            self.arrived = partial(self._arrived_whole, meta, memory)
            return memory
        if not filler.open(
            flight, meta, length, self._epoch, whole=self._whole, doubtful=doubtful, memory=memory
        ):
            return None
        return flight.buffer

    def _arrived_whole(self, meta: ObjectMeta, memory: memoryview, count: int) -> None:
        """Open the flight over ``memory``, which is full and was taken from the ledger."""
        self._let_go()
        self._filler.open(self._flight, meta, count, self._epoch, whole=self._whole, memory=memory)
        self._flight.advance(count)

    def _let_go(self) -> None:
        """Drop the callback that holds memory and refers to this object."""
        self.arrived = self._flight.advance

    def complete(self, writer: BodyWriter | None = None) -> None:
        """See ``Sink.complete``."""
        # The read refers to this object: in a cycle, the page's memory would wait for the garbage collector.
        self._read = None
        if self._whole:
            self._filler.prove(self._flight)
        self._filler.complete(self._flight, writer)

    def failed(self, error: OriginError) -> None:
        """See ``Sink.failed``."""
        self._read = None
        self._let_go()
        self._filler.flights.end(self._flight, error)

    def hand_over(self, handed: HandedOver) -> None:
        """See ``Sink.hand_over``."""
        self._read = None
        self._let_go()
        fill = partial(self._filler.fill, self._known, handed=handed, epoch=self._epoch)
        task = self._filler.flights.fill_by_task(self._flight, fill)
        task.add_done_callback(lambda _task: handed.close())
