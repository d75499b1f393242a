"""The first read of an object of which nothing is known costs one request to the origin: also a read of its
last bytes, and one that names the version that it wants.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.core.conditions import Conditions, Verdict
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, ObjectRef, Source, Span, Upstream
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from tests.support.clock import ManualClock

PAGE = 1 << 20  # So long that a short part of a page is stored alone.
BODY = np.random.default_rng(5).bytes(3 * PAGE + 100)
REF = ObjectRef("b", "k")
ALICE = Upstream("alice")


def last(count: int) -> RangeSpec:
    return RangeSpec(None, count)


class StubbornOrigin(MemoryOrigin):
    """An origin whose answers wait for ``answers``. If ``error`` is set, it is raised for last bytes."""

    error: OriginAnswer | None = None

    def __init__(self, **options):
        super().__init__(**options)
        self.answers = asyncio.Event()
        self.answers.set()

    @asynccontextmanager
    async def open(self, ref, **options):
        span = options.get("span")
        if self.error is not None and span is not None and span.start < 0:
            raise self.error
        answers = self.answers
        async with super().open(ref, **options) as reading:
            await answers.wait()
            yield replace(reading, chunks=self._arriving(reading), receive=None)

    async def _arriving(self, reading):
        async for chunk in reading.chunks:
            yield chunk
            for _ in range(5):  # As on a link, other tasks run meanwhile.
                await asyncio.sleep(0)


@pytest.fixture
def make(make_bench):
    async def made(**options):
        clock = ManualClock()
        origin = StubbornOrigin(clock=clock)
        origin.put("b", "k", BODY)
        options = {
            "page_size": PAGE,
            "budget_bytes": 64 * PAGE,
            "ram_bytes": 64 * PAGE,
            "segment_bytes": 8 * PAGE,
            **options,
        }
        return await make_bench(origin=origin, clock=clock, **options)

    return made


def spans(bench):
    return [span for _, span, _ in bench.origin.reads]


@pytest.mark.parametrize(
    "count", [1, 99, 100, 101, 1000, PAGE, PAGE + 100, PAGE + 101, 3 * PAGE + 100, 5 * PAGE]
)
async def test_the_last_bytes_of_an_unknown_object_cost_one_request(make, count):
    bench = await make()
    assert await bench.get("k", range=last(count)) == (BODY[-count:], Source.ORIGIN)
    await bench.settle()
    assert spans(bench) == [Span(-count, 0)]
    assert bench.origin.heads == 0
    # The bytes are cached. A range from their first byte on finds them too.
    assert await bench.get("k", range=last(count)) == (BODY[-count:], Source.RAM)
    first = max(len(BODY) - count, 0)
    assert await bench.get("k", range=RangeSpec(first, None)) == (BODY[-count:], Source.RAM)
    assert bench.origin.gets == 1
    assert (await bench.get("k"))[0] == BODY


async def test_many_readers_of_the_last_bytes_cost_one_request(make):
    bench = await make()
    gate = bench.origin.gate = Barrier()
    readers = [asyncio.create_task(bench.get("k", range=last(1000))) for _ in range(20)]
    await gate.reached.wait()
    bench.origin.gate = None
    gate.release()
    found = await asyncio.gather(*readers)
    assert {body for body, _ in found} == {BODY[-1000:]}
    assert sorted(source.name for _, source in found) == ["COALESCED"] * 19 + ["ORIGIN"]
    await bench.settle()
    assert spans(bench) == [Span(-1000, 0)]
    assert bench.origin.heads == 0


@pytest.mark.parametrize("fewer", [10, 120, PAGE])
async def test_a_reader_of_fewer_last_bytes_joins_as_far_as_they_come(make, fewer):
    bench = await make()
    found = await asyncio.gather(
        bench.get("k", range=last(2 * PAGE)),
        bench.get("k", range=last(fewer)),
        bench.get("k", range=last(3 * PAGE)),
    )
    assert [body for body, _ in found] == [BODY[-2 * PAGE :], BODY[-fewer:], BODY[-3 * PAGE :]]
    await bench.settle()
    assert bench.origin.heads == 0


@pytest.mark.parametrize("count", [1, 5, 10**25])
async def test_an_empty_object_has_no_last_bytes(make, count):
    bench = await make()
    bench.origin.put("b", "empty", b"")
    body, _ = await bench.get("empty", range=last(count))
    assert body == b""


async def test_a_missing_object_is_404_at_once(make):
    bench = await make()
    readers = (bench.get("missing", range=last(10)) for _ in range(20))
    answers = await asyncio.gather(*readers, return_exceptions=True)
    assert {answer.status for answer in answers} == {404}
    assert (bench.origin.gets, bench.origin.heads) == (1, 0)


@pytest.mark.parametrize("status", [400, 416, 501])
async def test_an_origin_without_ranges_of_the_last_bytes(make, status):
    bench = await make()
    bench.origin.error = OriginAnswer(status, "InvalidRange", "No ranges of the last bytes")
    assert (await bench.get("k", range=last(1000)))[0] == BODY[-1000:]
    assert bench.origin.heads == 1
    await bench.settle()
    assert spans(bench) == [Span(3 * PAGE - 900, 3 * PAGE + 100)], "no more of the long page than is wanted"


async def test_refused_rights_of_one_reader_do_not_refuse_another(make):
    bench = await make()
    bench.origin.denied.add(ALICE)
    refused, found = await asyncio.gather(
        bench.get("k", range=last(1000), upstream=ALICE),
        bench.get("k", range=last(1000), upstream=SHARED),
        return_exceptions=True,
    )
    assert isinstance(refused, OriginAnswer)
    assert refused.status == 403
    assert found[0] == BODY[-1000:]


async def test_readers_that_come_later_join_while_the_bytes_come(make):
    bench = await make()
    gate = bench.origin.gate = Barrier()
    asked = (last(1000), last(500), RangeSpec(len(BODY) - 700, None))
    readers = []
    for one in asked:
        readers.append(asyncio.create_task(bench.get("k", range=one)))
        await gate.reached.wait()
        await asyncio.sleep(0.01)
    gate.release()
    assert [body for body, _ in await asyncio.gather(*readers)] == [BODY[-1000:], BODY[-500:], BODY[-700:]]
    assert bench.origin.gets == 1


async def test_last_bytes_that_a_write_overtakes_are_not_stored(make):
    bench = await make()
    gate = bench.origin.gate = Barrier()
    reader = asyncio.create_task(bench.get("k", range=last(1000)))
    await gate.reached.wait()
    bench.origin.gate = None
    async with bench.engine.writing((REF,)):
        bench.origin.put("b", "k", BODY[::-1])
    gate.release()
    await asyncio.gather(reader, return_exceptions=True)
    assert (await bench.get("k", range=last(1000)))[0] == BODY[::-1][-1000:]


async def test_with_revalidation_a_reader_joins_no_earlier_request(make):
    bench = await make(rules=(Rule("b", "", freshness=Freshness.REVALIDATE),))
    earlier_answers = bench.origin.answers = asyncio.Event()
    earlier = asyncio.create_task(bench.get("k", range=last(1000)))
    await asyncio.sleep(0.01)
    bench.origin.answers = asyncio.Event()
    bench.origin.answers.set()
    bench.origin.put("b", "k", BODY[::-1])
    async with asyncio.timeout(5):
        assert (await bench.get("k", range=last(1000)))[0] == BODY[::-1][-1000:]
    earlier_answers.set()
    await asyncio.gather(earlier, return_exceptions=True)


async def test_a_reader_that_hangs_up_leaves_nothing(make):
    bench = await make()
    gate = bench.origin.gate = Barrier()
    reader = asyncio.create_task(bench.get("k", range=last(1000)))
    await gate.reached.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    gate.release()
    await bench.settle()
    bench.engine.assert_quiescent()


async def test_the_last_bytes_are_one_demand_read_and_one_miss(make):
    bench = await make()
    await bench.get("k", range=last(1000))
    await bench.get("k", range=last(1000))
    totals = bench.counted_stats().totals()
    assert (totals.requests, totals.hits_ram) == (2, 1)


@pytest.mark.parametrize("wanted", [None, RangeSpec(0, 99), RangeSpec(PAGE + 5, PAGE + 99)])
async def test_a_read_that_names_its_version_costs_one_request(make, wanted):
    """s3fs takes ETags from a listing, and sends If-Match with each read of a file."""
    bench = await make()
    etag = (await bench.origin.head(REF)).etag
    bench.origin.heads = 0
    conditions = Conditions(if_match=etag)
    body = BODY if wanted is None else BODY[wanted.first : wanted.last + 1]
    assert await bench.get("k", range=wanted, conditions=conditions) == (body, Source.ORIGIN)
    assert (bench.origin.heads, bench.origin.gets) == (0, 1)


async def test_a_predicted_read_that_names_its_version_fetches_the_page(make, monkeypatch):
    """An order explains the read, so its page will be read again: fetch all of it, as without If-Match."""
    bench = await make()
    etag = (await bench.origin.head(REF)).etag
    monkeypatch.setattr(bench.engine._counting, "note_read", lambda _request, _first: True)
    missed, miss = [], bench.engine.cache.miss

    def noted(ref, number, *, explained):
        missed.append((number, explained))
        miss(ref, number, explained=explained)

    monkeypatch.setattr(bench.engine.cache, "miss", noted)
    wanted = RangeSpec(10, 9_999)
    found = await bench.get("k", range=wanted, conditions=Conditions(if_match=etag))
    assert found == (BODY[10:10_000], Source.ORIGIN)
    assert (missed, spans(bench)) == ([(0, True)], [None])


@pytest.mark.parametrize(
    "conditions",
    [Conditions(if_match='"another"'), Conditions(if_unmodified_since="Mon, 01 Jan 1990 00:00:00 GMT")],
)
async def test_a_read_that_names_another_version_learns_the_present_one(make, conditions):
    """When such a read comes again, the origin is not asked."""
    bench = await make()
    request = ReadRequest(REF, conditions=conditions)
    async with bench.engine.open(request) as reading:
        assert conditions.evaluate(reading.meta) is Verdict.FAILED
    await bench.settle()
    bench.engine.assert_quiescent()
    async with bench.engine.open(request) as reading:
        assert conditions.evaluate(reading.meta) is Verdict.FAILED
    assert (bench.origin.heads, bench.origin.gets) == (1, 1)
