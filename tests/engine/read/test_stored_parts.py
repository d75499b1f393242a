"""Parts of long pages are stored alone: found again by their first byte, never with a wrong byte."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.deadline import DEADLINE, Deadline, ReadBounds
from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.ranges import RangeSpec, part_number, part_start
from shadeproxy.core.types import ObjectRef, Page, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.placement import partial_reads
from shadeproxy.engine.placement.partial_reads import Fetch
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.tiers.base import SendableBlocks
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

    async def prefetch(self, number, job=""):
        """Prefetch a page for a job, by default on a guess. A guess lets the page's stored parts stay."""
        port, ended = self.bench.engine.prefetch_port, []
        (need,) = port.pages(REF, range(number, number + 1), self.bench.engine.usable_now(ReadRequest(REF)))
        port.begin(need, ended.append, job)
        while not ended:
            await asyncio.sleep(0.001)
        assert ended[0].stored
        return need

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


def numbers(parts):
    """Return the numbers of the resident pages, and the first bytes of the stored parts."""
    table = parts.bench.cache.residents
    found = sorted(table.number[table.ready()].tolist())
    starts = [part_start(number) for number in found]
    return [one for one in found if part_start(one) is None], [one for one in starts if one is not None]


async def test_a_page_replaces_its_stored_parts(make_parts):
    """Those of other pages stay, and so do the bytes of a reader that has some of them."""
    parts = await make_parts()
    starts = [9, PAGE - 5000, PAGE, PAGE + 300_000, 2 * PAGE - 3000, 2 * PAGE]
    for start in starts:
        await parts.read(start, start + 3000)
    assert numbers(parts) == ([], starts)
    request = ReadRequest(REF, range=RangeSpec(PAGE, PAGE + 2999))
    async with parts.bench.engine.open(request) as reading:
        await parts.read(PAGE, 2 * PAGE)
        body = b"".join([bytes(piece) async for piece in reading.body(Span(PAGE, PAGE + 3000))])
    assert body == parts.body[PAGE : PAGE + 3000]
    assert numbers(parts) == ([1], [9, PAGE - 5000, 2 * PAGE])
    assert parts.bench.counted_stats().tiers["ram"].evictions == {"replaced": 3}
    for start in starts:
        assert await parts.read(start, start + 3000) is Source.RAM


async def test_a_page_that_gets_no_place_replaces_no_part(make_parts):
    parts = await make_parts(ram_bytes=PAGE // 2)
    await parts.read(5000, 9000)
    await parts.read(0, PAGE)
    assert numbers(parts) == ([], [5000])


@pytest.mark.parametrize(("job", "kept"), [("", False), ("", True), ("train", False)])
async def test_a_prefetched_page_replaces_its_parts_unless_it_is_a_guess(make_parts, job, kept):
    """``kept``: a call asked for the page."""
    parts = await make_parts()
    await parts.read(5000, 9000)
    need = await parts.prefetch(0, job)
    if kept:
        parts.bench.engine.prefetch_port.keep(need)
    assert numbers(parts) == ([0], [] if job or kept else [5000])


async def test_parts_move_to_the_disk_and_come_back(make_parts):
    parts = await make_parts(ram_bytes=1 << 20, disk_bytes=32 << 20, policy="lru")
    starts = range(0, 8 * PAGE, PAGE // 2)
    for start in starts:
        assert await parts.read(start, start + 150_000) is Source.ORIGIN
    sources = [await parts.read(start, start + 150_000) for start in starts]
    assert Source.DISK in sources
    assert Source.ORIGIN not in sources
    assert parts.asked == len(starts) * 150_000


@pytest.fixture
def restart(make_bench):
    async def restart(parts, later_s=0.0, **options):
        """Let the next process read the object, ``later_s`` seconds after the first one."""
        clock, origin = parts.bench.clock, parts.bench.origin
        await parts.bench.engine.aclose()
        await asyncio.to_thread(parts.bench.cache.close)
        clock.advance(later_s)
        options = {"rules": IMMUTABLE, "page_size": PAGE, "ram_bytes": 32 << 20} | options
        parts.bench = await make_bench(origin=origin, clock=clock, segment_bytes=4 << 20, **options)

    return restart


@pytest.mark.parametrize("first_page", [True, False])
async def test_parts_are_cached_after_a_restart(make_parts, restart, first_page):
    parts = await make_parts()
    if first_page:
        await parts.read(0, PAGE)
    for start in (PAGE, 3 * PAGE + 7):
        await parts.read(start, start + 5000)
    before = parts.asked
    await restart(parts)
    for start in (PAGE, 3 * PAGE + 7):
        assert await parts.read(start, start + 5000) is Source.RAM
    assert parts.asked == before


async def test_parts_on_a_disk_are_cached_after_a_restart(make_parts, restart):
    sizes = {"ram_bytes": 1 << 20, "disk_bytes": 32 << 20, "policy": "lru"}
    parts = await make_parts(**sizes)
    starts = range(PAGE, 8 * PAGE, PAGE // 2)
    for start in starts:
        await parts.read(start, start + 150_000)
    before = parts.asked
    await restart(parts, **sizes)
    parts.bench.cache.media[1].tier.is_hot = lambda _location: False  # Each header is read by a thread.
    sources = [await parts.read(start, start + 150_000) for start in starts]
    assert Source.ORIGIN not in sources
    assert parts.asked == before


@pytest.mark.parametrize(
    ("rule", "later_s", "heads"),
    [
        (Rule(freshness=Freshness.IMMUTABLE), 1e6, 0),
        (Rule(ttl_s=60.0), 59.0, 0),
        (Rule(ttl_s=60.0), 61.0, 1),
        (Rule(freshness=Freshness.REVALIDATE), 1.0, 1),
    ],
)
async def test_parts_are_as_fresh_after_a_restart_as_their_rule_asks(
    make_parts, restart, rule, later_s, heads
):
    """The object changes without the proxy, while the proxy is down. Under ``revalidate`` the next read sees
    the change; after the TTL, the read after it.
    """
    seen = rule.freshness is Freshness.REVALIDATE
    parts = await make_parts(rules=(rule,))
    await parts.read(PAGE, PAGE + 5000)
    new, asked = content(2), parts.bench.origin.heads
    parts.bench.origin.put("b", "k", new)
    await restart(parts, later_s, rules=(rule,))
    if seen:
        parts.body = new
    assert await parts.read(PAGE, PAGE + 5000) is (Source.ORIGIN if seen else Source.RAM)
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert parts.bench.origin.heads - asked == heads
    if heads:
        parts.body = new
    await parts.read(PAGE, PAGE + 5000)


async def test_a_check_of_an_object_of_parts_is_known_after_a_restart(make_parts, restart):
    rules = (Rule(ttl_s=60.0),)
    parts = await make_parts(rules=rules)
    for page in (1, 2, 3):
        await parts.read(page * PAGE, page * PAGE + 5000)
    parts.bench.clock.advance(100.0)
    await parts.bench.engine._versions.check(REF, "shared")
    asked = parts.bench.origin.heads
    await restart(parts, 50.0, rules=rules)
    for page in (1, 2, 3):
        assert await parts.read(page * PAGE, page * PAGE + 5000) is Source.RAM
    assert parts.bench.origin.heads == asked


async def test_metadata_in_parts_that_are_recovered_late_are_checked_before_they_answer(make_parts, restart):
    """Header fields were changed in place, which keeps the ETag, and the origin was asked before the part was
    recovered.
    """
    parts = await make_parts()
    await parts.read(PAGE, PAGE + 5000)
    await restart(parts, recover=False)
    origin, engine = parts.bench.origin, parts.bench.engine
    origin.put("b", "k", parts.body, (("Last-Modified", "Fri, 15 Jan 2027 08:00:00 GMT"),))
    meta, _ = await engine.stat(ReadRequest(REF))
    await asyncio.to_thread(parts.bench.cache.recovery.run)
    engine._versions.forget(REF)
    again, _ = await engine.stat(ReadRequest(REF))
    assert again == meta
    await parts.read(PAGE, PAGE + 5000)


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


# ---------------------------------------------------------------------- handles


LONG = 60_000  # Longer than what is copied, so that sendfile may send it.


def held(parts, first):
    """Return the handle at byte ``first``; None if there is none."""
    return parts.bench.engine.find_handle(REF, first, parts.bench.clock.now_s())


def taken(parts, handle, span):
    """Return the bytes that a handle has of a span."""
    return bytes(parts.bench.engine.take(handle, None, parts.bench.clock.now_s(), Span(*span)))


async def test_a_part_has_a_handle_at_its_first_byte_alone(make_parts):
    parts = await make_parts()
    span = PAGE + 1000, PAGE + 1000 + LONG
    await parts.read(*span)
    handle = held(parts, span[0])
    assert (handle.first, handle.end, handle.whole) == (*span, False)
    assert held(parts, span[0]) is handle
    assert taken(parts, handle, span) == parts.body[slice(*span)]
    assert taken(parts, handle, (span[0] + 9, span[0] + 20)) == parts.body[span[0] + 9 : span[0] + 20]
    assert [handle.holds(Span(span[0], stop)) for stop in (span[1] - 1, span[1], span[1] + 1)] == [
        True,
        True,
        False,
    ]
    assert [held(parts, first) for first in (0, PAGE, span[0] - 1, span[0] + 1, 1 << 40)] == [None] * 5


async def test_a_byte_far_beyond_the_end_has_no_handle(make_parts):
    """The number of the page that would hold it is that of a stored part."""
    parts = await make_parts()
    engine, now_s = parts.bench.engine, parts.bench.clock.now_s()
    await parts.read(PAGE + 5000, PAGE + 25_000)
    number = part_number(PAGE + 5000)
    assert engine.find_handle(REF, number * PAGE, now_s) is None
    assert engine.find_handle(REF, PAGE + 5000, now_s).first == PAGE + 5000
    assert engine.find_handle(REF, number * PAGE, now_s) is None


async def test_the_handle_of_a_page_replaces_that_of_its_part(make_parts):
    parts = await make_parts()
    for first in (PAGE, PAGE + 5000):
        await parts.read(first, first + LONG)
        assert held(parts, first).end == first + LONG
    await parts.prefetch(1)
    for first in (PAGE, PAGE + 5000):
        assert (held(parts, first).first, held(parts, first).end) == (PAGE, 2 * PAGE)
    page = parts.bench.cache.find(Page(REF, held(parts, PAGE).meta.etag, 1))
    parts.bench.cache.drop(page, "evicted")
    assert held(parts, PAGE + 5000).end == PAGE + 5000 + LONG


@pytest.mark.parametrize("how", ["write", "purge", "evicted", "late", "distrusted"])
async def test_a_handle_of_a_part_ends_with_the_part(make_parts, how):
    parts = await make_parts(rules=(Rule(ttl_s=60.0),))
    await parts.read(5000, 5000 + LONG)
    handle, (engine, cache) = held(parts, 5000), (parts.bench.engine, parts.bench.cache)
    assert handle is not None
    if how == "write":
        async with engine.writing([REF]):
            parts.bench.origin.put("b", "k", content(2))
    elif how == "purge":
        await purge_under(engine, "b", "k")
    elif how == "evicted":
        cache.drop(handle.slot, how)
    elif how == "late":
        parts.bench.clock.advance(61)
    else:
        engine.distrust()
    assert engine.take(handle, None, parts.bench.clock.now_s(), Span(5000, 5001)) is None
    assert held(parts, 5000) is None
    await parts.bench.settle()


async def test_slices_of_parts_that_meet_are_one_answer(make_parts):
    parts = await make_parts()
    spans = [(PAGE - LONG, PAGE), (PAGE, PAGE + LONG), (PAGE + LONG + 1, PAGE + 2 * LONG)]
    for span in spans:
        await parts.read(*span)
    first, now_s = held(parts, spans[0][0]), parts.bench.clock.now_s()
    for one in (held(parts, start) for start, _ in spans):
        one.sendable = SendableBlocks(None, one.start, one.start)
    slices = parts.bench.engine.take_slices(first, None, now_s, Span(PAGE - 10, PAGE + 10))
    assert b"".join(bytes(one.pin()) for one in slices) == parts.body[PAGE - 10 : PAGE + 10]
    # There is a gap of one byte after the second part.
    for stop in (PAGE + LONG + 1, PAGE + 2 * LONG):
        assert parts.bench.engine.take_slices(first, None, now_s, Span(PAGE - 10, stop)) is None


async def test_slices_do_not_go_on_in_a_page_that_begins_before(make_parts):
    """The page of a part comes after the part's handle was found. It holds the byte after the part."""
    parts = await make_parts()
    await parts.read(5000, 5000 + LONG)
    first, now_s = held(parts, 5000), parts.bench.clock.now_s()
    await parts.prefetch(0)
    for one in (first, held(parts, 5000 + LONG)):
        one.sendable = SendableBlocks(None, one.start, one.start)
    assert parts.bench.engine.take_slices(first, None, now_s, Span(5000, 5000 + LONG)) is not None
    assert parts.bench.engine.take_slices(first, None, now_s, Span(5000, 5000 + LONG + 1)) is None


async def test_samples_in_parts_are_found_again(make_parts):
    parts = await make_parts()
    offsets, length = np.array([700_000, 2 * PAGE, 2 * PAGE + 9000]), 5000
    await parts.read(700_000, 705_000)
    await parts.read(2 * PAGE, 2 * PAGE + LONG)
    engine, now_s = parts.bench.engine, parts.bench.clock.now_s()
    samples = SimpleNamespace(
        digest="d",
        count=3,
        offset=offsets,
        length=np.full(3, length),
        entry_of=np.zeros(3, np.int64),
        entries=SimpleNamespace(bucket_of=np.zeros(1, np.int64), buckets=["b"]),
    )
    for sample, first in ((0, 700_000), (1, 2 * PAGE), (2, 2 * PAGE)):
        assert engine.place(held(parts, first), None, now_s, Span(first, first + 1)) is not None
        engine.remember_sample(samples, sample, held(parts, first))
    found = engine.find_samples(samples, np.arange(3), None, now_s)
    assert found.here.all()
    for row, offset in enumerate(offsets.tolist()):
        segment = await asyncio.to_thread(Path(found.files[found.file[row]]).read_bytes)
        start = int(found.offset[row])
        assert segment[start : start + length] == parts.body[offset : offset + length]
