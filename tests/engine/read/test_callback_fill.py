"""Fills by callbacks, with events in any order. Each flight ends once, and each reader gets the origin's
bytes.
"""

import asyncio
import random
from collections import Counter

import pytest

from shadeproxy.core.errors import OriginUnavailable, ShadeProxyError
from shadeproxy.core.types import Intent, ObjectRef
from shadeproxy.engine.read import fill_steps
from tests.support.callback_reads import Reads, follow
from tests.support.purging import purge_under

BODY = random.Random(1).randbytes(4000)
REF = ObjectRef("b", "k")


@pytest.fixture
async def bench(make_bench):
    bench = await make_bench()
    bench.etag = bench.origin.put("b", "k", BODY).etag
    filling = bench.engine._filling
    bench.reads = filling._callback_reads = bench.engine._callback_reads = Reads(
        lambda _ref: (BODY, bench.etag)
    )
    bench.retired = Counter()
    retire = filling.flights._retire

    def retired(flight):
        bench.retired[flight] += 1
        retire(flight)

    filling.flights._retire = retired
    return bench


async def settle(bench):
    """Complete all reads at the origin, and let all tasks end."""
    for read in bench.reads.under_way:
        if read.memory is None:
            read.open()
        if not read.over:
            read.arrive(len(BODY))
        if not read.over:
            read.complete()
    await bench.settle()
    for _ in range(5):
        await asyncio.sleep(0)
    bench.engine.assert_quiescent()
    assert set(bench.retired.values()) <= {1}


def begin(bench, ref=REF):
    return follow(bench.engine, ref, BODY)


async def test_a_page_that_came_by_callbacks_is_stored(bench):
    follower = begin(bench)
    (read,) = bench.reads.reads
    assert read.wanted.span is None
    read.open()
    read.arrive(1500)
    assert follower.received == BODY[:1500]
    read.arrive(len(BODY))
    assert follower.received == BODY
    read.complete()
    await settle(bench)
    assert (await bench.get("k"))[0] == BODY
    assert bench.origin.gets == 0


@pytest.mark.parametrize("filled", [0, 1500])
async def test_a_fill_that_is_handed_over_goes_on_where_it_stopped(bench, filled):
    follower = begin(bench)
    (read,) = bench.reads.reads
    if filled:
        read.open()
        read.arrive(filled)
    read.hand_over()
    await settle(bench)
    assert follower.received == BODY
    assert bench.origin.gets == 1
    assert (await bench.get("k"))[0] == BODY


async def test_a_fill_goes_to_a_task_where_the_origin_would_have_to_wait(bench):
    bench.reads.ready = False
    follower = begin(bench)
    assert follower.flight.task is not None
    await settle(bench)
    assert follower.received == BODY


async def test_the_last_reader_that_leaves_ends_the_read_at_once(bench):
    follower, reader = begin(bench), asyncio.create_task(bench.get("k"))
    await asyncio.sleep(0)
    (read,) = bench.reads.reads
    follower.leave()
    assert not read.over
    reader.cancel()
    await asyncio.wait({reader})
    assert read.over
    bench.engine.assert_quiescent()


class TestCollecting:
    """Fetched pages wait a little for pages that are still on their way. Then they are stored together."""

    OTHER = ObjectRef("b", "other")

    @pytest.fixture
    def stored(self, bench, monkeypatch):
        """Return the keys of the pages that were given to the cache, as one list for each call."""
        calls, insert_many = [], bench.engine.cache.insert_many

        def recorded(pages):
            calls.append([new.page.ref.key for new in pages])
            insert_many(pages)

        monkeypatch.setattr(bench.engine.cache, "insert_many", recorded)
        # Pages must not be stored because of the time, even on a slow machine.
        monkeypatch.setattr(fill_steps, "_COLLECTED_S", 60.0)
        return calls

    @pytest.fixture
    async def waiting(self, bench):
        """Begin two reads, of which only the first one's page has come. Return the reader of this page."""
        bench.origin.put("b", "other", BODY)
        follower = begin(bench)
        begin(bench, self.OTHER)
        return follower

    async def turns(self):
        for _ in range(5):
            await asyncio.sleep(0)

    async def test_pages_of_different_turns_are_stored_together(self, bench, stored, waiting):
        bench.reads.reads[0].fetch()
        await self.turns()
        assert waiting.received == BODY
        assert stored == []
        bench.reads.reads[1].fetch()
        await self.turns()
        assert stored == [["k", "other"]]
        await settle(bench)

    async def test_a_page_does_not_wait_for_long(self, bench, stored, waiting, monkeypatch):
        monkeypatch.setattr(fill_steps, "_COLLECTED_S", 0.004)
        bench.reads.reads[0].fetch()
        async with asyncio.timeout(10):
            while not waiting.flight.over:
                await asyncio.sleep(0.001)
        assert stored == [["k"]]
        assert (await bench.get("k"))[0] == BODY
        assert bench.origin.gets == 0
        await settle(bench)

    async def test_a_reader_of_a_waiting_page_gets_it_without_the_origin(self, bench, stored, waiting):
        bench.reads.reads[0].fetch()
        await self.turns()
        assert (await bench.get("k"))[0] == BODY
        assert (stored, waiting.flight.over, bench.origin.gets, len(bench.reads.reads)) == ([], False, 0, 2)
        await settle(bench)

    async def test_a_page_that_is_written_to_while_it_waits_is_never_stored(self, bench, stored, waiting):
        bench.reads.reads[0].fetch()
        async with bench.engine.writing([REF]):
            await asyncio.sleep(0)
        bench.reads.reads[1].fetch()
        await self.turns()
        assert waiting.flight.over
        assert stored == [["other"]]
        await settle(bench)

    @pytest.mark.parametrize("shortage", ["_TOGETHER", "_TOGETHER_BYTES", "READAHEAD_SHARE"])
    async def test_it_does_not_wait_at_a_limit(self, bench, stored, waiting, shortage, monkeypatch):
        monkeypatch.setattr(fill_steps, shortage, 1 if shortage != "READAHEAD_SHARE" else 0)
        bench.reads.reads[0].fetch()
        await self.turns()
        assert waiting.flight.over
        assert stored == [["k"]]
        await settle(bench)

    async def test_a_prefetched_page_does_not_wait(self, bench, stored, waiting):
        waiting.flight.intent = Intent.PREFETCH
        bench.reads.reads[0].fetch()
        await self.turns()
        assert stored == [["k"]]
        waiting.flight.intent = Intent.DEMAND
        await settle(bench)


class Events:
    """A random sequence of events around one object."""

    def __init__(self, bench, seed):
        self.bench = bench
        self.flights = bench.engine._filling.flights
        self.rng = random.Random(seed)
        self.tasks, self.followers = [], []

    def run(self, coroutine):
        self.tasks.append(asyncio.create_task(coroutine))

    async def get(self):
        assert (await self.bench.get("k"))[0] == BODY

    async def put(self):
        async with self.bench.engine.writing([REF]):
            await asyncio.sleep(0)

    def read(self):
        self.run(self.get())

    def write(self):
        self.run(self.put())

    def purge(self):
        self.run(purge_under(self.bench.engine, "b", ""))

    def follow(self):
        self.bench.reads.ready = self.rng.random() < 0.9
        if (follower := begin(self.bench)) is not None:
            self.followers.append(follower)

    def cancel(self):
        for task in self.rng.sample(self.tasks, min(1, len(self.tasks))):
            task.cancel()

    def leave(self):
        for follower in self.rng.sample(self.followers, min(1, len(self.followers))):
            follower.leave_early()

    def fail(self):
        for flight in self.flights.all():
            if not flight.ended:
                self.flights.fail(flight, OriginUnavailable("too slow"))

    def invalidate(self):
        self.flights.invalidate(lambda _ref: True)

    def go_on(self):
        for read in self.bench.reads.under_way:
            if steps := read.steps():
                self.rng.choice(steps)()

    async def random(self, count):
        weights = {
            self.read: 15, self.follow: 15, self.cancel: 5, self.leave: 5, self.fail: 1, self.write: 4,
            self.invalidate: 2, self.purge: 2, self.go_on: 30,
        }  # fmt: skip
        for event in self.rng.choices(list(weights), list(weights.values()), k=count):
            event()
            if self.rng.random() < 0.3:
                await asyncio.sleep(0)

    async def end(self):
        async with asyncio.timeout(10):
            while not all(task.done() for task in self.tasks) or not all(one.left for one in self.followers):
                self.go_on()
                await asyncio.sleep(0)
        errors = [task.exception() for task in self.tasks if not task.cancelled()]
        assert [error for error in errors if not isinstance(error, ShadeProxyError | None)] == []


@pytest.mark.parametrize("seed", range(60))
async def test_any_order_of_events(bench, seed):
    events = Events(bench, seed)
    await events.random(80)
    await events.end()
    await settle(bench)
    bench.engine._filling._callback_reads = bench.engine._callback_reads = None
    assert (await bench.get("k"))[0] == BODY
