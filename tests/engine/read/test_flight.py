"""Flight and SingleFlight: one origin read serves all readers, and the memory is given back exactly once."""

import asyncio

import numpy as np
import pytest

from shadeproxy.core.errors import OriginUnavailable, ShadeProxyError
from shadeproxy.core.pace import PER_TURN
from shadeproxy.core.types import SHARED, Intent, ObjectMeta, ObjectRef
from shadeproxy.engine.read.flight import PIECE_BYTES, DetachedBuffers, Flight
from shadeproxy.engine.read.single_flight import SingleFlight

REF, OTHER, ELSEWHERE = ObjectRef("b", "k"), ObjectRef("b", "other"), ObjectRef("elsewhere", "k")
META = ObjectMeta('"e"', 6)


class Bench:
    """A SingleFlight whose fills wait for the test. ``retired`` has the flights that were retired."""

    def __init__(self) -> None:
        self.retired: list[Flight] = []
        self.fills = 0
        self.go = asyncio.Event()
        self.cancelled = False
        self.error: BaseException | None = None
        self.flights = SingleFlight(self.retired.append)

    async def fill(self, flight: Flight) -> None:
        self.fills += 1
        flight.open(META, META.size)
        self.receive(flight, b"abc")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error
        self.receive(flight, b"def")

    def receive(self, flight: Flight, data: bytes) -> None:
        flight.buffer[flight.filled : flight.filled + len(data)] = data
        flight.advance(len(data))

    def join(self, ref: ObjectRef = REF, number: int = 0) -> Flight:
        return self.flights.join(ref, number, SHARED, self.fill)[0]

    async def read(self, flight: Flight) -> bytes:
        """Return the bytes that a reader gets. The reader leaves the flight even after an error."""
        try:
            await flight.opened()
            received = b""
            while len(received) < flight.length:
                received += await flight.piece(len(received), flight.length)
            return received
        finally:
            self.flights.leave(flight)

    def reader(self, flight: Flight) -> asyncio.Task[bytes]:
        return asyncio.create_task(self.read(flight))


@pytest.fixture
async def bench():
    bench = Bench()
    yield bench
    await bench.flights.drain()
    await asyncio.sleep(0)
    assert len(bench.flights) == 0
    assert not bench.flights._flights
    assert not bench.flights.live


async def test_a_flight_whose_fill_is_over_is_joined_no_more(bench):
    flight = bench.join()
    bench.go.set()
    await flight.task
    await asyncio.sleep(0)
    assert bench.flights.find(REF, 0) is None
    later = bench.join()
    assert later is not flight
    await bench.read(later)
    bench.flights.leave(flight)
    await bench.flights.drain()
    await asyncio.sleep(0)
    assert bench.retired == [later, flight]


async def test_readers_share_one_fill_and_all_get_the_page(bench):
    readers = [bench.reader(bench.join()) for _ in range(3)]
    assert bench.flights.join(REF, 0, SHARED, bench.fill)[1]
    flight = bench.flights.find(REF, 0)
    bench.go.set()
    assert await asyncio.gather(*readers) == [b"abcdef"] * 3
    # One reader has not left yet, so the flight is not retired.
    assert (bench.fills, bench.retired) == (1, [])
    bench.flights.leave(flight)
    assert bench.retired == [flight]


async def test_a_flight_survives_the_reader_that_started_it(bench):
    leader, follower = bench.reader(bench.join()), bench.reader(bench.join())
    await asyncio.sleep(0)
    leader.cancel()
    await asyncio.wait({leader})
    bench.go.set()
    assert await follower == b"abcdef"
    assert not bench.cancelled


async def test_a_flight_dies_with_its_last_reader_and_nobody_joins_it_then(bench):
    first = bench.join()
    task = first.task
    readers = [bench.reader(first), bench.reader(bench.join())]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    successor = bench.join()
    assert successor is not first
    await asyncio.wait({task})
    assert bench.cancelled
    bench.go.set()
    assert await bench.read(successor) == b"abcdef"
    await bench.flights.drain()
    await asyncio.sleep(0)
    assert bench.retired == [first, successor]


async def test_a_fill_cancelled_before_its_first_step_is_retired_too(bench):
    flight = bench.join()
    task = flight.task
    bench.flights.leave(flight)
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert (bench.fills, bench.retired) == (0, [flight])


async def test_who_still_waits_for_a_cancelled_fill_is_told(bench):
    flight = bench.join()
    reader = bench.reader(flight)
    flight.task.cancel()
    with pytest.raises(ShadeProxyError, match=r"the read of .*k.* was abandoned"):
        await reader
    assert bench.retired == [flight]


async def test_a_piece_never_keeps_the_memory_of_a_whole_page():
    flight = Flight(REF, 0, SHARED, Intent.DEMAND, None)
    flight.open(META, 3 * PIECE_BYTES)
    flight.advance(3 * PIECE_BYTES)
    assert len(await flight.piece(100, 3 * PIECE_BYTES)) == PIECE_BYTES
    assert len(await flight.piece(100, 200)) == 100


async def test_every_waiter_gets_the_error_after_the_bytes_that_came(bench):
    bench.error = OriginUnavailable("down")
    flight = bench.join()
    readers = [bench.reader(flight), bench.reader(bench.join())]
    late = bench.join()
    bench.go.set()
    errors = await asyncio.gather(*readers, return_exceptions=True)
    assert errors == [bench.error] * 2
    assert bytes(await late.piece(0, 6)) == b"abc"
    with pytest.raises(OriginUnavailable):
        await bench.read(late)
    assert bench.retired == [flight]


async def test_a_bug_in_a_fill_reaches_waiters_and_the_loop(bench):
    seen = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context["exception"]))
    bench.error = ZeroDivisionError("bug")
    bench.go.set()
    with pytest.raises(ShadeProxyError, match=r"internal error while reading .*ZeroDivisionError"):
        await bench.read(bench.join())
    assert seen == [bench.error]


@pytest.mark.parametrize("reader_leaves_first", [False, True])
async def test_a_flight_is_retired_once_whoever_leaves_last(bench, reader_leaves_first):
    flight = bench.join()
    if reader_leaves_first:
        # The reader has all bytes and leaves while the task still runs, for example to store the page.
        await flight.opened()
        flight.end()
        bench.flights.leave(flight)
        assert bench.retired == []
        bench.go.set()
        await asyncio.wait({flight.task})
    else:
        bench.go.set()
        await asyncio.wait({flight.task})
        await asyncio.sleep(0)
        assert bench.retired == []
        bench.flights.leave(flight)
    await asyncio.sleep(0)
    assert bench.retired == [flight]


@pytest.mark.parametrize(
    ("invalidate", "expected"),
    [
        (lambda flights: flights.invalidate_object(REF), {(REF, 0), (REF, 1)}),
        (lambda flights: flights.invalidate_object(ObjectRef("b", "unknown")), set()),
        (lambda flights: flights.invalidate_bucket("b"), {(REF, 0), (REF, 1), (OTHER, 0)}),
        (lambda flights: flights.invalidate(lambda ref: ref.key.startswith("k")),
         {(REF, 0), (REF, 1), (ELSEWHERE, 0)}),
    ],
)  # fmt: skip
async def test_invalidated_flights_are_detached_and_not_kept_but_go_on(bench, invalidate, expected):
    joined = [bench.join(*page) for page in ((REF, 0), (REF, 1), (OTHER, 0), (ELSEWHERE, 0))]
    readers = [bench.reader(flight) for flight in joined]
    invalidate(bench.flights)
    marked = {(flight.ref, flight.number) for flight in joined if not flight.publishable}
    gone = {
        (flight.ref, flight.number) for flight in joined if not bench.flights.find(flight.ref, flight.number)
    }
    assert marked == gone == expected
    bench.go.set()
    assert await asyncio.gather(*readers) == [b"abcdef"] * 4


async def test_a_detached_flight_is_marked_by_later_invalidations_too(bench):
    flight = bench.join()
    bench.flights.detach(flight)
    bench.flights.invalidate_object(REF)
    assert not flight.publishable
    bench.go.set()
    await bench.read(flight)


async def test_invalidating_an_object_looks_at_no_other_flight(bench):
    flight, other = bench.join(), bench.join(OTHER)
    bench.flights.live = Unscannable(bench.flights.live)
    bench.flights.invalidate_object(REF)
    bench.flights.live = dict(dict.items(bench.flights.live))
    assert (flight.publishable, other.publishable) == (False, True)
    bench.go.set()
    await asyncio.gather(bench.read(flight), bench.read(other))


class Unscannable(dict):
    """A dict that raises when it is iterated over. So a test sees that only single keys are looked up."""

    def __iter__(self):
        raise AssertionError("every flight was looked at")

    values = items = __iter__


async def test_thousands_of_readers_of_one_page_are_woken_a_few_in_a_turn_of_the_loop(bench):
    turn, woken = 0, []
    flights = [bench.join(REF, number) for number in range(3)]

    async def read(flight):
        try:
            await flight.piece(3, 6)
            woken.append(turn)
        finally:
            bench.flights.leave(flight)

    for flight in flights:
        flight.waiters += 499
    readers = [asyncio.create_task(read(flight)) for flight in flights for _ in range(500)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bench.go.set()
    while len(woken) < len(readers):
        turn += 1
        await asyncio.sleep(0)
    assert max(woken.count(one) for one in set(woken)) <= PER_TURN
    await asyncio.gather(*readers)


def test_freed_buffers_of_short_pages_take_no_memory():
    """Nearly every reader has its bytes at once, so their buffers are freed while others are added."""
    detached, held = DetachedBuffers(1 << 20), []
    for number in range(20_000):
        array = np.empty(50, np.uint8)
        if not number % 20:
            held.append(array)
        detached.add(array.data)
    assert len(detached._buffers) < 6000
    assert not detached.many
    held += [np.empty(1 << 19, np.uint8) for _ in range(2)]
    for array in held[-2:]:
        detached.add(array.data)
    assert detached.many
    held.clear()
    del array
    assert not detached.many
