"""Readers that have waited too long give up, only a few in each turn of the loop. Their flight does not fail
for the other readers.
"""

import asyncio
from collections import Counter

import pytest

from shadeproxy.core.deadline import Deadline, ReadBounds
from shadeproxy.core.errors import DeadlineExceeded
from shadeproxy.core.pace import PER_TURN
from shadeproxy.core.types import SHARED, ObjectMeta, ObjectRef
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.read.timeouts import OverdueFlights
from tests.support.clock import ManualClock

REF = ObjectRef("b", "k")
META = ObjectMeta('"e"', 6)
BOUNDS = ReadBounds(first_byte_s=5.0)
READERS = 500


class Cold:
    """Readers of one object whose bytes never come. ``left`` has, for each reader, the turn of the loop in
    which it left.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.flights = SingleFlight(lambda _flight: None)
        self.overdue = OverdueFlights(lambda: self.flights, clock=self.clock, bounds=BOUNDS)
        self.flight: Flight | None = None
        self.turn = 0
        self.left: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def fill(self, _flight: Flight) -> None:
        await asyncio.get_running_loop().create_future()

    async def read(self) -> None:
        deadline = Deadline(self.clock, BOUNDS)
        flight, _ = self.flights.join(REF, 0, SHARED, self.fill)
        self.flight = flight
        try:
            await flight.opened(deadline)
            await flight.piece(0, 6, deadline)
        except DeadlineExceeded:
            self.left.append(self.turn)
        finally:
            self.flights.leave(flight)

    async def arrive(self, count: int) -> None:
        self.tasks += [asyncio.create_task(self.read()) for _ in range(count)]
        await self.pass_turns(2)

    async def pass_turns(self, count: int) -> None:
        for _ in range(count):
            self.turn += 1
            await asyncio.sleep(0)

    def look(self) -> None:
        """Call the function of the timer."""
        self.overdue.look()
        if self.overdue._timer is not None:
            self.overdue._timer.cancel()


@pytest.fixture
async def cold():
    cold = Cold()
    yield cold
    for task in cold.tasks:
        task.cancel()
    await asyncio.gather(*cold.tasks, return_exceptions=True)
    await cold.flights.drain()


async def test_readers_that_are_late_together_leave_a_few_in_each_turn(cold):
    await cold.arrive(READERS)
    cold.clock.advance(6)
    while len(cold.left) < READERS:
        cold.look()  # Each call finds further readers, and none for a second time.
        await cold.pass_turns(1)
        assert cold.turn < READERS
    assert max(Counter(cold.left).values()) <= PER_TURN
    assert len(cold.left) == READERS


async def test_who_is_not_late_stays(cold):
    await cold.arrive(READERS)
    cold.clock.advance(3)
    await cold.arrive(1)
    cold.clock.advance(3)
    for _ in range(READERS):
        cold.look()
        await cold.pass_turns(1)
    assert len(cold.left) == READERS
    assert not cold.tasks[-1].done()
    assert not cold.flight.ended


async def test_a_flight_is_not_failed_under_readers_whose_turn_is_still_to_come(cold):
    """A flight that is older than the limit does not fail while readers may still be served. These readers
    came later, and have just been woken.
    """
    await cold.arrive(1)
    cold.look()
    cold.clock.advance(4)
    await cold.arrive(READERS)
    cold.clock.advance(2)
    cold.flight.open(META, 6)
    for _ in range(READERS):
        cold.look()
        assert not cold.flight.ended
        await cold.pass_turns(1)
    assert cold.left == [cold.left[0]]


async def test_bytes_that_come_while_late_readers_leave_reach_the_others(cold):
    """Most of the readers are still to be told that they are late when the page comes."""
    await cold.arrive(READERS)
    cold.clock.advance(5.1)
    cold.look()
    assert cold.flight is not None
    cold.flight.open(META, META.size)
    cold.flight.advance(META.size)
    await cold.pass_turns(2 * READERS // PER_TURN)
    cold.flight.task.cancel()
    assert all(task.done() for task in cold.tasks)
    assert len(cold.left) <= PER_TURN
