"""One answer of the origin fills several pages of an object."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from shadeproxy.core.errors import BodyCutShort, OriginUnavailable
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.read import shared_answer
from shadeproxy.origin.base import OriginRead
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.clock import ManualClock

PAGE = 4096
BODY = np.random.default_rng(3).bytes(3 * PAGE + 100)
REF = ObjectRef("b", "k")


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class FedOrigin(MemoryOrigin):
    """An origin whose bodies come only up to byte ``allowed`` of the object. ``broken_at``: the first answer
    breaks there. ``cut``: number of answers that were closed before their end.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock, chunk_bytes=512)
        self.put("b", "k", BODY)
        self.clock = clock
        self.allowed, self.broken_at, self.latency_s = inf, inf, 0.0
        self.cut = 0
        self._more = asyncio.Event()

    def feed(self, allowed: float) -> None:
        """Let the bodies come up to byte ``allowed``."""
        self.allowed = allowed
        self._more.set()
        self._more = asyncio.Event()

    @property
    def spans(self) -> list[Span | None]:
        """The spans asked for, in order; None: a whole object."""
        return [span for _, span, _ in self.reads]

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options) -> AsyncIterator[OriginRead]:
        async with super().open(ref, **options) as reading:
            self.clock.advance(self.latency_s)
            came = [reading.span.start]
            try:
                yield replace(reading, chunks=self._fed(reading, came), receive=None)
            finally:
                self.cut += came[0] < reading.span.stop

    async def _fed(self, reading: OriginRead, came: list[int]) -> AsyncIterator[bytes]:
        async for chunk in reading.chunks:
            while came[0] + len(chunk) > self.allowed:
                await self._more.wait()
            if came[0] + len(chunk) > self.broken_at:
                self.broken_at = inf
                raise BodyCutShort("broken in the test")
            came[0] += len(chunk)
            await turns(5)  # As on a link, other tasks run meanwhile.
            yield chunk


@pytest.fixture
def make_fed(make_bench):
    made = []

    async def make():
        origin = FedOrigin(ManualClock())
        made.append(origin)
        return await make_bench(origin=origin, clock=origin.clock, page_size=PAGE, budget_bytes=64 * PAGE)

    yield make
    for origin in made:
        origin.feed(inf)


async def test_an_unknown_object_of_several_pages_costs_one_request(make_fed):
    bench = await make_fed()
    assert await bench.get("k") == (BODY, Source.ORIGIN)
    await bench.settle()
    assert bench.origin.spans == [None]
    assert bench.origin.cut == 0
    assert await bench.get("k") == (BODY, Source.RAM)
    assert bench.origin.spans == [None]


async def test_many_readers_of_an_unknown_object_get_its_bytes_by_one_request(make_fed):
    bench = await make_fed()
    found = await asyncio.gather(*(bench.get("k") for _ in range(20)))
    assert all(body == BODY for body, _ in found)
    await bench.settle()
    assert bench.origin.spans == [None]


@pytest.mark.parametrize("size", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE])
async def test_objects_around_a_whole_number_of_pages(make_fed, size):
    bench = await make_fed()
    bench.origin.put("b", "k", BODY[:size])
    assert (await bench.get("k"))[0] == BODY[:size]
    await bench.settle()
    assert bench.origin.spans == [None]
    assert await bench.get("k") == (BODY[:size], Source.RAM)


async def test_an_answer_is_closed_when_no_reader_wants_its_next_page(make_fed):
    bench = await make_fed()
    body, _ = await bench.get("k", range=RangeSpec(0, 99))
    assert body == BODY[:100]
    await bench.settle()
    assert bench.origin.spans == [None]
    assert bench.origin.cut == 1
    assert (await bench.get("k"))[0] == BODY


async def test_pages_that_would_come_late_by_a_slow_answer_are_requested(make_fed):
    """The first page comes so slowly that requests bring the later ones sooner. The last page stays out."""
    bench = await make_fed()
    bench.origin.latency_s = 1.0
    bench.origin.allowed = 1024
    reader = asyncio.create_task(bench.get("k"))
    await turns()
    bench.clock.advance(1.0)
    await asyncio.sleep(0.3)
    assert bench.origin.spans == [None, Span(PAGE, 2 * PAGE), Span(2 * PAGE, 3 * PAGE)]
    bench.origin.feed(inf)
    assert (await reader)[0] == BODY
    await bench.settle()
    assert bench.origin.spans[3:] == [Span(3 * PAGE, 4 * PAGE)]
    assert bench.origin.cut == 1
    assert await bench.get("k") == (BODY, Source.RAM)


@pytest.mark.parametrize(("later_s", "requests"), [(0.02, 1), (10.0, 2)])
async def test_the_last_page_waits_for_a_slow_answer_but_not_for_a_stalled_one(make_fed, later_s, requests):
    """A quarter of the first page has come after ``later_s``. The latency is 0.01 s."""
    bench = await make_fed()
    bench.origin.put("b", "k", BODY[: PAGE + 100])
    bench.origin.latency_s = 0.01
    bench.origin.allowed = 1024
    reader = asyncio.create_task(bench.get("k"))
    await turns()
    bench.clock.advance(later_s)
    await asyncio.sleep(0.1)
    bench.origin.feed(inf)
    assert (await reader)[0] == BODY[: PAGE + 100]
    await bench.settle()
    assert len(bench.origin.spans) == requests
    assert await bench.get("k") == (BODY[: PAGE + 100], Source.RAM)


async def test_a_reader_of_the_last_page_alone_is_not_held_up_by_a_stalled_answer(make_fed):
    bench = await make_fed()
    bench.origin.put("b", "k", BODY[: 2 * PAGE + 100])
    bench.origin.latency_s = 0.1
    bench.origin.allowed = PAGE + 512
    first = asyncio.create_task(bench.get("k"))
    await turns()
    second = asyncio.create_task(bench.get("k", range=RangeSpec(2 * PAGE, 2 * PAGE + 99)))
    await turns()
    bench.clock.advance(10.0)
    bench.origin.allowed = 3 * PAGE  # For new answers. The first one sleeps until ``feed``.
    assert (await asyncio.wait_for(second, 5))[0] == BODY[2 * PAGE : 2 * PAGE + 100]
    assert not first.done()
    bench.origin.feed(inf)
    assert (await first)[0] == BODY[: 2 * PAGE + 100]


@pytest.mark.parametrize("at", [512, PAGE + 512, 2 * PAGE + 512])
async def test_a_broken_answer_breaks_only_the_page_that_reads_it(make_fed, at):
    bench = await make_fed()
    bench.origin.broken_at = at
    with pytest.raises(BodyCutShort):
        await bench.get("k")
    await bench.settle()
    assert (await bench.get("k"))[0] == BODY
    await bench.settle()
    assert await bench.get("k") == (BODY, Source.RAM)


@pytest.mark.parametrize("fed", [512, PAGE + 512, 2 * PAGE + 512])
async def test_a_write_keeps_all_pages_of_the_old_answer_out_of_the_cache(make_fed, fed):
    bench = await make_fed()
    bench.origin.allowed = fed
    reader = asyncio.create_task(bench.get("k"))
    await turns()
    new = bytes(reversed(BODY))
    async with bench.engine.writing([REF]):
        bench.origin.put("b", "k", new)
    bench.origin.feed(inf)
    await asyncio.gather(reader, return_exceptions=True)
    await bench.settle()
    assert bench.origin.spans[0] is None
    assert (await bench.get("k"))[0] == new
    await bench.settle()
    assert await bench.get("k") == (new, Source.RAM)


@pytest.mark.parametrize("fed", [0, 512, PAGE, PAGE + 512, 2 * PAGE + 512, 3 * PAGE + 50])
async def test_a_client_that_hangs_up_leaves_nothing_behind(make_fed, fed):
    bench = await make_fed()
    bench.origin.allowed = fed
    reader = asyncio.create_task(bench.get("k"))
    await turns()
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    bench.origin.feed(inf)
    await bench.settle()
    assert bench.ledger.taken_bytes == 0
    assert not bench.engine._filling.filler.answers.by_page
    assert (await bench.get("k"))[0] == BODY


async def test_a_reader_of_a_later_page_gets_it_while_the_answer_is_under_way(make_fed):
    bench = await make_fed()
    bench.origin.allowed = 512
    first = asyncio.create_task(bench.get("k"))
    await turns()
    second = asyncio.create_task(bench.get("k", range=RangeSpec(PAGE, 2 * PAGE - 1)))
    await turns()
    bench.origin.feed(inf)
    assert (await first)[0] == BODY
    assert (await second)[0] == BODY[PAGE : 2 * PAGE]
    assert bench.origin.spans[:1] == [None]


async def test_a_reader_leaves_while_another_still_wants_the_later_page(make_fed):
    bench = await make_fed()
    bench.origin.allowed = 512
    first = asyncio.create_task(bench.get("k"))
    await turns()
    second = asyncio.create_task(bench.get("k", range=RangeSpec(PAGE, 2 * PAGE - 1)))
    await turns()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    bench.origin.feed(inf)
    assert (await second)[0] == BODY[PAGE : 2 * PAGE]
    await bench.settle()
    assert bench.ledger.taken_bytes == 0


async def test_a_page_of_the_same_etag_and_another_size_is_requested(make_fed):
    """The answer has fewer bytes than such a page. The rest of the page would be memory that was not set."""
    bench = await make_fed()
    bench.origin.put("b", "k", BODY[: PAGE + 100])
    bench.origin.allowed = 512
    first = asyncio.create_task(bench.get("k", range=RangeSpec(0, 99)))
    await turns()
    longer = replace(await bench.origin.head(REF), size=5 * PAGE)
    flights = bench.engine._filling
    flight = flights.join_readahead(
        REF, 1, upstream=SHARED, meta=longer, part=None, explained=False, job=None
    )
    await turns()
    bench.origin.feed(inf)
    assert (await first)[0] == BODY[:100]
    assert (await flight.opened()).size == PAGE + 100
    await bench.settle()
    assert bytes(flight.buffer) == BODY[PAGE : PAGE + 100]
    flights.flights.leave(flight)
    assert bench.origin.spans == [None, Span(PAGE, 2 * PAGE)]


async def test_a_request_for_the_object_is_not_repeated_in_statistics(make_fed):
    bench = await make_fed()
    await bench.engine.stat(ReadRequest(REF))
    assert (await bench.get("k"))[0] == BODY
    assert None not in bench.origin.spans


async def known(bench) -> None:
    """Let the metadata of the object be known, as a client's HeadObject does."""
    await bench.engine.stat(ReadRequest(REF))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("first", "last"),
    [(1, 3 * PAGE), (PAGE, None), (PAGE + 7, 3 * PAGE + 50), (100, 2 * PAGE - 1), (2 * PAGE, 9 * PAGE)],
)
async def test_a_range_over_several_pages_costs_one_request(make_fed, is_known, first, last):
    bench = await make_fed()
    if is_known:
        await known(bench)
    wanted = BODY[first:] if last is None else BODY[first : last + 1]
    assert (await bench.get("k", range=RangeSpec(first, last)))[0] == wanted
    await bench.settle()
    assert len(bench.origin.spans) == 1, bench.origin.spans
    assert (await bench.get("k", range=RangeSpec(first, last)))[0] == wanted
    assert (await bench.get("k"))[0] == BODY


async def test_ranges_that_are_read_at_a_time_cost_one_request_each(make_fed):
    """Programs download a big object in several long ranges at a time."""
    bench = await make_fed()
    body = np.random.default_rng(4).bytes(24 * PAGE)
    bench.origin.put("b", "k", body)
    await known(bench)
    ranges = [RangeSpec(first * PAGE, (first + 6) * PAGE - 1) for first in range(0, 24, 6)]
    found = await asyncio.gather(*(bench.get("k", range=one) for one in ranges))
    assert b"".join(part for part, _ in found) == body
    await bench.settle()
    assert len(bench.origin.spans) == 4, bench.origin.spans
    assert bench.origin.cut == 0


async def test_a_known_object_costs_one_request(make_fed):
    bench = await make_fed()
    await known(bench)
    assert await bench.get("k") == (BODY, Source.ORIGIN)
    await bench.settle()
    assert (bench.origin.spans, bench.origin.cut) == ([Span(0, len(BODY))], 0)
    assert await bench.get("k") == (BODY, Source.RAM)


@pytest.mark.parametrize("cached", [0, 1, 2, 3])
async def test_pages_that_are_cached_are_not_requested_again(make_fed, cached):
    bench = await make_fed()
    await known(bench)
    page = BODY[cached * PAGE : (cached + 1) * PAGE]
    got, _ = await bench.get("k", range=RangeSpec(cached * PAGE, cached * PAGE + len(page) - 1))
    assert got == page
    await bench.settle()
    before = len(bench.origin.spans)
    assert (await bench.get("k"))[0] == BODY
    await bench.settle()
    asked = sorted((span.start, min(span.stop, len(BODY))) for span in bench.origin.spans[before:])
    missing = {*range(0, len(BODY), PAGE)} - {cached * PAGE}
    assert {at for start, stop in asked for at in range(start, stop, PAGE)} == missing
    assert sum(stop - start for start, stop in asked) == len(BODY) - len(page), asked


async def test_a_failed_request_for_several_pages_fails_no_flight_of_a_later_page(make_fed, monkeypatch):
    bench = await make_fed()
    await known(bench)
    opened, calls = bench.origin.open, []

    @asynccontextmanager
    async def failing(ref, **options):
        calls.append(options.get("span"))
        if len(calls) == 1:
            await turns(3)
            raise OriginUnavailable("refused in the test")
        async with opened(ref, **options) as reading:
            yield reading

    monkeypatch.setattr(bench.origin, "open", failing)
    with pytest.raises(OriginUnavailable):
        await bench.get("k")
    await bench.settle()
    assert not bench.engine._filling.filler.answers.by_page
    assert (await bench.get("k"))[0] == BODY


async def test_pages_of_a_version_that_was_overwritten_are_not_mixed(make_fed):
    bench = await make_fed()
    await known(bench)
    bench.origin.put("b", "k", BODY[::-1])
    assert (await bench.get("k"))[0] == BODY[::-1]
    await bench.settle()
    assert await bench.get("k") == (BODY[::-1], Source.RAM)


async def test_after_an_answer_that_was_too_slow_pages_are_requested_alone(make_fed):
    """The first answer brings one page slowly, so the rest of it is lost."""
    bench = await make_fed()
    origin = bench.origin
    origin.latency_s = 0.05
    await known(bench)
    origin.feed(512)
    reader = asyncio.create_task(bench.get("k"))
    await turns()
    for _ in range(20):
        origin.clock.advance(0.05)
        await asyncio.sleep(0.02)
    origin.feed(inf)
    assert (await reader)[0] == BODY
    await bench.settle()
    assert origin.spans[0] == Span(0, len(BODY))
    assert Span(PAGE, 2 * PAGE) in origin.spans
    spans = []
    for number in range(32):
        origin.put("b", f"n{number}", BODY)
        await bench.engine.stat(ReadRequest(ObjectRef("b", f"n{number}")))
        assert (await bench.get(f"n{number}"))[0] == BODY
        await bench.settle()
        spans.append(max(span.length for ref, span, _ in origin.reads if ref.key == f"n{number}"))
    assert spans == [PAGE] * 31 + [len(BODY)]


async def test_after_an_answer_that_brought_few_pages_to_a_slow_reader_pages_are_requested_alone(make_fed):
    """The answer brings the pages that are read ahead. Then it is closed, because its reader is behind."""
    bench = await make_fed()
    body = np.random.default_rng(5).bytes(8 * PAGE)
    for key in ("k", "next"):
        bench.origin.put("b", key, body)
        await bench.engine.stat(ReadRequest(ObjectRef("b", key)))
    async with bench.engine.open(ReadRequest(REF)) as reading:
        pieces = reading.body(Span(0, len(body)))
        got = bytes(await anext(pieces))
        await bench.settle()
        assert (bench.origin.spans, bench.origin.cut) == ([Span(0, len(body))], 1)
        async for piece in pieces:
            got += bytes(piece)
    assert got == body
    await bench.settle()
    before = len(bench.origin.spans)
    assert (await bench.get("next"))[0] == body
    await bench.settle()
    assert {span.length for span in bench.origin.spans[before:]} == {PAGE}


async def test_a_read_of_the_first_bytes_of_an_unknown_object_does_not_count_as_a_slow_answer(make_fed):
    bench = await make_fed()
    bench.origin.put("b", "other", BODY)
    await bench.get("other", range=RangeSpec(0, 99))
    await bench.settle()
    assert bench.origin.cut == 1
    await known(bench)
    assert (await bench.get("k"))[0] == BODY
    await bench.settle()
    assert bench.origin.spans == [None, Span(0, len(BODY))]


async def test_a_later_page_does_not_wait_for_long_for_the_head_of_an_answer(make_fed, monkeypatch):
    """The first request hangs. Another client wants the second page only."""
    bench = await make_fed()
    await known(bench)
    opened, hanging = bench.origin.open, asyncio.Event()

    @asynccontextmanager
    async def hangs_once(ref, **options):
        if not hanging.is_set():
            hanging.set()
            await asyncio.Event().wait()
        async with opened(ref, **options) as reading:
            yield reading

    monkeypatch.setattr(bench.origin, "open", hangs_once)
    monkeypatch.setattr(shared_answer, "_OPEN_WITHIN_S", 0.05)
    first = asyncio.create_task(bench.get("k"))
    await hanging.wait()
    async with asyncio.timeout(5):
        body, _ = await bench.get("k", range=RangeSpec(PAGE, 2 * PAGE - 1))
    assert body == BODY[PAGE : 2 * PAGE]
    assert not first.done()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await bench.settle()


async def test_no_later_page_takes_memory_that_the_first_one_needs(make_bench):
    """Each of the readers has memory for its first page before it takes any for later ones."""
    origin = FedOrigin(ManualClock())
    bench = await make_bench(origin=origin, clock=origin.clock, page_size=PAGE, budget_bytes=6 * PAGE)
    for number in range(4):
        origin.put("b", f"k{number}", BODY)
        await bench.engine.stat(ReadRequest(ObjectRef("b", f"k{number}")))
    async with asyncio.timeout(10):
        found = await asyncio.gather(*(bench.get(f"k{number}") for number in range(4)))
    assert [body for body, _ in found] == [BODY] * 4
