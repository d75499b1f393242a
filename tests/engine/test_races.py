"""Races that reviews have found. Each test failed before its race was fixed."""

import asyncio
import hashlib
from dataclasses import replace

import pytest

from shadeproxy.core.deadline import DEADLINE, DEFAULT_BOUNDS, Deadline
from shadeproxy.core.errors import ObjectChanged, OriginAnswer
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Page, Source, Span, Upstream
from shadeproxy.engine.base import UNKNOWN, ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.engine import PAGE, HeldIO
from tests.support.purging import purge_under

IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
REF = ObjectRef("b", "k")


async def test_a_slot_and_a_place_that_were_reused_are_not_taken_for_the_old_page(make_bench):
    bench = await make_bench(ram_bytes=2048, disk_bytes=1 << 20, rules=IMMUTABLE)
    bench.origin.put("b", "k", b"1" * 3000)
    await bench.get("k")
    await bench.settle()
    medium, held = bench.cache.media[1], HeldIO()
    bench.cache.media[1] = replace(medium, load=held)
    bench.cache.media[1].tier.is_hot = lambda _location: False

    async def read():
        async with bench.engine.open(ReadRequest(REF)) as reading:
            body = b"".join([bytes(p) async for p in reading.body(Span(0, reading.meta.size))])
            return reading.meta.etag, body

    reader = asyncio.create_task(read())
    await held.waiting.wait()
    bench.cache.media[1] = medium
    async with bench.engine.writing([REF]):
        bench.origin.put("b", "k", b"2" * 3000)
    await bench.get("k")
    await bench.settle()
    held.go.set()
    etag, body = await reader
    assert etag.strip('"') == hashlib.md5(body).hexdigest()


async def test_a_slot_that_gets_another_page_before_its_load_begins_is_not_read(make_bench, monkeypatch):
    """A task loads a page whose bytes are not checked yet, as after a restart. Before the task begins, the
    page is evicted, and another one of the same length gets its slot and its place.
    """
    bench = await make_bench(rules=IMMUTABLE)
    bench.origin.put("b", "k", b"1" * 3000)
    bench.origin.put("b", "other", b"2" * 3000)
    await bench.get("k")
    cache, headers = bench.cache, {}
    (slot,) = cache.residents.ready().tolist()
    async with bench.engine.open(ReadRequest(ObjectRef("b", "other"))) as reading:
        headers["other"] = reading.meta
        page = Page(ObjectRef("b", "other"), reading.meta.etag, 0)
    await bench.settle()
    for other in cache.residents.pages_of(object_hash(page.ref)):
        cache.drop(other, "purged")

    def replace_it():
        cache.drop(slot, "policy")
        body = memoryview(b"2" * 3000)
        cache.insert_many([NewPage(page, headers["other"], body, 0.0, lambda: True, lambda _stored: None)])

    def must_load(loaded):
        if loaded == slot and cache.find(page) is None:
            asyncio.get_running_loop().call_soon(replace_it)
        return True

    monkeypatch.setattr(cache, "must_load", must_load)
    DEADLINE.set(Deadline(bench.clock, DEFAULT_BOUNDS))
    assert (await bench.get("k"))[0] == b"1" * 3000
    assert cache.find(page) == slot


async def test_a_page_loaded_before_a_change_was_noticed_is_not_used_after_it(make_bench):
    bench = await make_bench(rules=IMMUTABLE)
    bench.origin.put("b", "k", b"1" * 5 * PAGE)
    await bench.get("k", range=RangeSpec(3 * PAGE, 4 * PAGE - 1))
    new = b"2" * 4 * PAGE
    bench.origin.put("b", "k", new)
    async with bench.engine.open(ReadRequest(REF, RangeSpec(None, 2 * PAGE))) as reading:
        await bench.get("k", range=RangeSpec(3 * PAGE, 4 * PAGE - 1))
        body = b"".join([bytes(p) async for p in reading.body(Span(2 * PAGE, 4 * PAGE))])
    assert body == new[2 * PAGE :]


@pytest.mark.parametrize("prefix", ["", "k"])
async def test_a_page_between_tiers_does_not_escape_a_purge(make_bench, prefix):
    bench = await make_bench(ram_bytes=4 * PAGE, disk_bytes=1 << 20, policy="lru", rules=IMMUTABLE)
    held = await bench.put_many_that_move_to_disk()
    await purge_under(bench.engine, "b", prefix)
    for n in range(6):
        bench.origin.put("b", f"k{n}", b"new%d" % n * 700)
    held.go.set()
    await bench.settle()
    for n in range(6):
        assert await bench.get(f"k{n}") == (b"new%d" % n * 700, Source.ORIGIN)


@pytest.mark.parametrize("touched", ["k", ""])
async def test_a_right_taken_away_while_it_was_asked_for_is_not_remembered(make_bench, touched):
    bench = await make_bench(verdicts=True)
    alice = Upstream("alice")
    bench.origin.put("b", "k", b"secret")
    held, resume, head = asyncio.Event(), asyncio.Event(), bench.origin.head

    async def slow_head(ref, **kwargs):
        meta = await head(ref, **kwargs)
        held.set()
        await resume.wait()
        return meta

    bench.origin.head = slow_head
    check = asyncio.create_task(bench.engine.stat(ReadRequest(REF, upstream=alice)))
    await held.wait()
    async with bench.engine.writing([ObjectRef("b", touched)]):
        bench.origin.denied.add(alice)
    resume.set()
    await asyncio.gather(check, return_exceptions=True)
    bench.origin.head = head
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=alice)


async def test_headers_replaced_in_place_are_seen_once_the_object_is_checked(make_bench):
    """Header fields that were replaced in place are shown once the object is checked. CopyObject of an object
    onto itself keeps the ETag and changes Last-Modified.
    """
    bench = await make_bench(rules=(Rule(ttl_s=10),))
    bench.origin.put("b", "k", b"x" * 100, headers=(("x-amz-meta-v", "1"),))
    await bench.get("k")
    bench.clock.advance(11)
    bench.origin.put("b", "k", b"x" * 100, headers=(("x-amz-meta-v", "2"),))
    await bench.get("k")
    while not bench.engine.idle:
        await asyncio.sleep(0.01)
    meta, _ = await bench.engine.stat(ReadRequest(REF))
    assert meta.header("x-amz-meta-v") == "2"


async def test_streams_that_read_ahead_do_not_starve_each_other(make_bench):
    bench = await make_bench(budget_bytes=8 * PAGE, ram_bytes=1 << 22)
    for n in range(16):
        bench.origin.put("b", f"k{n}", bytes([n]) * 6 * PAGE)
    bodies = await asyncio.wait_for(asyncio.gather(*(bench.get(f"k{n}") for n in range(16))), 20)
    assert [body for body, _ in bodies] == [bytes([n]) * 6 * PAGE for n in range(16)]


async def test_paused_readers_of_stored_pages_hold_no_memory_of_others(make_bench):
    bench = await make_bench(budget_bytes=4 * PAGE, ram_bytes=1 << 22)
    paused = []
    for n in range(8):
        bench.origin.put("b", f"k{n}", bytes([n]) * PAGE)
        context = bench.engine.open(ReadRequest(ObjectRef("b", f"k{n}")))
        reading = await context.__aenter__()
        body = reading.body(Span(0, PAGE))
        first = await anext(body)
        assert first[:1] == bytes([n])
        paused.append((context, body))
    bench.origin.put("b", "other", b"served")
    assert (await asyncio.wait_for(bench.get("other"), 5))[0] == b"served"
    for context, body in paused:
        await context.__aexit__(None, None, None)  # Closing the context before the body must do no harm.
        await body.aclose()


async def test_metadata_that_no_record_can_hold_is_served_and_leaves_nothing(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"x", headers=(("x-amz-meta-long", "v" * 70_000),))
    assert (await bench.get("k"))[0] == b"x"
    await bench.settle()
    assert len(bench.cache.residents) == 0


@pytest.mark.parametrize("policy", ["lru", "default"])
async def test_a_big_page_displaces_small_ones(make_bench, policy):
    bench = await make_bench(ram_bytes=1 << 20, policy=policy, page_size=1 << 19, budget_bytes=1 << 22)
    for n in range(3000):
        bench.origin.put("b", f"small/{n}", b"s" * 200)
        await bench.get(f"small/{n}")
    bench.origin.put("b", "big/0", b"B" * (1 << 19))
    for _ in range(9000 if policy == "default" else 1):  # After so many reads the small pages count as dead.
        await bench.get("big/0")
    assert (await bench.get("big/0"))[1] is Source.RAM


async def test_a_flight_that_is_held_outlives_its_purge(make_bench):
    bench = await make_bench(rules=IMMUTABLE)
    bench.origin.put("b", "k", b"old" * 500)
    reader, gate = await bench.held("k")
    await purge_under(bench.engine, "b", "k")
    bench.origin.put("b", "k", b"new" * 500)
    gate.release()
    assert (await reader)[0] == b"old" * 500
    assert await bench.get("k") == (b"new" * 500, Source.ORIGIN)


async def test_what_a_write_of_unknown_outcome_touched_is_not_kept_for_a_while(make_bench):
    """After a write whose outcome is unknown, the object is not cached for a while. The client left after it
    had sent the whole body, so the origin may still carry out the write.
    """
    bench = await make_bench(rules=IMMUTABLE)
    bench.origin.put("b", "k", b"old")
    waiting, sleep = asyncio.Event(), bench.clock.sleep
    bench.clock.sleep = lambda _seconds: waiting.wait()

    async def write():
        async with bench.engine.writing([REF]):
            await asyncio.Event().wait()

    client = asyncio.create_task(write())
    await asyncio.sleep(0.01)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    assert (await bench.get("k"))[0] == b"old"
    bench.origin.put("b", "k", b"new")
    assert (await bench.get("k"))[0] == b"new"
    waiting.set()
    await asyncio.sleep(0.01)
    bench.clock.sleep = sleep
    await bench.get("k")
    assert await bench.get("k") == (b"new", Source.RAM)


async def test_readers_of_an_old_version_do_not_fail_one_of_the_new(make_bench):
    bench = await make_bench(rules=IMMUTABLE)
    last = Span(4 * PAGE, 4 * PAGE + 1)  # Farther than pages are read ahead.

    def opened():
        return bench.engine.open(ReadRequest(REF))

    bench.origin.put("b", "k", b"1" * last.stop)
    async with opened() as one, opened() as another:
        async with bench.engine.writing([REF]):
            bench.origin.put("b", "k", b"2" * last.stop)
        async with opened() as new:
            # The second reader of the old version tries again, and is faster than the reader of the new
            # version.
            pieces = [anext(reading.body(last)) for reading in (one, another, new)]
            found = await asyncio.gather(*pieces, return_exceptions=True)
    assert [type(piece) for piece in found[:2]] == [ObjectChanged, ObjectChanged]
    assert bytes(found[2]) == b"2"
    await bench.settle()
    cached = await bench.get("k", range=RangeSpec(4 * PAGE, None))
    assert cached == (b"2", Source.RAM), "what is new was not dropped for what is old"


async def test_a_page_that_leaves_while_its_header_is_read_is_no_fault_of_the_tier(make_bench):
    bench = await make_bench(ram_bytes=4 * PAGE, disk_bytes=1 << 20, policy="lru", rules=IMMUTABLE)
    for key in "abcdefgh":
        bench.origin.put("b", key, key.encode() * PAGE)
        await bench.get(key)
    await bench.settle()
    table, held = bench.cache.residents, HeldIO()
    here = [slot for slot in range(table.slots) if table.tiers[slot] == 1]
    bench.cache.media[1] = replace(bench.cache.media[1], load=held)
    asked = asyncio.create_task(bench.cache._places.headers(here))
    await held.waiting.wait()
    bench.cache.drop(here[0], "purged")
    held.go.set()
    assert sorted(await asked) == here[1:]
    assert bench.counted_stats().snapshot()["tiers"]["disk"]["errors"] == {}


async def test_a_client_that_leaves_before_its_write_begins_stops_no_caching(make_bench):
    """The origin never hears of the write, so its outcome is known: there is none."""
    bench = await make_bench(disk_bytes=1 << 20, rules=IMMUTABLE)
    bench.origin.put("b", "k", b"old")
    await bench.get("k")
    medium, held = bench.cache.media[1], HeldIO()
    bench.cache.media[1] = replace(medium, write=held)

    async def write():
        async with bench.engine.writing([REF]):
            raise AssertionError("it must wait for the erasures")

    writer = asyncio.create_task(write())
    await held.waiting.wait()
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    bench.cache.media[1] = medium
    assert not bench.engine._versions.writing
    await bench.get("k")
    await bench.settle()
    assert (await bench.get("k"))[1] is Source.RAM


@pytest.mark.parametrize("sent", [False, True])
async def test_a_client_that_leaves_while_its_write_waits_for_a_slot_stops_no_caching(make_bench, sent):
    memory = MemoryOrigin()
    limited = LimitedOrigin(memory, max_open=1)
    bench = await make_bench(origin=limited, rules=IMMUTABLE)
    memory.put("b", "k", b"old")
    slot = await limited.forwards.take()

    async def write():
        async with bench.engine.writing([REF]), bench.engine.forward(ForwardRequest("PUT", REF, "/b/k")):
            await asyncio.Event().wait()

    writer = asyncio.create_task(write())
    await asyncio.sleep(0.01)
    if sent:
        limited.forwards.give(slot)
        await asyncio.sleep(0.01)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    assert bool(bench.engine._versions.writing) is sent
    await bench.engine._writes.aclose()


@pytest.mark.parametrize("how", ["rule", "request", "ttl"])
async def test_a_read_that_must_be_checked_does_not_take_an_answer_from_before_it_began(make_bench, how):
    """The object is not known, and another reader's GET, from before the object changed, brings its page."""
    freshness = Freshness.REVALIDATE if how == "rule" else Freshness.TTL
    bench = await make_bench(rules=(Rule(freshness=freshness),))
    bench.origin.put("b", "k", b"1" * 3000)
    first, gate = await bench.held("k")
    bench.origin.gate = None
    bench.origin.put("b", "k", b"2" * 3000)
    bench.engine._callback_reads = bench.origin  # ``begin`` must not join the flight either.
    request = ReadRequest(REF, force_check=how == "request")
    if how != "ttl":
        assert bench.engine.begin(request, bench.engine.find_now(request) or UNKNOWN) is None
    second = asyncio.create_task(bench.get("k", force_check=how == "request"))
    for _ in range(20):
        await asyncio.sleep(0)
    gate.release()
    assert (await first)[0] == b"1" * 3000
    assert (await second)[0] == (b"1" if how == "ttl" else b"2") * 3000
    assert bench.origin.heads == (how != "ttl")
    await bench.settle()
    assert (await bench.get("k"))[0][:1] == (b"1" if how == "ttl" else b"2")


async def test_reads_that_must_be_checked_share_the_page(make_bench):
    bench = await make_bench(rules=(Rule(freshness=Freshness.REVALIDATE),))
    bench.origin.put("b", "k", b"1" * 3000)
    first, gate = await bench.held("k")
    others = [asyncio.create_task(bench.get("k")) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    gate.release()
    await first
    assert set(await asyncio.gather(*others)) == {(b"1" * 3000, Source.COALESCED)}
    assert len(bench.origin.reads) == 1


@pytest.mark.parametrize("again", [False, True])
async def test_a_head_that_must_be_checked_does_not_take_an_answer_from_before_it_began(make_bench, again):
    bench = await make_bench()
    bench.origin.put("b", "k", b"1")
    head, asked, go = bench.origin.head, asyncio.Event(), asyncio.Event()

    async def slowly(ref, **options):
        meta = await head(ref, **options)
        asked.set()
        await go.wait()
        return meta

    bench.origin.head = slowly
    first = asyncio.create_task(bench.engine.stat(ReadRequest(REF)))
    await asked.wait()
    bench.origin.put("b", "k", b"22")
    second = asyncio.create_task(bench.engine.stat(ReadRequest(REF, force_check=again)))
    await asyncio.sleep(0.01)
    go.set()
    assert [(await one)[0].size for one in (first, second)] == [1, 2 if again else 1]
