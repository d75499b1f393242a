"""A partial read fetches only the part if the page would win no place. If other readers want the page too,
the whole page is fetched.
"""

import asyncio

import numpy as np
import pytest

from shadeproxy.core.errors import BodyCutShort, RangeNotSatisfiable
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.placement.partial_reads import Fetch
from shadeproxy.engine.read.prefetch_port import Need
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin

PAGE = 128 * 1024
QUARTER = PAGE // 4
PLACES = 60
RAM = PLACES * (PAGE + 4096)
SMALL = 4 * (PAGE + 4096)
BODY = np.random.default_rng(0).bytes(4 * PAGE)
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)


def quarter(number):
    return RangeSpec(number * QUARTER, (number + 1) * QUARTER - 1)


def bytes_of(spec):
    return BODY[spec.first : spec.last + 1]


@pytest.fixture
def make_full(make_bench):
    """Return a function that makes a full cache. The metadata of object "k", which has four pages, is known,
    and none of these pages is resident.
    """

    async def make(*, ram_bytes=SMALL, memory=None, **options):
        options = {"rules": IMMUTABLE, "budget_bytes": 16 << 20, "page_size": PAGE} | options
        bench = await make_bench(ram_bytes=ram_bytes, segment_bytes=4 << 20, **options)
        store = memory or bench.origin
        for number in range(ram_bytes // (PAGE + 4096)):
            store.put("b", f"filler/{number}", bytes(PAGE))
            await bench.get(f"filler/{number}")
        store.put("b", "k", BODY)
        await bench.get("k", range=RangeSpec(0, PAGE - 1))
        await bench.settle()
        store.reads.clear()
        return bench

    return make


@pytest.mark.parametrize("policy", ["default", "lru"])
async def test_a_disk_that_is_full_is_no_room(make_full, policy):
    bench = await make_full(policy=policy, ram_bytes=SMALL, disk_bytes=8 << 20)
    bench.cache.media[1].tier._health.ceiling_bytes = 0
    admits = bench.cache.placement.admits
    if policy == "lru":
        bench.cache.media[0].tier._health.ceiling_bytes = 0
    assert not admits(1, 0, PAGE, pinned=False)
    for number in (4, 5, 6, 7):
        await bench.get("k", range=quarter(number))
        await bench.settle()
    assert asked(bench) == 4 * QUARTER


def spans(bench):
    return [span for ref, span, _ in bench.origin.reads if ref.key == "k"]


def asked(bench):
    """Return the number of bytes that were requested from the origin by range."""
    return sum(span.length for _, span, _ in bench.origin.reads)


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_part_of_a_page_without_a_place_is_read_alone(make_full):
    bench = await make_full()
    bypassed = bench.stats.pages.bypassed
    assert await bench.get("k", range=quarter(5)) == (bytes_of(quarter(5)), Source.ORIGIN)
    await bench.settle()
    assert spans(bench) == [Span(5 * QUARTER, 6 * QUARTER)]
    assert bench.stats.pages.bypassed == bypassed + 1
    assert bench.cached(["k"]) == 0


async def test_where_there_is_room_the_page_is_read_and_kept(make_full):
    bench = await make_full()
    bench.cache.drop_object(ObjectRef("b", "filler/0"), "to make room")
    await bench.get("k", range=quarter(5))
    await bench.settle()
    assert await bench.get("k", range=quarter(6)) == (bytes_of(quarter(6)), Source.RAM)
    assert spans(bench) == [Span(PAGE, 2 * PAGE)]


@pytest.mark.parametrize("policy", ["default", "importance"])
async def test_free_room_of_a_disk_that_has_failed_is_no_room(make_full, policy):
    calls = FaultyCalls(scheduled())
    bench = await make_full(more_disks={"disk": (8 << 20, 1e8)}, calls={"disk": calls}, policy=policy)
    calls.schedule = scheduled(rates={MediumFault.WRITE_EROFS: 1.0})
    bench.origin.put("b", "last", BODY[:PAGE])
    await bench.get("last")
    await bench.settle()
    assert bench.cache.media[1].tier.disabled_reason
    bench.origin.reads.clear()
    for number in (4, 5, 6, 7, 5):
        assert (await bench.get("k", range=quarter(number)))[0] == bytes_of(quarter(number))
        await bench.settle()
    assert asked(bench) == 5 * QUARTER
    need = Need(ObjectRef("b", "last"), object_hash(ObjectRef("b", "last")), 0, PAGE)
    assert not bench.engine.prefetch_port.wins(need)  # Prefetching it would be in vain.


async def test_a_page_that_is_worth_more_than_another_is_read_and_kept(make_full):
    bench = await make_full(policy="importance")
    bench.weights.by_hash = {object_hash(ObjectRef("b", f"filler/{n}")): 1.0 for n in range(4)}
    bench.weights.by_page = {(object_hash(ObjectRef("b", "k")), 1): 9.0}
    await bench.get("k", range=quarter(9))
    await bench.get("k", range=quarter(5))
    await bench.settle()
    assert (await bench.get("k", range=quarter(6)))[1] is Source.RAM
    assert spans(bench) == [Span(9 * QUARTER, 10 * QUARTER), Span(PAGE, 2 * PAGE)]


@pytest.mark.parametrize("policy", ["lru", "fifo"])
async def test_policies_that_store_whatever_comes_read_pages(make_full, policy):
    bench = await make_full(policy=policy)
    await bench.get("k", range=quarter(5))
    assert spans(bench) == [Span(PAGE, 2 * PAGE)]


async def test_a_pinned_page_is_read_and_kept(make_full):
    bench = await make_full()
    await bench.pin("k")
    await bench.get("k", range=quarter(5))
    await bench.settle()
    assert (await bench.get("k", range=quarter(6)))[1] is Source.RAM
    assert spans(bench) == [Span(PAGE, 2 * PAGE)]


async def test_what_is_nearly_the_page_is_read_with_the_rest(make_full):
    bench = await make_full()
    await bench.get("k", range=RangeSpec(PAGE, PAGE + PAGE // 2))
    assert spans(bench) == [Span(PAGE, 2 * PAGE)]


async def test_of_a_range_over_several_pages_only_its_bytes_are_read(make_full):
    bench = await make_full()
    wanted = RangeSpec(3 * QUARTER, 9 * QUARTER - 1)
    assert (await bench.get("k", range=wanted))[0] == bytes_of(wanted)
    assert spans(bench) == [Span(3 * QUARTER, 9 * QUARTER)]


async def known(bench, keys):
    """Make the metadata of the objects known, and leave their pages uncached."""
    for key in keys:
        bench.origin.put("b", key, BODY)
        await bench.engine.stat(ReadRequest(ObjectRef("b", key)))
    bench.origin.reads.clear()


async def test_readers_that_go_on_cost_one_read_a_page(make_full):
    bench = await make_full(ram_bytes=RAM)
    keys = [f"on/{number}" for number in range(120)]
    await known(bench, keys)
    for key in keys[:60]:
        for part in range(4, 8):
            await bench.get(key, range=quarter(part))
    assert asked(bench) <= 60 * PAGE + 32 * QUARTER
    bench.origin.reads.clear()
    for key in keys[60:]:
        for part in range(4, 8):
            await bench.get(key, range=quarter(part))
    assert asked(bench) <= 60 * PAGE + 4 * QUARTER
    bench.origin.reads.clear()
    sources = [(await bench.get("k", range=quarter(number)))[1] for number in range(4, 8)]
    assert sources == [Source.ORIGIN, Source.RAM, Source.RAM, Source.RAM]
    assert spans(bench) == [Span(PAGE, 2 * PAGE)]


async def test_readers_at_random_cost_what_they_ask_for(make_full):
    bench = await make_full(ram_bytes=RAM)
    keys = [f"at-random/{number}" for number in range(200)]
    await known(bench, keys)
    parts = np.random.default_rng(1).permutation(200 * 16)[:400].tolist()
    for number, one in enumerate(parts):
        if number % 50 == 0:
            for filler in range(PLACES):  # Read the cached pages, so that they stay in use.
                await bench.get(f"filler/{filler}")
            bench.origin.reads = [read for read in bench.origin.reads if read[1] is not None]
        await bench.get(keys[one // 16], range=quarter(one % 16))
    assert asked(bench) <= 1.05 * 400 * QUARTER


async def test_readers_of_one_part_and_of_parts_of_it_share_a_read(make_full):
    bench = await make_full()
    bench.origin.gate = Barrier()
    first = asyncio.create_task(bench.get("k", range=quarter(5)))
    await bench.origin.gate.reached.wait()
    within = RangeSpec(5 * QUARTER + 10, 5 * QUARTER + 99)
    others = [asyncio.create_task(bench.get("k", range=spec)) for spec in (quarter(5), within)]
    await turns()
    bench.origin.gate.release()
    assert await first == (bytes_of(quarter(5)), Source.ORIGIN)
    assert await others[0] == (bytes_of(quarter(5)), Source.COALESCED)
    assert await others[1] == (bytes_of(within), Source.COALESCED)
    assert spans(bench) == [Span(5 * QUARTER, 6 * QUARTER)]


async def test_readers_of_other_parts_at_the_same_time_share_one_read_of_the_page(make_full):
    bench = await make_full()
    bench.origin.gate = Barrier()
    first = asyncio.create_task(bench.get("k", range=quarter(5)))
    await bench.origin.gate.reached.wait()
    others = [asyncio.create_task(bench.get("k", range=quarter(number))) for number in (4, 6, 7)]
    whole = asyncio.create_task(bench.get("k", range=RangeSpec(PAGE, 2 * PAGE - 1)))
    await turns()
    bench.origin.gate.release()
    for number, task in zip((4, 6, 7), others, strict=True):
        assert (await task)[0] == bytes_of(quarter(number))
    assert (await first)[0] == bytes_of(quarter(5))
    assert (await whole)[0] == BODY[PAGE : 2 * PAGE]
    assert spans(bench) == [Span(5 * QUARTER, 6 * QUARTER), Span(PAGE, 2 * PAGE)]


async def test_who_hangs_up_ends_the_read_of_a_part(make_full):
    bench = await make_full()
    bench.origin.gate = Barrier()
    async with bench.engine.open(ReadRequest(ObjectRef("b", "k"), range=quarter(5))) as reading:
        await bench.origin.gate.reached.wait()
        async for _piece in reading.body(Span(5 * QUARTER, 5 * QUARTER + 10)):
            break
    await turns()
    bench.engine.assert_quiescent()


async def test_a_body_that_wants_more_than_was_opened_gets_it(make_full):
    bench = await make_full()
    async with bench.engine.open(ReadRequest(ObjectRef("b", "k"), range=quarter(5))) as reading:
        body = b"".join([bytes(piece) async for piece in reading.body(Span(0, len(BODY)))])
    assert body == BODY


async def test_another_version_at_the_origin_is_answered_as_such(make_full):
    bench = await make_full()
    changed = BODY[::-1]
    bench.origin.put("b", "k", changed)
    wanted = quarter(5)
    assert (await bench.get("k", range=wanted))[0] == changed[wanted.first : wanted.last + 1]


async def test_a_part_that_ends_early_is_an_error(make_full):
    memory = MemoryOrigin()
    origin = FaultyOrigin(memory)
    bench = await make_full(origin=origin, memory=memory)
    origin.enqueue(Fault(cut_after_bytes=100))
    with pytest.raises(BodyCutShort):
        await bench.get("k", range=quarter(5))
    await turns()
    bench.engine.assert_quiescent()
    assert (await bench.get("k", range=quarter(5)))[0] == bytes_of(quarter(5))


LONG_PAGE = 1 << 20
CHUNK = 20_000
LONG_BODY = np.random.default_rng(1).bytes(8 * LONG_PAGE)


@pytest.fixture
def make_roomy(make_bench):
    """Return a function that makes an empty cache with pages of 1 MiB and room for all of object "k", which
    has eight. Only the metadata of the object are known.
    """

    async def make(**options):
        options = {"rules": IMMUTABLE, "budget_bytes": 64 << 20, "page_size": LONG_PAGE} | options
        bench = await make_bench(ram_bytes=32 << 20, segment_bytes=8 << 20, **options)
        bench.origin.put("b", "k", LONG_BODY)
        await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
        bench.origin.reads.clear()
        return bench

    return make


def chunk(page, number=0):
    start = page * LONG_PAGE + 200_000 * number + 1000
    return RangeSpec(start, start + CHUNK - 1)


async def get_chunk(bench, spec):
    body, source = await bench.get("k", range=spec)
    assert body == LONG_BODY[spec.first : spec.last + 1]
    return source


@pytest.mark.parametrize("policy", ["default", "lru"])
async def test_small_reads_all_over_long_pages_cost_what_they_ask_for(make_roomy, policy):
    """Readers of a few columns come for the same two parts of each page in every epoch. The parts are
    stored.
    """
    bench = await make_roomy(policy=policy)
    for epoch in range(3):
        for page in range(8):
            for number in range(2):
                source = await get_chunk(bench, chunk(page, number))
                assert source is (Source.RAM if epoch else Source.ORIGIN)
        await bench.settle()
    assert asked(bench) == 8 * 2 * CHUNK


async def test_small_reads_at_the_same_time_are_as_cheap(make_roomy):
    bench = await make_roomy()
    bench.origin.gate = Barrier()
    tasks = [asyncio.create_task(get_chunk(bench, chunk(page, n))) for page in range(8) for n in range(2)]
    await bench.origin.gate.reached.wait()
    await turns()
    bench.origin.gate.release()
    assert set(await asyncio.gather(*tasks)) == {Source.ORIGIN}
    assert asked(bench) == 8 * 2 * CHUNK


async def test_a_reader_that_goes_on_gets_the_page(make_roomy):
    bench = await make_roomy()
    spans_of = range(0, LONG_PAGE, LONG_PAGE // 16)
    for page in range(4, 8):
        for start in spans_of:
            first = page * LONG_PAGE + start
            await get_chunk(bench, RangeSpec(first, first + LONG_PAGE // 16 - 1))
        await bench.settle()
    whole = [span for span in spans(bench) if span.length == LONG_PAGE]
    assert len(whole) == 4  # Each page was fetched, and then answered the rest of its parts.
    assert spans(bench)[-1] == Span(7 * LONG_PAGE, 8 * LONG_PAGE)
    assert asked(bench) <= 4 * LONG_PAGE * 1.1


async def test_readers_of_overlapping_parts_share_the_page(make_roomy):
    bench = await make_roomy()
    bench.origin.gate = Barrier()
    first = asyncio.create_task(get_chunk(bench, RangeSpec(0, 9_999)))
    await bench.origin.gate.reached.wait()
    others = [RangeSpec(at, at + 9_999) for at in range(1_000, 50_000, 1_000)]
    tasks = [asyncio.create_task(get_chunk(bench, spec)) for spec in others]
    await turns()
    bench.origin.gate.release()
    await asyncio.gather(first, *tasks)
    assert spans(bench) == [Span(0, 10_000), Span(0, LONG_PAGE)]


async def test_readers_of_overlapping_parts_of_an_unknown_object_share_the_page(make_roomy):
    bench = await make_roomy()
    bench.engine._outdated(ObjectRef("b", "k"))
    specs = [RangeSpec(at, at + 9_999) for at in range(0, 50_000, 1_000)]
    await asyncio.gather(*(get_chunk(bench, spec) for spec in specs))
    assert spans(bench) == [Span(0, 10_000), None]


async def test_a_part_of_an_unknown_object_is_fetched_alone(make_roomy):
    """Readers that know lengths from a listing, as of a directory of Parquet files, send no HeadObject."""
    bench = await make_roomy()
    for page in (0, 1):
        bench.engine._outdated(ObjectRef("b", "k"))
        assert await get_chunk(bench, chunk(page)) is Source.ORIGIN
        assert asked(bench) == (page + 1) * CHUNK
        await bench.settle()
        assert await get_chunk(bench, chunk(page)) is Source.RAM


@pytest.mark.parametrize("size", [1, 999, 30_000, 600_000, LONG_PAGE, LONG_PAGE + 1, 2 * LONG_PAGE + 5])
async def test_a_range_of_an_unknown_object_has_the_right_bytes_whatever_its_length(make_roomy, size):
    bench = await make_roomy()
    body = LONG_BODY[:size]
    bench.origin.put("b", "other", body)
    for first in (0, 1, 500, 40_000, LONG_PAGE - 1, LONG_PAGE, 2 * LONG_PAGE):
        for last in (None, first, first + 99, size - 1, size, size + 10, LONG_PAGE + 50, 3 * LONG_PAGE):
            if first >= size or (last is not None and last < first):
                continue
            bench.engine._outdated(ObjectRef("b", "other"))
            for _ in range(2):
                spec = RangeSpec(first, last)
                got, _source = await bench.get("other", range=spec)
                assert got == body[first : len(body) if last is None else last + 1], spec
                await bench.settle()
    bench.engine.assert_quiescent()


@pytest.mark.parametrize("beyond", [-1, 0, 1000])
async def test_a_part_that_proves_to_be_all_of_an_object_is_stored_as_its_page(make_roomy, beyond):
    bench = await make_roomy()
    bench.origin.put("b", "other", LONG_BODY[:30_000])
    await bench.get("other", range=RangeSpec(0, 29_999 + beyond))
    await bench.settle()
    body, source = await bench.get("other")
    assert (body, source) == (LONG_BODY[:30_000], Source.ORIGIN if beyond < 0 else Source.RAM)


async def test_a_part_beyond_the_end_of_an_unknown_object_tells_its_size(make_roomy):
    bench = await make_roomy()
    bench.origin.put("b", "other", LONG_BODY[:1000])
    with pytest.raises(RangeNotSatisfiable) as caught:
        await bench.get("other", range=RangeSpec(1000, 1099))
    assert caught.value.size_bytes == 1000
    bench.origin.put("b", "empty", b"")
    assert (await bench.get("empty", range=RangeSpec(0, 99)))[0] == b""


async def test_announced_reads_and_pinned_objects_get_the_page(make_roomy):
    bench = await make_roomy()
    await bench.pin("k")
    await get_chunk(bench, chunk(1))
    await bench.settle()
    assert await get_chunk(bench, chunk(1, 2)) is Source.RAM
    await bench.unpin("k")
    part, meta = Span(0, CHUNK), bench.engine.usable_now(ReadRequest(ObjectRef("b", "k")))
    fetch_of = bench.engine._filling._fetch_of
    assert fetch_of(ObjectRef("b", "k"), 3, meta, part, explained=True) is Fetch.PAGE
    assert fetch_of(ObjectRef("b", "k"), 3, meta, part, explained=False) is Fetch.STORED_PART


async def test_pages_that_are_demoted_meanwhile_do_not_take_the_memory_of_what_is_read_ahead(make_bench):
    places = PAGE + 4096
    sizes = {"ram_bytes": 4 * places, "disk_bytes": 8 * places, "segment_bytes": 4 << 20, "page_size": PAGE}
    bench = await make_bench(**sizes, rules=IMMUTABLE, policy="lru", budget_bytes=2 * places)
    for number in range(10):
        bench.origin.put("b", f"filler/{number}", bytes(PAGE))
        await bench.get(f"filler/{number}")
        await bench.settle()
    await known(bench, ["k"])
    wanted = RangeSpec(0, 2 * PAGE - QUARTER - 1)
    async with bench.engine.open(ReadRequest(ObjectRef("b", "k"), range=wanted)) as reading:
        await bench.settle()
        # The reads are counted together later, and only then are the pages promoted.
        for number in range(4, 7):
            handle = bench.engine.find_handle(ObjectRef("b", f"filler/{number}"), 0, bench.clock.now_s())
            assert handle.source is Source.DISK
            assert bench.engine.take(handle, None, bench.clock.now_s())
        assert not bench.ledger.taken_bytes
        body = b"".join([bytes(piece) async for piece in reading.body(Span(0, wanted.last + 1))])
    assert body == bytes_of(wanted)
