"""Objects whose version the origin does not identify. They are never cached, and an answer never mixes bytes
of two origin answers.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import ANY

import pytest

from shadeproxy.core.errors import OriginUnavailable, Unidentified
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ENDLESS, UNKNOWN_BYTES, Intent, ObjectRef, Source, Span, Upstream
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.prefetch_port import Need
from shadeproxy.hints.hashing import object_hash
from shadeproxy.origin.base import PassOn
from shadeproxy.origin.memory import MemoryOrigin

PAGE = 4096
REF = ObjectRef("b", "k")


class Nameless(MemoryOrigin):
    """An origin that sends other bytes for each read, and identifies no version. ``measured`` says whether it
    sends a length.
    """

    def __init__(self, size=3 * PAGE, *, measured=True, **options):
        super().__init__(**options)
        self.size, self.measured = size, measured
        self.opened = 0
        self.open_now = 0
        self.may_claim = True
        self.held = None

    def body(self, number):
        return bytes([number]) * self.size

    @asynccontextmanager
    async def open(self, ref, **options):
        self.opened += 1
        self.put(ref.bucket, ref.key, self.body(self.opened))
        self.open_now += 1
        try:
            async with super().open(ref, **options) as read:
                pass_on = PassOn(lambda: self.may_claim)
                meta = replace(read.meta, etag='W/"same"')
                span = read.span
                if not self.measured:
                    meta, span = replace(meta, size=UNKNOWN_BYTES), Span(span.start, ENDLESS)
                if self.held is not None:
                    await self.held.wait()
                yield replace(read, meta=meta, span=span, receive=None, pass_on=pass_on)
        finally:
            self.open_now -= 1

    async def head(self, ref, **_):
        raise Unidentified(ref)


@pytest.fixture
def make(make_bench):
    origins = []

    async def make(*args, **options):
        origin = Nameless(*args, **options)
        origins.append(origin)
        bench = await make_bench(origin=origin)
        origin.put("b", "k", b"")
        return bench, origin

    yield make
    for origin in origins:
        if origin.held is not None:
            origin.held.set()  # The engine waits for its fills when it ends, even if the test has failed.


@pytest.mark.parametrize("size", [1, 100, PAGE, 3 * PAGE])
@pytest.mark.parametrize("count", [1, 100, PAGE, 4 * PAGE])
async def test_the_last_bytes_come_from_one_answer(make, size, count):
    bench, origin = await make(size)
    assert await bench.get("k", range=RangeSpec(None, count)) == (origin.body(1)[-count:], ANY)
    await bench.settle()
    assert origin.opened == 1


async def test_readers_of_the_last_bytes_of_an_answer_without_a_length_are_forwarded(make):
    bench, origin = await make(measured=False)
    with pytest.raises(Unidentified):
        await bench.get("k", range=RangeSpec(None, 100))
    await bench.settle()
    assert origin.open_now == 0


async def read(bench, span=None, **options):
    """Return the bytes of a whole or ranged read, and their source."""
    wanted = None if span is None else RangeSpec(span.start, span.stop - 1)
    async with bench.engine.open(ReadRequest(REF, range=wanted, **options)) as reading:
        size = reading.meta.size
        whole = Span(0, size if size >= 0 else ENDLESS)
        pieces = [bytes(piece) async for piece in reading.body(span or whole)]
        return b"".join(pieces), reading.source


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("size", [0, 1, PAGE, PAGE + 1, 5 * PAGE])
async def test_one_answer_of_the_origin_is_one_answer(make, size, measured):
    bench, origin = await make(size, measured=measured)
    body, source = await read(bench)
    assert body == origin.body(1)
    assert source in {Source.ORIGIN, Source.BYPASS}
    assert origin.opened == 1
    assert not bench.engine.cacheable(REF), "the next reads are forwarded"
    assert bench.cached(["k"]) == 0
    bench.clock.advance(61)
    assert bench.engine.cacheable(REF), "and later it is looked at again"


@pytest.mark.parametrize("size", [PAGE, 3 * PAGE])
async def test_readers_at_the_same_time_never_share_what_cannot_be_shared(make, size):
    """Readers at the same time share one answer only if the object is short. Of a long object only one reader
    gets the answer. The requests of the other readers are forwarded.
    """
    bench, origin = await make(size)
    results = await asyncio.gather(*(read(bench) for _ in range(8)), return_exceptions=True)
    bodies = [one[0] for one in results if not isinstance(one, BaseException)]
    assert all(isinstance(one, Unidentified) for one in results if isinstance(one, BaseException))
    assert origin.opened == 1
    assert bodies == [origin.body(1)] * (8 if size == PAGE else 1)


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_a_range_is_of_one_answer(make, first):
    bench, origin = await make(3 * PAGE)
    span = Span(first * PAGE + 10, first * PAGE + 20)
    assert (await read(bench, span))[0] == origin.body(1)[:10]
    bench.clock.advance(61)
    across = Span(PAGE + 10, 2 * PAGE + 20)
    opened = origin.opened
    body, _ = await read(bench, across)
    assert body == origin.body(origin.opened)[across.start : across.stop]
    assert origin.opened == opened + 1
    await bench.settle()
    assert origin.open_now == 0


@pytest.mark.parametrize("size", [PAGE, 3 * PAGE])
async def test_readers_that_go_away_leave_nothing_open(make, size):
    bench, origin = await make(size)
    origin.held = asyncio.Event()
    tasks = [asyncio.create_task(read(bench)) for _ in range(4)]
    await asyncio.sleep(0.01)
    for task in tasks[:2]:
        task.cancel()
    origin.held.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one[0] for one in results if isinstance(one, tuple)][:1] == [origin.body(1)]
    await bench.settle()
    assert origin.open_now == 0


async def test_a_reader_that_stops_in_the_middle_closes_the_answer(make):
    bench, origin = await make(5 * PAGE)
    async with bench.engine.open(ReadRequest(REF)) as reading:
        await anext(reading.body(Span(0, 5 * PAGE)))
        assert origin.open_now == 1
    await bench.settle()
    assert origin.open_now == 0


async def test_an_answer_is_not_given_to_who_may_not_read_at_his_pace(make):
    bench, origin = await make()
    origin.may_claim = False
    with pytest.raises(Unidentified):
        await read(bench)
    await bench.settle()
    assert origin.open_now == 0


async def test_an_answer_is_of_the_rights_that_it_was_asked_with(make):
    bench, origin = await make()
    origin.held = asyncio.Event()
    asked = asyncio.create_task(read(bench))
    await asyncio.sleep(0.01)
    other = asyncio.create_task(read(bench, upstream=Upstream("other")))
    await asyncio.sleep(0.01)
    asked.cancel()
    origin.held.set()
    with pytest.raises(Unidentified):
        await other
    assert origin.opened == 1


async def test_what_is_fetched_ahead_fails_and_is_not_fetched_again(make):
    bench, origin = await make(PAGE)
    ended = []
    need = Need(REF, object_hash(REF), 0, None)
    bench.engine.prefetch_port.begin(need, ended.append)
    await bench.settle()
    assert isinstance(ended[0].error, Unidentified)
    assert not ended[0].stored
    assert list(bench.engine.prefetch_port.missing(REF)) == []
    assert origin.open_now == 0
    assert bench.stats.prefetch.failed == 1


async def test_a_reader_that_joins_a_prefetch_gets_the_bytes(make):
    bench, origin = await make(PAGE)
    origin.held = asyncio.Event()
    bench.engine.prefetch_port.begin(Need(REF, object_hash(REF), 0, None), lambda _: None)
    await asyncio.sleep(0)
    asked = asyncio.create_task(read(bench, intent=Intent.DEMAND))
    await asyncio.sleep(0.01)
    origin.held.set()
    assert (await asked)[0] == origin.body(1)


async def test_what_was_cached_leaves_when_the_origin_names_no_version_any_more(make_bench):
    origin = MemoryOrigin()
    bench = await make_bench(origin=origin)
    origin.put("b", "k", b"old")
    for _ in range(2):
        await bench.get("k")
    assert bench.cached(["k"]) == 1

    async def head(ref, **_):
        raise Unidentified(ref)

    origin.head = head
    with pytest.raises(Unidentified):
        await bench.get("k", force_check=True)
    assert bench.cached(["k"]) == 0
    assert not bench.engine.cacheable(REF)


async def test_a_record_of_an_object_that_is_not_identified_is_not_believed(make_bench, monkeypatch):
    """A record whose object has no strong ETag is not used after a restart. An earlier release stored objects
    with weak ETags, so such records may still exist.
    """
    origin = MemoryOrigin()
    bench = await make_bench(origin=origin, name="two")
    stored = origin.put("b", "k", b"old")
    origin.store.buckets_by_name["b"]["k"] = replace(
        origin.store.buckets_by_name["b"]["k"], meta=replace(stored, etag='W/"weak"')
    )
    for _ in range(2):
        await bench.get("k")
    bench.engine._versions.forget(REF)
    heads = origin.gets
    assert bench.engine.usable_now(ReadRequest(REF)) is None
    await bench.get("k")
    assert origin.gets == heads + 1


@pytest.mark.parametrize("measured", [True, False])
async def test_what_is_asked_to_grant_a_read_identifies_nothing_either(make_bench, measured):
    """The GET that checks a client's right identifies no version either. Where clients have upstreams of
    their own, a read begins with a GET of one byte.
    """
    origin = Nameless(measured=measured)
    bench = await make_bench(origin=origin, verdicts=True)
    origin.put("b", "k", b"")
    for upstream in (Upstream("alice"), Upstream("bob")):
        with pytest.raises(Unidentified):
            await bench.get("k", upstream=upstream)
        assert not bench.engine.cacheable(REF), "the next reads are forwarded"
    assert bench.cached(["k"]) == 0
    bench.engine.assert_quiescent()


class Halting(MemoryOrigin):
    """An origin that identifies the version of the first page only. If ``weak``, the next pages have a weak
    ETag. Otherwise reads of the next pages fail.
    """

    weak = True
    open_now = 0

    @asynccontextmanager
    async def open(self, ref, **options):
        ahead = bool(options["span"] and options["span"].start)
        if ahead and not self.weak:
            raise OriginUnavailable("down")
        async with super().open(ref, **options) as read:
            self.open_now += 1
            weak = replace(read.meta, etag='W/"same"')
            try:
                yield replace(read, meta=weak, receive=None, pass_on=PassOn()) if ahead else read
            finally:
                self.open_now -= 1


@pytest.mark.parametrize("weak", [True, False])
async def test_what_brings_nothing_holds_no_memory_for_a_slow_reader(make_bench, weak):
    """Pages that were requested ahead and do not come hold no memory. The reader is slow, and still waits at
    the first page.
    """
    origin = Halting()
    origin.weak = weak
    bench = await make_bench(origin=origin)
    origin.put("b", "k", bytes(5 * PAGE))
    async with bench.engine.open(ReadRequest(REF)) as reading:
        body = reading.body(Span(0, 5 * PAGE))
        assert await anext(body) == bytes(PAGE)
        assert bench.ledger.taken_bytes > PAGE, "pages are asked for ahead"
        await asyncio.sleep(0.01)
        assert bench.ledger.taken_bytes <= PAGE
        assert origin.open_now == 0, "nor a connection, where no reader can take its answer"
        await body.aclose()


async def test_what_is_handed_over_holds_no_memory(make):
    """A read that hands its answer to a reader as it is holds no memory. Here the read had taken memory
    before it knew that the object is unidentified.
    """
    bench, origin = await make(3 * PAGE)
    origin.held = asyncio.Event()
    async with asyncio.TaskGroup() as readers:
        reading = readers.create_task(anext_of(bench))
        await asyncio.sleep(0.01)
        (flight,) = bench.engine._filling.flights.all()
        assert bench.ledger.try_take(PAGE)
        flight.budget_bytes = PAGE
        origin.held.set()
    assert reading.result() == 0


async def anext_of(bench):
    """Return the bytes taken from the ledger when a reader has received the first piece of an answer."""
    async with bench.engine.open(ReadRequest(REF)) as reading:
        body = reading.body(Span(0, 3 * PAGE))
        await anext(body)
        return bench.ledger.taken_bytes


async def test_a_short_answer_holds_the_memory_of_its_own_length(make, monkeypatch):
    """A short answer holds memory of its own length only, although its flight had taken memory for a whole
    page.
    """
    bench, origin = await make(10)
    origin.held = asyncio.Event()
    asked = asyncio.create_task(read(bench))
    await asyncio.sleep(0.01)
    (flight,) = bench.engine._filling.flights.all()
    assert bench.ledger.try_take(PAGE)
    flight.budget_bytes = PAGE
    held, opened = [], Flight.open

    def watched(flight, *args, **options):
        held.append(bench.ledger.taken_bytes)
        opened(flight, *args, **options)

    monkeypatch.setattr(Flight, "open", watched)
    origin.held.set()
    assert (await asked)[0] == origin.body(1)
    assert held == [10]
