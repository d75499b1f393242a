"""Single-flight: one origin read per page, or part of one, however many readers want it.

Laws: a flight outlives its first waiter. When its last waiter leaves it is cancelled, unless one was served:
then it may go on to its end. It gives its ledger bytes back exactly once, after it ended and its last waiter
left. Nothing here knows tiers or HTTP. States: OPENING (no metadata yet) -> FILLING -> ENDED (complete, or
failed with ``error``).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import numpy as np

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import ShadeProxyError, Unidentified
from shadeproxy.core.pace import TurnLimiter, set_done
from shadeproxy.core.types import OWN, Intent, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin.base import OriginRead

PIECE_BYTES = 256 * 1024
"""Longest piece handed out. A piece keeps the memory of its page: a slow reader with all of it would keep
that long after the page was stored and its bytes were given back to the ledger."""


class Flight:
    """A page on its way from the origin. ``buffer`` is filled from the front; readers follow.

    ``part``: the span within the page that is fetched, for its readers alone, and not stored; None: the page.
    """

    def __init__(
        self,
        ref: ObjectRef,
        number: int,
        upstream: Upstream,
        intent: Intent,
        wanted: str | None,
        *,
        part: Span | None = None,
        pace: TurnLimiter | None = None,
    ) -> None:
        self.ref = ref
        self.number = number
        self.upstream = upstream
        self.part = part
        self._first = 0 if part is None else part.start
        self.wanted = wanted
        """ETag of the requested version; None: any version."""
        self.intent = intent
        """Present intent: a reader that joins a prefetch makes it a demand read."""
        self.prefetched = intent is Intent.PREFETCH
        """True if no reader had asked for it when it started."""
        self.stored = False
        self.meta: ObjectMeta | None = None
        self.doubtful = False
        """True if ``meta`` and the filled bytes may be wrong until the flight has ended well."""
        self.buffer = memoryview(b"")
        self.filled = 0
        self.waiters = 0
        self.served = False
        """True if a waiter had all that it wanted: the page is worth having, even if the others hang up."""
        self.publishable = True
        self.ended = False
        self.error: BaseException | None = None
        self.budget_bytes = 0
        self.task: asyncio.Task[None] | None = None
        self.passed: OriginRead | None = None
        """An answer that cannot be stored, for the one reader that takes it."""
        self._through: asyncio.Future[None] | None = None
        self._waiting: list[tuple[asyncio.Future[None], Deadline | None]] = []
        self._suspended = 0  # waiting readers, and readers woken that have not run yet
        self._pace = pace or TurnLimiter()

    @property
    def waited_for(self) -> bool:
        """True if a reader waits for the next byte, or was woken and has not looked at it yet."""
        return self._suspended > 0

    @property
    def length(self) -> int:
        """Number of bytes to come; 0 until opened."""
        return len(self.buffer)

    def covers(self, part: Span | None) -> bool:
        """Return whether the flight fetches that span within the page; None: all of it."""
        return self.part is None or (
            part is not None and self.part.start <= part.start and part.stop <= self.part.stop
        )

    def serves(self, etag: str | None) -> bool:
        """Return whether it may fetch the version ``etag`` (None: any) for a reader.

        Readers of an old version that go on after a write ask for a version that the origin no longer has:
        readers of the new one must not wait for them to fail.
        """
        if self.meta is not None:
            return etag is None or etag == self.meta.etag
        return self.wanted is None or self.wanted == etag

    def open(self, meta: ObjectMeta, length: int, *, doubtful: bool = False) -> None:
        """Set metadata, and the buffer for which memory is taken: readers may start."""
        self.meta = meta
        self.doubtful = doubtful
        # Not a bytearray, which is zeroed first: readers see only filled bytes.
        self.buffer = np.empty(length, np.uint8).data
        if not length:
            self.ended = True
        self._wake()

    def advance(self, count: int) -> None:
        """Note ``count`` more bytes in ``buffer``; the last one completes the flight."""
        self.filled += count
        if self.filled == len(self.buffer):
            self.ended = True
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """End the flight, failed or complete. Its task may go on to store the page, without readers."""
        if not self.ended:
            self.error = error
            self.ended = True
            self._wake()

    async def hand_over(self, read: OriginRead) -> None:
        """Fail with Unidentified, let one of the readers take ``read``, and return when all have left."""
        self.passed = read
        self._through = asyncio.get_running_loop().create_future()
        self.end(Unidentified(self.ref))
        if self.waiters:
            await self._through

    def abandon(self) -> None:
        """Let go of the handed-over bytes: their reader is gone."""
        self.passed = None
        if self._through is not None and not self._through.done():
            self._through.set_result(None)

    async def opened(self, deadline: Deadline | None = None, *, proven: bool = False) -> ObjectMeta:
        """Wait for the metadata; ``proven``: until it is known to be right. Raises the flight's error, and
        DeadlineExceeded when the caller's own ``deadline`` has passed: the flight goes on for others.
        """
        while self.meta is None:
            self._raise_if_failed()
            await self._progress(deadline)
        while proven and self.doubtful and not self.ended:
            await self._progress(deadline)
        if proven and self.doubtful:
            self._raise_if_failed()
        return self.meta

    async def piece(self, position: int, stop: int, deadline: Deadline | None = None) -> memoryview:
        """Return the arrived bytes of ``[position, stop)`` within the page, as soon as there are any:
        read-only, and PIECE_BYTES at most. Raises as ``opened``.
        """
        position, stop = position - self._first, stop - self._first
        while self.filled <= position:
            self._raise_if_failed()
            await self._progress(deadline)
        return self.buffer[position : min(self.filled, stop, position + PIECE_BYTES)].toreadonly()

    def _raise_if_failed(self) -> None:
        if not self.ended:
            return
        if isinstance(self.error, ShadeProxyError):
            # A fresh traceback for every waiter: one exception object is raised in many tasks.
            raise self.error.with_traceback(None)
        assert self.error is None, "a flight ends complete or with an error of our tree"

    def refuse_late(self) -> None:
        """Fail the waiters whose deadline has passed, and no others.

        After the first byte a waiter (for a body that has to be verified, say) has one window more.
        """
        arriving = self.filled > 0
        waiting, self._waiting = self._waiting, []
        for future, deadline in waiting:
            if deadline is not None and _is_late(deadline, arriving):
                self._pace.call(partial(_refuse, future, deadline))
            else:
                self._waiting.append((future, deadline))

    async def _progress(self, deadline: Deadline | None) -> None:
        """Wait until there is more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, deadline))
        self._suspended += 1
        try:
            await future
        finally:
            self._suspended -= 1

    def _wake(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for future, _ in waiting:
            self._pace.call(partial(set_done, future))


def _is_late(deadline: Deadline, arriving: bool) -> bool:
    return (deadline.arriving_left_s if arriving else deadline.left_s) <= 0


def _refuse(future: asyncio.Future[None], deadline: Deadline) -> None:
    if not future.done():
        future.set_exception(deadline.exceeded())


Fill = Callable[[Flight], Coroutine[Any, Any, None]]
FlightKey = tuple[ObjectRef, int]


class SingleFlight:
    """The table of flights. ``retire``: called once per flight when its memory is no longer needed.

    ``goes_on``: returns whether a flight that served a reader may end without a waiter. ``on_start``: called
    after each start.
    """

    def __init__(
        self,
        retire: Callable[[Flight], None],
        goes_on: Callable[[Flight], bool] = lambda _flight: False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._flights: dict[FlightKey, list[Flight]] = {}  # several if of several versions
        self._live: dict[ObjectRef, set[Flight]] = {}
        self._retire = retire
        self._goes_on = goes_on
        self._pace = TurnLimiter()
        """Pace of all waiters: a cold object may have thousands."""
        self._on_start = on_start

    def __len__(self) -> int:
        return sum(map(len, self._live.values()))

    def find(self, ref: ObjectRef, number: int) -> Flight | None:
        """Return a flight for a page, of any version."""
        return next((one for one in self._flights.get((ref, number), ()) if one.part is None), None)

    def busy(self, ref: ObjectRef, number: int) -> bool:
        """Return whether a page, or a part of it, is on its way."""
        return (ref, number) in self._flights

    def find_serving(
        self, ref: ObjectRef, number: int, wanted: str | None, part: Span | None = None
    ) -> Flight | None:
        """Return the flight that ``join`` would join."""
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
    ) -> tuple[Flight, bool]:
        """Join the flight for a page of version ``wanted`` (an ETag; None: any), or for ``part`` at least.

        Without one, start it, with ``part_only`` for that part only. Return it, and whether it was running
        already. The caller must ``leave`` it exactly once.
        """
        flight = self.find_serving(ref, number, wanted, part)
        coalesced = flight is not None
        if flight is None:
            flight = Flight(
                ref, number, upstream, intent, wanted, part=part if part_only else None, pace=self._pace
            )
            self._flights.setdefault((ref, number), []).append(flight)
            self._live.setdefault(ref, set()).add(flight)
            name = f"fill {ref} page {number}"
            flight.task = asyncio.get_running_loop().create_task(fill(flight), name=name)
            # A callback, not a wrapper: a task cancelled before its first step never runs a line.
            flight.task.add_done_callback(partial(self._ended, flight))
            self._on_start()
        flight.waiters += 1
        return flight, coalesced

    def leave(self, flight: Flight, *, served: bool = False) -> None:
        """Remove a waiter, ``served`` or not; the last one cancels a fill that may not go on."""
        flight.waiters -= 1
        flight.served |= served
        assert flight.waiters >= 0, "left a flight twice"
        if flight.waiters:
            return
        if flight.ended:
            flight.abandon()
            self._finish(flight)
        elif not (flight.served and self._goes_on(flight)):
            self._cancel(flight)

    def detach(self, flight: Flight) -> None:
        """Let no reader join any more (its page was invalidated, stored, or it is being cancelled)."""
        key = flight.ref, flight.number
        flights = self._flights.get(key, [])
        if flight in flights:
            flights.remove(flight)
            if not flights:
                del self._flights[key]

    def invalidate_object(self, ref: ObjectRef) -> None:
        """Keep flights of this object from storing, and let later readers start new ones."""
        for flight in self._live.get(ref, ()):
            flight.publishable = False
            if flight.waiters or flight.ended:
                self.detach(flight)
            else:
                self._cancel(flight)

    def invalidate_bucket(self, bucket: str, namespace: str = OWN) -> None:
        """Do ``invalidate_object`` for every object of a bucket."""
        self.invalidate(lambda ref: ref.is_under(bucket, "", namespace))

    def invalidate(self, matches: Callable[[ObjectRef], bool]) -> None:
        """Do ``invalidate_object`` for every object that matches; asks once for each object in flight."""
        for ref in filter(matches, self._live):
            self.invalidate_object(ref)

    def all(self) -> list[Flight]:
        """Return every flight whose memory is not given back yet."""
        return [one for flights in self._live.values() for one in flights]

    def fail(self, flight: Flight, error: ShadeProxyError) -> None:
        """End a fill that its origin does not end: its readers get ``error``."""
        flight.end(error)
        self._cancel(flight)

    def cancel_unwatched(self) -> None:
        """Cancel the fills that go on without a waiter."""
        for flight in self.all():
            if not flight.waiters and not flight.ended:
                self._cancel(flight)

    async def drain(self) -> None:
        """Wait until every fill has ended."""
        while tasks := [task for task in self._tasks() if not task.done()]:
            await asyncio.wait(tasks)

    def _cancel(self, flight: Flight) -> None:
        # No reader may join a flight that is being cancelled.
        self.detach(flight)
        if flight.task is not None:
            flight.task.cancel()

    def _tasks(self) -> Iterator[asyncio.Task[None]]:
        return (flight.task for flights in self._live.values() for flight in flights if flight.task)

    def _ended(self, flight: Flight, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            flight.end(ShadeProxyError(f"the read of {flight.ref} was abandoned"))
        else:
            error = task.exception()
            if error is not None and not isinstance(error, ShadeProxyError):
                # A bug: waiters must not hang on it, and its traceback must be seen.
                flight.end(ShadeProxyError(f"internal error while reading {flight.ref}: {error!r}"))
                context = {"message": "fill failed", "exception": error, "task": task}
                task.get_loop().call_exception_handler(context)
            else:
                flight.end(error)
        if flight.waiters:
            self.detach(flight)
        else:
            self._finish(flight)

    def _finish(self, flight: Flight) -> None:
        flights = self._live.get(flight.ref, set())
        if flight in flights and flight.task is not None and flight.task.done():
            # The task's own callback may come a step later than its last waiter.
            self.detach(flight)
            flights.remove(flight)
            if not flights:
                del self._live[flight.ref]
            # Tracebacks refer back to the flight, so its memory would wait for the garbage collector.
            flight.task = flight.error = None
            self._retire(flight)
