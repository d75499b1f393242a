"""Single-flight: one read of the origin per page, or part of one, however many readers want it.

Laws: a flight goes on if the waiter that started it leaves. It is cancelled when its last waiter leaves; but
if a waiter got all that it wanted, the flight may go on to its end. A flight returns its memory to the ledger
exactly once, after it is over and its last waiter has left. A flight is filled by callbacks or by a task,
never by both at a time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.pace import TurnLimiter
from shadeproxy.core.types import OWN, Intent, ObjectRef, Span, Upstream
from shadeproxy.engine.read.flight import Filling, Flight

Fill = Callable[[Flight], Coroutine[Any, Any, None]]
FlightKey = tuple[ObjectRef, int]


class SingleFlight:
    """The table of flights. ``retire``: called once for each flight, when its memory is no longer needed.

    ``goes_on``: returns whether a flight without waiters may go on; it is called only if a waiter got all
    that it wanted. ``on_start``: called when a flight starts while the table has no other.
    """

    def __init__(
        self,
        retire: Callable[[Flight], None],
        goes_on: Callable[[Flight], bool] = lambda _flight: False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        # A page has several flights if they are of several versions or parts of it.
        self._flights: dict[FlightKey, list[Flight]] = {}
        self.live: dict[ObjectRef, set[Flight]] = {}
        """The flights whose memory was not given back yet, by object. Only this class changes the dict."""
        self._retire = retire
        self._goes_on = goes_on
        self._pace = TurnLimiter()
        """Wakes the waiters of all flights, a few in each turn of the loop, because a cold object may have
        thousands.
        """
        self._on_start = on_start
        self._drained: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.live.values()))

    def find(self, ref: ObjectRef, number: int) -> Flight | None:
        """Return a flight of a whole page, in any version; None if there is none."""
        return next((one for one in self._flights.get((ref, number), ()) if one.part is None), None)

    def busy(self, ref: ObjectRef, number: int) -> bool:
        """Return whether a page, or a part of it, is on its way."""
        return (ref, number) in self._flights

    def overlaps(self, ref: ObjectRef, number: int, part: Span) -> bool:
        """Return whether bytes of ``part``, a span within a page, are on their way, in any version."""
        return any(
            one.part is None or (one.part.start < part.stop and part.start < one.part.stop)
            for one in self._flights.get((ref, number), ())
        )

    def find_serving(
        self, ref: ObjectRef, number: int, wanted: str | None, part: Span | None = None
    ) -> Flight | None:
        """Return the flight that ``join`` would join with these arguments, or None."""
        for flight in self._flights.get((ref, number), ()):
            if flight.serves(wanted) and flight.covers(part):
                return flight
        return None

    def join(
        self,
        ref: ObjectRef,
        number: int,
        upstream: Upstream,
        fill: Fill,
        intent: Intent = Intent.DEMAND,
        *,
        wanted: str | None = None,
        part: Span | None = None,
        part_only: bool = False,
        stored_as: int | None = None,
        answer_stop: int | None = None,
        at_once: Callable[[Flight], bool] = lambda _flight: False,
    ) -> tuple[Flight, bool]:
        """Join a flight of a page, or at least of the span ``part`` within the page, in the version
        ``wanted`` (an ETag; None: any).

        If there is no such flight, start one. It is filled by callbacks if ``at_once`` returns True,
        otherwise by a task that runs ``fill``. ``part_only``: fetch only ``part``. ``stored_as`` and
        ``answer_stop``: see ``Flight``. Return the flight, and whether it was running already. The caller
        must ``leave`` the flight once.
        """
        others = self._flights.get((ref, number))
        flight = None if others is None else self.find_serving(ref, number, wanted, part)
        coalesced = flight is not None
        if flight is None:
            flight = Flight(
                ref,
                number,
                upstream,
                intent,
                wanted,
                part=part if part_only else None,
                stored_as=stored_as,
                answer_stop=answer_stop,
                pace=self._pace,
            )
            self._flights.setdefault((ref, number), []).append(flight)
            self.live.setdefault(ref, set()).add(flight)
            try:
                begun = at_once(flight)
            except BaseException:
                self.end(flight)  # No reader has joined the flight yet.
                raise
            if not begun:
                self.fill_by_task(flight, fill)
            if len(self.live) == 1:
                self._on_start()
        flight.waiters += 1
        return flight, coalesced

    def start(self, ref: ObjectRef, upstream: Upstream, intent: Intent, filling: Filling) -> Flight:
        """Start a flight for the first page of an object. ``filling``: the callbacks that fill it. No other
        flight may fetch that page now. Return the flight with one waiter, which must ``leave`` it once.
        """
        flight = Flight(ref, 0, upstream, intent, None, pace=self._pace)
        flight.filling = filling
        flight.waiters = 1
        self._flights[ref, 0] = [flight]
        live = self.live
        if ref in live:
            live[ref].add(flight)
        else:
            live[ref] = {flight}
        if len(live) == 1:
            self._on_start()
        return flight

    def fill_by_task(self, flight: Flight, fill: Fill) -> asyncio.Task[None]:
        """Start a task that fills a flight, or that continues a fill by callbacks."""
        flight.filling = None
        flight.task = asyncio.get_running_loop().create_task(
            fill(flight), name=f"fill {flight.ref} page {flight.number}", context=flight.context
        )
        # Use a callback of the task, because a wrapper coroutine would not run at all if the task is
        # cancelled before its first step.
        flight.task.add_done_callback(partial(self._ended, flight))
        return flight.task

    def leave(self, flight: Flight, *, served: bool = False) -> None:
        """Remove a waiter. ``served``: True if the waiter got all that it wanted. When the last waiter
        leaves, the fill is cancelled, unless it may go on.
        """
        flight.waiters -= 1
        flight.served |= served
        assert flight.waiters >= 0, "left a flight twice"
        if flight.waiters:
            return
        if not flight.ended:
            if not (flight.served and self._goes_on(flight)):
                self._cancel(flight)
            return
        if flight.error is not None:
            flight.abandon()
        if flight.over or flight.task is not None:
            self._finish(flight)

    def detach(self, flight: Flight) -> None:
        """Let no more readers join the flight, because its page was invalidated or stored, or because the
        flight is being cancelled.
        """
        key = flight.ref, flight.number
        flights = self._flights.get(key, [])
        if flight in flights:
            flights.remove(flight)
            if not flights:
                del self._flights[key]

    def place(self, flight: Flight, number: int, part: Span | None, stored_as: int | None) -> None:
        """Give a flight the page that it fetches, or the span ``part`` of it, now that the page is known.
        Other readers of the page may join the flight from now on.
        """
        key = flight.ref, flight.number
        joinable = flight in self._flights.get(key, ())
        self.detach(flight)
        flight.number, flight.part, flight.stored_as = number, part, stored_as
        flight.start = 0 if part is None else part.start
        if joinable:
            self._flights.setdefault((flight.ref, number), []).append(flight)

    def invalidate_object(self, ref: ObjectRef) -> None:
        """Let no running flight of this object store its page. Later readers start new flights."""
        # Copy the set, because cancelling a fill by callbacks removes its flight from the set.
        for flight in list(self.live.get(ref, ())):
            flight.publishable = False
            if flight.waiters or flight.ended:
                self.detach(flight)
            else:
                self._cancel(flight)

    def invalidate_bucket(self, bucket: str, namespace: str = OWN) -> None:
        """Call ``invalidate_object`` for every object of a bucket."""
        self.invalidate(lambda ref: ref.is_under(bucket, "", namespace))

    def invalidate(self, matches: Callable[[ObjectRef], bool]) -> None:
        """Call ``invalidate_object`` for every object with a flight for which ``matches`` returns True."""
        for ref in list(filter(matches, self.live)):
            self.invalidate_object(ref)

    def all(self) -> list[Flight]:
        """Return every flight whose memory was not given back yet."""
        return [one for flights in self.live.values() for one in flights]

    def fail(self, flight: Flight, error: ShadeProxyError) -> None:
        """Cancel a fill that takes too long. The readers of its flight get ``error``."""
        flight.end(error)
        self._cancel(flight)

    def cancel_unwatched(self) -> None:
        """Cancel all fills that go on without a waiter."""
        for flight in self.all():
            if not flight.waiters and not flight.ended:
                self._cancel(flight)

    async def drain(self) -> None:
        """Wait until every flight is over."""
        while any(not flight.over for flight in self.all()):
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _cancel(self, flight: Flight) -> None:
        # Detach the flight first, because no reader may join it while it is being cancelled.
        self.detach(flight)
        if flight.task is not None:
            flight.task.cancel()
        elif flight.filling is not None:
            flight.filling.abort()
            self.end(flight, ShadeProxyError(f"the read of {flight.ref} was abandoned"))

    def _ended(self, flight: Flight, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.end(flight, ShadeProxyError(f"the read of {flight.ref} was abandoned"))
            return
        error = task.exception()
        if error is not None and not isinstance(error, ShadeProxyError):
            # Any other error is a defect of the code. End the flight, so that no waiter waits for ever, and
            # show the traceback.
            context = {"message": "fill failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)
            error = ShadeProxyError(f"internal error while reading {flight.ref}: {error!r}")
        self.end(flight, error)

    def end(self, flight: Flight, error: BaseException | None = None) -> None:
        """End a flight whose fill is over. ``error``: why the fill failed; None: its page was stored or left
        out.
        """
        flight.over, flight.filling = True, None
        told, flight.on_over = flight.on_over, []
        if not flight.ended:
            flight.end(error)
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if flight.waiters:
            self.detach(flight)
        else:
            self._finish(flight)
        for call in told:
            asyncio.get_running_loop().call_soon(call)

    def _finish(self, flight: Flight) -> None:
        flights = self.live.get(flight.ref, set())
        # Test whether the fill has ended, because it may end after the last waiter has left. ``_ended`` is
        # called one step after the task's end.
        if flight in flights and (flight.over or (flight.task is not None and flight.task.done())):
            # In most cases the page has no other flight.
            if self._flights.get(key := (flight.ref, flight.number)) == [flight]:
                del self._flights[key]
            else:
                self.detach(flight)
            flights.remove(flight)
            if not flights:
                del self.live[flight.ref]
            # Drop the error, because its traceback refers to the flight. Otherwise the flight's memory would
            # wait for the garbage collector.
            flight.task = flight.error = None
            flight.buffer = memoryview(b"")
            self._retire(flight)
