"""Reads in a cluster. The cache answers only for objects that this proxy owns. It never answers with a
version that is older than a write acknowledged by another proxy.
"""

import asyncio

import pytest

from shadeproxy.core.errors import CachedElsewhere
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import UNKNOWN, ReadRequest
from shadeproxy.engine.ownership import Standing
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from tests.support.engine import PAGE
from tests.support.ownership import HeldOrigin, SetOwnership, all_kept

IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
REF = ObjectRef("b", "k")
PLAIN = ReadRequest(REF)
OLD, NEW = b"old" * 500, b"new!" * 500


@pytest.fixture
async def bench(make_bench):
    """Return an engine in a cluster. Its freshness rule requires no checks. Its only object is not cached
    yet.
    """
    bench = await make_bench(rules=IMMUTABLE, ownership=SetOwnership(), past=MemoryOrigin())
    bench.owned, bench.past = bench.engine._ownership, bench.engine._past
    bench.origin.put("b", "k", OLD)
    bench.past.put("b", "k", OLD)
    return bench


# ---------------------------------------------------------------------- OWN and FOREIGN


async def test_an_object_of_its_own_is_answered_by_the_rule(bench):
    assert await bench.get("k") == (OLD, Source.ORIGIN)
    bench.origin.put("b", "k", NEW)
    assert await bench.get("k") == (OLD, Source.RAM)
    assert (bench.origin.gets, bench.origin.heads, bench.past.gets) == (1, 0, 0)


async def test_a_foreign_object_is_read_past_the_cache_each_time(bench):
    await bench.get("k")
    bench.owned.set(REF, Standing.FOREIGN)
    bench.past.put("b", "k", NEW)
    assert not bench.engine.cacheable(REF)
    for _ in range(2):
        async with bench.engine.bypass(PLAIN, None) as read:
            assert b"".join([chunk async for chunk in read.chunks]) == NEW
        async with bench.engine.forward(ForwardRequest("HEAD", REF, "/b/k")) as answer:
            assert answer.status == 200
    assert (bench.past.gets, bench.past.forwards, bench.origin.forwards) == (2, 2, 0)
    for reading in (bench.get("k"), bench.engine.stat(PLAIN)):
        with pytest.raises(CachedElsewhere):
            await reading
    assert bench.engine.find_now(PLAIN) is None
    assert bench.engine.find_handle(REF, 0, bench.clock.now_s()) is None
    assert bench.origin.gets == 1


async def test_a_page_whose_object_becomes_foreign_on_the_way_is_not_stored(bench):
    reader, gate = await bench.held("k")
    bench.owned.set(REF, Standing.FOREIGN)
    gate.release()
    assert (await reader)[0] == OLD
    await bench.settle()
    assert not bench.cached(["k"])


# ---------------------------------------------------------------------- CHECK


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_read_to_be_checked_gets_the_version_that_the_origin_has(bench, is_cached):
    if is_cached:
        await bench.get("k")
    bench.owned.set(REF, Standing.CHECK)
    bench.origin.put("b", "k", NEW)
    assert (await bench.get("k"))[0] == NEW
    asked = bench.origin.heads
    assert await bench.get("k") == (NEW, Source.RAM)
    bench.origin.put("b", "k", OLD)
    assert (await bench.get("k"))[0] == OLD
    meta, _ = await bench.engine.stat(PLAIN)
    assert meta.size == len(OLD)
    assert bench.origin.heads == asked + 3


@pytest.mark.parametrize("standing", [Standing.CHECK, Standing.FOREIGN])
async def test_objects_that_are_not_own_are_never_answered_at_once(bench, standing):
    await bench.get("k")
    engine, now_s, span = bench.engine, bench.clock.now_s(), Span(0, 10)
    meta = engine.usable_now(PLAIN)
    assert engine.hit(PLAIN, meta, span)
    assert engine.locate(PLAIN, meta, span)
    assert engine.ready(PLAIN, meta, span)
    assert engine.find_now(ReadRequest(ObjectRef("b", "other"))) is UNKNOWN
    for ref in (REF, ObjectRef("b", "other")):
        bench.owned.set(ref, standing)
        assert engine.find_now(ReadRequest(ref)) is None
        assert engine.usable_now(ReadRequest(ref)) is None
        assert engine.find_handle(ref, 0, now_s) is None
    assert engine.hit(PLAIN, meta, span) is None
    assert engine.locate(PLAIN, meta, span) is None
    assert not engine.ready(PLAIN, meta, span)


async def test_a_page_handle_answers_no_longer_than_the_lease(bench):
    await bench.get("k")
    bench.owned.lease_s = 3.0
    engine, began_s = bench.engine, bench.clock.now_s()
    handle = engine.find_handle(REF, 0, began_s)
    assert handle is not None
    assert engine.take(handle, None, began_s + 2.9) is not None
    assert engine.take(handle, None, began_s + 3.0) is None
    bench.clock.advance(3.0)
    renewed = engine.find_handle(REF, 0, began_s + 3.0)
    assert renewed is not None
    assert engine.take(renewed, None, began_s + 5.9) is not None


async def test_a_read_to_be_checked_joins_no_check_that_runs(make_bench):
    origin = HeldOrigin()
    bench = await make_bench(rules=IMMUTABLE, ownership=(owned := SetOwnership()), origin=origin)
    origin.put("b", "k", OLD)
    owned.set(REF, Standing.CHECK)
    early = asyncio.create_task(bench.get("k"))
    await origin.asked.wait()
    origin.put("b", "k", NEW)
    origin.holds = False
    async with asyncio.timeout(2):
        assert (await bench.get("k"))[0] == NEW
    origin.go.set()
    await early
    assert (await bench.get("k"))[0] == NEW
    owned.set(REF, Standing.OWN)
    assert (await bench.get("k"))[0] == NEW, "the late answer to the early check is not trusted"


@pytest.mark.parametrize("before", [Standing.OWN, Standing.CHECK])
async def test_a_read_to_be_checked_joins_no_flight_of_an_older_version(bench, before):
    bench.owned.set(REF, before)
    early, gate = await bench.held("k")
    bench.owned.set(REF, Standing.CHECK)
    bench.origin.put("b", "k", NEW)
    bench.origin.gate = None
    late = [await bench.get("k"), await bench.get("k")]
    assert [body for body, _ in late] == [NEW, NEW]
    gate.release()
    assert (await early)[0] == OLD
    assert (await bench.get("k"))[0] == NEW


async def test_a_read_to_be_checked_joins_a_flight_of_the_version_that_is_current(bench):
    bench.owned.set(REF, Standing.CHECK)
    bench.origin.gate = gate = Barrier()
    readers = [asyncio.create_task(bench.get("k")) for _ in range(3)]
    await gate.reached.wait()
    while bench.origin.heads < 3:
        await asyncio.sleep(0)
    gate.release()
    assert [body for body, _ in await asyncio.gather(*readers)] == [OLD] * 3
    assert (bench.origin.heads, bench.origin.gets) == (3, 1)


@pytest.mark.parametrize("pages", [1, 3])
@pytest.mark.parametrize("remembers", [True, False])
async def test_an_answer_to_a_read_in_doubt_is_checked_once_when_the_object_is_its_own(
    bench, pages, remembers
):
    """An answer that was read in doubt is checked once when the object becomes the proxy's own. A late write
    of a proxy that is gone may arrive after the read and before the end of the doubt.
    """
    old, new = OLD * 3 * pages, NEW * 3 * pages
    bench.origin.put("b", "k", old[: PAGE * pages])
    bench.owned.set(REF, Standing.CHECK)
    await bench.get("k")
    await bench.settle()
    if not remembers:
        bench.engine._versions.forget(REF)
    bench.origin.put("b", "k", new[: PAGE * pages])
    bench.owned.set(REF, Standing.OWN)
    assert (await bench.get("k"))[0] == new[: PAGE * pages]
    asked = bench.origin.heads, bench.origin.gets
    assert await bench.get("k") == (new[: PAGE * pages], Source.RAM)
    assert (bench.origin.heads, bench.origin.gets) == asked


async def test_a_reader_that_knows_nothing_joins_no_flight_that_began_in_doubt(bench):
    bench.owned.set(REF, Standing.CHECK)
    early, gate = await bench.held("k")
    bench.engine._versions.forget(REF)
    bench.origin.put("b", "k", NEW)
    bench.origin.gate = None
    bench.owned.set(REF, Standing.OWN)
    async with asyncio.timeout(2):
        assert (await bench.get("k"))[0] == NEW
    gate.release()
    await early


async def test_a_flight_that_began_in_doubt_is_not_trusted_when_it_ends(bench):
    bench.owned.set(REF, Standing.CHECK)
    early, gate = await bench.held("k")
    bench.origin.put("b", "k", NEW)
    bench.owned.set(REF, Standing.OWN)
    gate.release()
    bench.origin.gate = None
    assert (await early)[0] == OLD
    await bench.settle()
    assert (await bench.get("k"))[0] == NEW


@pytest.mark.parametrize("change", ["standing", "epoch", "distrust"])
async def test_a_listing_that_began_in_doubt_confirms_nothing(make_bench, change):
    owned = SetOwnership()
    bench = await make_bench(rules=(Rule(ttl_s=10),), ownership=owned)
    bench.origin.put("b", "k", OLD)
    await bench.get("k")
    bench.clock.advance(11)
    go, listing, inner = asyncio.Event(), asyncio.Event(), bench.origin.list_objects

    async def late(*args, **options):
        page = await inner(*args, **options)
        listing.set()
        await go.wait()
        return page

    bench.origin.list_objects = late
    if change == "standing":
        owned.set(REF, Standing.CHECK)
    bench.engine.check_listed("b", "", 10)
    await listing.wait()
    if change == "standing":
        owned.set(REF, Standing.OWN)
    else:
        owned.epoch += change == "epoch"
        bench.engine.distrust(all_kept)
    validated_s = float(bench.cache.residents.validated_s[0])
    go.set()
    while not bench.engine.idle:
        await asyncio.sleep(0)
    assert bench.cache.residents.validated_s[0] == validated_s


# ---------------------------------------------------------------------- prefetch


async def test_objects_of_other_processes_are_not_prefetched(bench):
    port = bench.engine.prefetch_port
    (need,) = port.missing(REF)
    meta = bench.origin.buckets["b"]["k"].meta
    for standing in (Standing.OWN, Standing.CHECK):
        bench.owned.set(REF, standing)
        assert port.lacks(need)
        assert port.pages(REF, range(1), meta)
    bench.owned.set(REF, Standing.FOREIGN)
    assert not port.cacheable(REF)
    assert not list(port.missing(REF))
    assert not port.pages(REF, range(1), meta)
    assert not port.lacks(need)


@pytest.mark.parametrize("rises", [True, False])
async def test_a_prefetched_page_that_becomes_foreign_is_not_stored(bench, rises):
    port, ended = bench.engine.prefetch_port, []
    (need,) = port.missing(REF)
    bench.origin.gate = gate = Barrier()
    port.begin(need, ended.append)
    await gate.reached.wait()
    bench.owned.set(REF, Standing.FOREIGN)
    if rises:
        bench.engine.distrust()
    gate.release()
    await bench.settle()
    await asyncio.sleep(0)
    assert [fetched.stored for fetched in ended] == [False]
    assert not bench.cached(["k"])
