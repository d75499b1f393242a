"""Parts of long pages are stored alone: found again by their first byte, never with a wrong byte."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.deadline import DEADLINE, Deadline, ReadBounds
from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.ranges import RangeSpec, part_number, part_start
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.placement import partial_reads
from shadeproxy.engine.placement.partial_reads import Fetch
from shadeproxy.engine.rules import Freshness, Rule
from tests.support.engine import HeldIO
from tests.support.purging import purge_under

PAGE = 1 << 20
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
REF = ObjectRef("b", "k")


def content(seed):
    return np.random.default_rng(seed).bytes(8 * PAGE)


@dataclass
class Parts:
    """A bench with the object "k", and its content now."""

    bench: object
    body: bytes

    async def read(self, start, stop):
        """Read a range, compare its bytes, and return its source."""
        body, source = await self.bench.get("k", range=RangeSpec(start, stop - 1))
        assert body == self.body[start:stop]
        await self.bench.settle()
        return source

    async def known(self):
        """Let the object's metadata be known, as a client's HeadObject does."""
        await self.bench.engine.stat(ReadRequest(REF))

    @property
    def asked(self):
        return sum(span.length for _, span, _ in self.bench.origin.reads if span is not None)


@pytest.fixture
def make_parts(make_bench):
    async def make(*, ram_bytes=32 << 20, **options):
        options = {"rules": IMMUTABLE, "budget_bytes": 64 << 20, "page_size": PAGE} | options
        bench = await make_bench(ram_bytes=ram_bytes, segment_bytes=4 << 20, **options)
        parts = Parts(bench, content(1))
        bench.origin.put("b", "k", parts.body)
        await parts.known()
        return parts

    return make


async def test_a_part_is_found_by_its_first_byte_as_far_as_it_goes(make_parts):
    parts = await make_parts()
    assert await parts.read(1000, 2000) is Source.ORIGIN
    assert await parts.read(1000, 2000) is Source.RAM
    assert await parts.read(1000, 1500) is Source.RAM
    assert await parts.read(1000, 5000) is Source.ORIGIN
    assert await parts.read(1000, 5000) is Source.RAM
    assert await parts.read(1000, 1001) is Source.RAM
    assert parts.asked == 1000 + 4000
    assert await parts.read(1001, 2000) is Source.ORIGIN


async def test_a_part_that_readers_ask_for_together_is_read_and_stored_once(make_parts):
    parts = await make_parts()
    sources = await asyncio.gather(*(parts.read(1000, 2000) for _ in range(20)))
    assert sorted(sources) == [Source.COALESCED] * 19 + [Source.ORIGIN]
    assert parts.asked == 1000
    assert parts.bench.counted_stats().pages.bypassed == 0


async def test_a_range_over_two_pages_is_answered_from_the_parts_of_both(make_parts):
    parts = await make_parts()
    span = PAGE - 3000, PAGE + 2000
    assert await parts.read(*span) is Source.ORIGIN
    assert await parts.read(*span) is Source.RAM
    assert parts.asked == 5000
    meta = parts.bench.engine.usable_now(ReadRequest(REF))
    hit = parts.bench.engine.hit(ReadRequest(REF), meta, Span(*span))
    assert b"".join(hit.pieces) == parts.body[slice(*span)]


async def test_bytes_of_a_stored_part_are_located(make_parts):
    parts = await make_parts()
    await parts.read(700_000, 720_000)
    request = ReadRequest(REF, range=RangeSpec(700_000, 709_999))
    meta = parts.bench.engine.usable_now(request)
    (place,) = parts.bench.engine.locate(request, meta, Span(700_000, 710_000))
    segment = await asyncio.to_thread(Path(place.path).read_bytes)
    assert segment[place.offset : place.offset + place.length] == parts.body[700_000:710_000]


async def test_a_reading_that_wants_more_than_the_stored_part_gets_it(make_parts):
    parts = await make_parts()
    await parts.read(1000, 2000)
    request = ReadRequest(REF, range=RangeSpec(1000, 1999))
    async with parts.bench.engine.open(request) as reading:
        body = b"".join([bytes(piece) async for piece in reading.body(Span(1000, 9000))])
    assert body == parts.body[1000:9000]


async def test_the_page_answers_once_it_is_resident(make_parts):
    parts = await make_parts()
    await parts.read(1000, 2000)
    await parts.read(0, PAGE)
    assert await parts.read(5000, 6000) is Source.RAM
    assert await parts.read(1000, 2000) is Source.RAM


async def test_parts_move_to_the_disk_and_come_back(make_parts):
    parts = await make_parts(ram_bytes=1 << 20, disk_bytes=32 << 20, policy="lru")
    starts = range(0, 8 * PAGE, PAGE // 2)
    for start in starts:
        assert await parts.read(start, start + 150_000) is Source.ORIGIN
    sources = [await parts.read(start, start + 150_000) for start in starts]
    assert Source.DISK in sources
    assert Source.ORIGIN not in sources
    assert parts.asked == len(starts) * 150_000


async def test_parts_are_cached_after_a_restart(make_parts, make_bench):
    parts = await make_parts()
    await parts.read(0, PAGE)  # The first page, whose record tells that the object is fresh.
    for start in (PAGE, 3 * PAGE + 7):
        await parts.read(start, start + 5000)
    origin = parts.bench.origin
    await parts.bench.engine.aclose()
    await asyncio.to_thread(parts.bench.cache.close)
    options = {"rules": IMMUTABLE, "page_size": PAGE, "segment_bytes": 4 << 20, "ram_bytes": 32 << 20}
    parts.bench = await make_bench(origin=origin, **options)
    for start in (PAGE, 3 * PAGE + 7):
        assert await parts.read(start, start + 5000) is Source.RAM


@pytest.mark.parametrize("how", ["write", "purge", "changed"])
async def test_parts_of_an_old_version_are_not_served(make_parts, how):
    rules = (Rule(freshness=Freshness.REVALIDATE),) if how == "changed" else ()
    parts = await make_parts(rules=rules)
    await parts.read(1000, 2000)
    engine, origin = parts.bench.engine, parts.bench.origin
    parts.body = content(2)
    async with engine.writing([REF] if how == "write" else []):
        origin.put("b", "k", parts.body)
    if how == "purge":
        await purge_under(engine, "b", "k")
    assert await parts.read(1000, 2000) is Source.ORIGIN
    assert await parts.read(1000, 2000) is Source.RAM


async def test_parts_beyond_the_numbers_are_read_alone_and_not_stored(make_parts):
    assert part_number((1 << 31) - 2) == (1 << 32) - 2
    assert part_number((1 << 31) - 1) is None
    assert part_start(part_number(12_345)) == 12_345
    assert part_start(1_200_000) is None
    parts = await make_parts()
    asked = {"page_bytes": PAGE, "part": Span(0, 1000), "explained": False, "busy": False}
    fetch = parts.bench.cache.partial.fetch
    assert fetch(REF, 2047, 0, first=(1 << 31) - PAGE, **asked) is Fetch.STORED_PART
    assert fetch(REF, 2048, 0, first=1 << 31, **asked) is Fetch.PART


async def test_the_body_of_a_part_is_not_taken_for_the_page_that_came_meanwhile(make_parts):
    """A slow disk has the part, so the origin is asked for it too. Meanwhile another reader fetches the page,
    and then the origin fails: the read goes on with the page.
    """
    parts = await make_parts(ram_bytes=2 << 20, disk_bytes=32 << 20, policy="lru")
    bench, span = parts.bench, Span(50_000, 250_000)
    await parts.read(*span)
    bench.origin.put("b", "other", bytes(4 * PAGE))
    await bench.get("other")
    await bench.settle()
    slot = bench.cache.find_part(REF, bench.engine.usable_now(ReadRequest(REF)).etag, span)
    assert bench.cache.residents.tier[slot] == 1
    held, asked, fails = HeldIO(), asyncio.Event(), asyncio.Event()
    bench.cache.media[1].tier.is_hot = lambda _location: False
    bench.cache.media[1] = replace(bench.cache.media[1], load=held)
    open_at_origin = bench.origin.open

    @asynccontextmanager
    async def fail():
        asked.set()
        await fails.wait()
        raise OriginUnavailable("down")
        yield

    bench.origin.open = lambda ref, **options: (
        fail() if options.get("span") == span else open_at_origin(ref, **options)
    )
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=2.0)))
    reader = asyncio.create_task(bench.get("k", range=RangeSpec(span.start, span.stop - 1)))
    await asked.wait()
    DEADLINE.set(None)
    assert (await bench.get("k", range=RangeSpec(0, PAGE - 1)))[0] == parts.body[:PAGE]
    held.go.set()
    await asyncio.sleep(0)
    fails.set()
    body, _ = await asyncio.wait_for(reader, 10)
    assert body == parts.body[slice(*span)]


async def test_reading_ahead_finds_stored_parts(make_parts):
    parts = await make_parts()
    await parts.read(PAGE, PAGE + 2000)
    before = parts.asked
    assert await parts.read(PAGE - 3000, PAGE + 2000) is Source.ORIGIN
    assert parts.asked == before + 3000


async def test_an_object_gets_no_more_stored_parts_than_can_be_dropped_in_one_step(make_parts, monkeypatch):
    monkeypatch.setattr(partial_reads, "_MOST_RECORDS", 3)
    parts = await make_parts()
    starts = [page * PAGE + 5000 for page in range(6)]
    for _ in range(2):
        sources = [await parts.read(start, start + 1000) for start in starts]
    assert sources == [Source.RAM] * 3 + [Source.ORIGIN] * 3


@pytest.mark.parametrize("policy", ["default", "lru", "importance"])
async def test_reads_at_random_get_the_right_bytes_whatever_is_evicted(make_parts, policy):
    """Ranges of all lengths, mostly again and again, from a small cache of two tiers, with new versions."""
    parts = await make_parts(ram_bytes=2 << 20, disk_bytes=6 << 20, policy=policy, rules=())
    rng = np.random.default_rng(3)
    starts = rng.integers(0, 8 * PAGE - 300_000, 30)
    sources = []
    for number in range(600):
        start = int(rng.choice(starts))
        length = int(rng.choice([1, 4096, 30_000, 150_000, 290_000]))
        sources.append(await parts.read(start, start + length))
        if number % 97 == 96:
            parts.body = content(number)
            async with parts.bench.engine.writing([REF]):
                parts.bench.origin.put("b", "k", parts.body)
            await parts.known()
    assert sources.count(Source.ORIGIN) < 500
    assert {Source.RAM, Source.DISK} & set(sources)
