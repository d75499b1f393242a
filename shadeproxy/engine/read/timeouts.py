"""Timeouts of flights, by one timer for all flights. A timer for each read would cost more.

Laws: a reader whose deadline has passed gets DeadlineExceeded, and the flight goes on for its other readers.
A flight for which no reader waits (a prefetch, a page read ahead) has as much time for its first byte as a
reader has. A flight whose body comes too slowly fails, on any transport and after any number of tries. The
timer runs only while there are flights.
"""

import asyncio
from collections.abc import Callable
from weakref import ReferenceType, WeakKeyDictionary, ref

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import Deadline, LeastRate, ReadBounds
from shadeproxy.core.errors import BodyCutShort
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.single_flight import SingleFlight

_LOOKS = 20  # The timer looks this often within the shortest time limit.
_MOST_TICK_S = 1.0
_LEAST_TICK_S = 0.01


class _Progress:
    """The state of a flight when the timer looked last, for comparison at the next look."""

    __slots__ = ("deadline", "filled", "pace")

    def __init__(self, deadline: Deadline, pace: LeastRate) -> None:
        self.deadline = deadline
        self.pace = pace
        self.filled = 0


class OverdueFlights:
    """Ends waits and flights that take too long. ``flights``: returns the table of flights; called at each
    look of the timer.
    """

    def __init__(
        self,
        flights: Callable[[], SingleFlight],
        *,
        clock: Clock,
        bounds: ReadBounds,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_look``: called at each look, when all flights were looked at."""
        self._on_look = on_look
        self._flights = flights
        self._clock = clock
        self._bounds = bounds
        shortest_s = min(bounds.first_byte_s, bounds.window_s)
        self._tick_s = min(_MOST_TICK_S, max(_LEAST_TICK_S, shortest_s / _LOOKS))
        self._seen: WeakKeyDictionary[Flight, _Progress] = WeakKeyDictionary()
        self._looked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Start the timer, unless it runs. Call this when a flight starts."""
        if self._timer is None:
            self._looked_s = self._clock.monotonic_s()
            self._start()

    def _start(self) -> None:
        # Let the loop hold a weak reference only. Otherwise a closed engine, with its mapped files, would
        # stay in memory until the timer runs again.
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, _look, ref(self))

    def look(self) -> None:
        """End late waits and slow flights. Set the timer again if flights remain."""
        self._timer = None
        flights = self._flights()
        now_s = self._clock.monotonic_s()
        waited_s, self._looked_s = now_s - self._looked_s, now_s
        try:
            for flight in flights.all():
                if not flight.ended:
                    flight.refuse_late()
                    self._look_at(flights, flight, waited_s)
            self._on_look()
        finally:
            if len(flights):
                self._start()

    def _look_at(self, flights: SingleFlight, flight: Flight, waited_s: float) -> None:
        seen = self._seen.get(flight)
        if seen is None:
            seen = _Progress(Deadline(self._clock, self._bounds), LeastRate(self._bounds))
            self._seen[flight] = seen
        if not flight.filled:
            # A flight for which a reader waits does not fail here: the reader has a deadline of its own, and
            # the fill a limited number of tries.
            if seen.deadline.left_s <= 0 and not flight.waited_for:
                flights.fail(flight, seen.deadline.exceeded())
            return
        arrived, seen.filled = flight.filled - seen.filled, flight.filled
        if not seen.pace.note(waited_s, arrived):
            flights.fail(flight, BodyCutShort(f"the origin sends {flight.ref} too slowly"))


def _look(overdue: "ReferenceType[OverdueFlights]") -> None:
    if (there := overdue()) is not None:
        there.look()
