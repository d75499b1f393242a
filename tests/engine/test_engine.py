"""The read path gives the right bytes, reads them once from the origin, and leaves nothing behind."""

import asyncio

import pytest

from shadeproxy.core.conditions import Conditions
from shadeproxy.core.errors import (
    ObjectChanged,
    OriginAnswer,
    OriginUnavailable,
    RangeNotSatisfiable,
)
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import Barrier
from tests.support.turns import counted_turns

PAGE = 4096
BODY = bytes(range(256)) * 64  # four pages


def body_of(size: int) -> bytes:
    return (BODY * (size // len(BODY) + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE, 4 * PAGE + 7])
async def test_whole_object_cold_then_warm(make_bench, size):
    bench = await make_bench()
    bench.origin.put("b", "k", body_of(size))
    assert await bench.get("k") == (body_of(size), Source.ORIGIN)
    reads = bench.origin.gets
    assert await bench.get("k") == (body_of(size), Source.RAM)
    assert bench.origin.gets == reads


async def test_other_tasks_run_while_a_read_of_thousands_of_pages_begins(make_bench):
    """A read that its client gives up costs the others no more than a few milliseconds at a time."""
    bench = await make_bench(ram_bytes=16 << 20, budget_bytes=16 << 20)
    bench.origin.put("b", "k", body_of(2000 * PAGE))
    assert await bench.get("k") == (body_of(2000 * PAGE), Source.ORIGIN)
    await bench.settle()
    async with counted_turns() as turns, bench.engine.open(ReadRequest(ObjectRef("b", "k"))) as reading:
        assert reading.source is Source.RAM
    assert turns.count >= 7


@pytest.mark.parametrize(
    "spec",
    [
        RangeSpec(0, 0),
        RangeSpec(PAGE - 1, PAGE),
        RangeSpec(PAGE, None),
        RangeSpec(100, 3 * PAGE + 5),
        RangeSpec(None, 10),
        RangeSpec(None, 10**9),
        RangeSpec(4 * PAGE - 1, 10**9),
    ],
)
async def test_ranges_cold_then_warm(make_bench, spec):
    bench = await make_bench()
    bench.origin.put("b", "k", BODY)
    span = spec.resolve(len(BODY))
    for _ in range(2):
        body, source = await bench.get("k", range=spec)
        assert body == BODY[span.start : span.stop]
    assert source is Source.RAM


async def test_a_range_beyond_the_end_of_an_unknown_object_tells_its_size(make_bench):
    """A range beyond the end of an unknown object is refused with the object's size. The origin's 416 may
    lack the size, so the engine asks for the metadata.
    """
    bench = await make_bench()
    bench.origin.put("b", "k", b"x" * 10)
    with pytest.raises(RangeNotSatisfiable) as caught:
        await bench.get("k", range=RangeSpec(2 * PAGE, None))
    assert caught.value.size_bytes == 10


async def test_missing_object_is_404_and_is_asked_again(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "other", b"")
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k")
    assert (caught.value.status, caught.value.code) == (404, "NoSuchKey")
    bench.origin.put("b", "k", b"now")
    assert await bench.get("k") == (b"now", Source.ORIGIN)


async def test_many_clients_of_one_cold_object_cost_one_read_per_page(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", BODY)
    answers = await asyncio.gather(*(bench.get("k") for _ in range(50)))
    assert {body for body, _ in answers} == {BODY}
    assert sorted(source for _, source in answers).count(Source.ORIGIN) == 1
    assert bench.origin.gets == 4


async def test_a_leader_that_hangs_up_harms_nobody(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"z" * 2000)
    bench.origin.gate = gate = Barrier()
    leader = asyncio.create_task(bench.get("k"))
    await gate.reached.wait()
    follower = asyncio.create_task(bench.get("k"))
    while bench.stats.pages.coalesced < 1:
        await asyncio.sleep(0)
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)
    gate.release()
    assert await follower == (b"z" * 2000, Source.COALESCED)
    assert bench.origin.gets == 1


async def test_the_last_client_to_hang_up_ends_the_read(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"z" * 2000)
    bench.origin.gate = gate = Barrier()
    readers = [asyncio.create_task(bench.get("k")) for _ in range(3)]
    await gate.reached.wait()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bench.engine.assert_quiescent()
    assert len(bench.cache.residents) == 0


@pytest.mark.parametrize("steps", range(1, 40))
async def test_a_client_that_hangs_up_at_any_await_leaves_nothing(make_bench, steps):
    """A client that leaves at any await leaves nothing behind. The client leaves after ``steps`` turns of the
    event loop.
    """
    bench = await make_bench(disk_bytes=1 << 20)
    bench.origin.put("b", "k", BODY)
    reader = asyncio.create_task(bench.get("k"))
    for _ in range(steps):
        await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await bench.engine._filling.flights.drain()
    await asyncio.sleep(0)
    bench.engine.assert_quiescent()
    assert (await bench.get("k"))[0] == BODY


async def test_a_write_through_the_proxy_is_seen_by_the_next_read(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"old")
    await bench.get("k")
    async with bench.engine.writing([ObjectRef("b", "k")]):
        bench.origin.put("b", "k", b"newer")
    assert await bench.get("k") == (b"newer", Source.ORIGIN)
    meta, _ = await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
    assert meta.size == 5


async def test_a_read_that_began_before_a_write_is_not_kept_after_it(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"old" * 100)
    bench.origin.gate = gate = Barrier()
    reader = asyncio.create_task(bench.get("k"))
    await gate.reached.wait()
    async with bench.engine.writing([ObjectRef("b", "k")]):
        bench.origin.put("b", "k", b"new" * 100)
    gate.release()
    # The reader may get the old version. This version must not be cached, or mixed with the new one.
    assert (await reader)[0] == b"old" * 100
    assert len(bench.cache.residents) == 0
    assert await bench.get("k") == (b"new" * 100, Source.ORIGIN)


async def test_nothing_read_while_a_write_runs_is_kept(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"old")
    async with bench.engine.writing([ObjectRef("b", "k")]):
        assert (await bench.get("k"))[0] == b"old"
        assert len(bench.cache.residents) == 0
        bench.origin.put("b", "k", b"new")
    assert await bench.get("k") == (b"new", Source.ORIGIN)


async def test_what_is_cached_is_gone_before_a_write_starts(make_bench):
    """The cached version is dropped before a write starts. Otherwise a crash during the write could leave the
    old version in the cache for ever.
    """
    bench = await make_bench()
    bench.origin.put("b", "k", b"old")
    await bench.get("k")
    async with bench.engine.writing([ObjectRef("b", "k")]):
        assert len(bench.cache.residents) == 0


async def test_the_pages_of_a_long_object_are_dropped_in_many_turns_before_a_write(make_bench, monkeypatch):
    """An object of 100 GB has 25,000 pages. If one turn of the event loop dropped them all, no client would
    get an answer for seconds.
    """
    bench = await make_bench(ram_bytes=1 << 20)
    bench.origin.put("b", "k", b"old!" * (100 * PAGE // 4))
    await bench.get("k")
    await bench.settle()
    assert len(bench.cache.residents) == 100
    turn, turns, drop = 0, [], bench.cache.transfers.drop

    async def count():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def watched(slot, reason):
        turns.append(turn)
        drop(slot, reason)

    monkeypatch.setattr(bench.cache.transfers, "drop", watched)
    counting = asyncio.create_task(count())
    async with bench.engine.writing([ObjectRef("b", "k")]):
        assert len(bench.cache.residents) == 0
        bench.origin.put("b", "k", b"new")
    counting.cancel()
    assert len(turns) == 100
    assert max(turns.count(one) for one in set(turns)) <= 33
    assert await bench.get("k") == (b"new", Source.ORIGIN)


async def test_a_check_that_began_before_a_write_says_nothing_after_it(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"old")
    held, resume = asyncio.Event(), asyncio.Event()
    head = bench.origin.head

    async def slow_head(ref, **kwargs):
        meta = await head(ref, **kwargs)
        held.set()
        await resume.wait()
        return meta

    bench.origin.head = slow_head
    check = asyncio.create_task(bench.engine.stat(ReadRequest(ObjectRef("b", "k"))))
    await held.wait()
    async with bench.engine.writing([ObjectRef("b", "k")]):
        bench.origin.put("b", "k", b"newer")
    resume.set()
    await check
    bench.origin.head = head
    meta, _ = await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
    assert meta.size == 5


async def test_after_a_write_to_a_bucket_all_of_it_is_checked_and_nothing_else(make_bench):
    bench = await make_bench(rules=(Rule(freshness=Freshness.IMMUTABLE),))
    for bucket in ("b", "c"):
        for key in ("x/1", "y/2"):
            bench.origin.put(bucket, key, b"1")
            await bench.get(key, bucket=bucket)
    async with bench.engine.writing([ObjectRef("b", "")]):
        pass
    assert (await bench.get("x/1"))[1] is Source.RAM
    assert (await bench.get("y/2", bucket="c"))[1] is Source.RAM
    assert bench.origin.heads == 1
    bench.origin.denied.add(SHARED)  # The write may have taken this right away.
    with pytest.raises(OriginAnswer):
        await bench.get("y/2")


async def test_overwritten_behind_the_proxy_under_each_freshness_rule(make_bench):
    rules = (
        Rule(prefix="fixed/", freshness=Freshness.IMMUTABLE),
        Rule(prefix="checked/", freshness=Freshness.REVALIDATE),
        Rule(prefix="", freshness=Freshness.TTL, ttl_s=60),
    )
    bench = await make_bench(rules=rules)
    keys = ("fixed/k", "checked/k", "timed/k")
    for key in keys:
        bench.origin.put("b", key, b"old")
        await bench.get(key)
        bench.origin.put("b", key, b"new")
    assert (await bench.get("fixed/k"))[0] == b"old"
    assert (await bench.get("checked/k"))[0] == b"new"
    assert (await bench.get("timed/k"))[0] == b"old"
    bench.clock.advance(61)
    assert (await bench.get("fixed/k"))[0] == b"old"
    # The old version answers while the engine revalidates it.
    assert (await bench.get("timed/k"))[0] == b"old"
    while not bench.engine.idle:
        await asyncio.sleep(0.01)
    assert (await bench.get("timed/k"))[0] == b"new"


async def test_a_client_can_force_a_check(make_bench):
    bench = await make_bench(rules=(Rule(freshness=Freshness.IMMUTABLE),))
    bench.origin.put("b", "k", b"old")
    await bench.get("k")
    bench.origin.put("b", "k", b"new")
    assert (await bench.get("k", force_check=True))[0] == b"new"


async def test_origin_down_cached_objects_stay_readable_as_their_rule_allows(make_bench):
    rules = (Rule(prefix="checked/", freshness=Freshness.REVALIDATE), Rule(ttl_s=60))
    bench = await make_bench(rules=rules)
    for key in ("checked/k", "timed/k"):
        bench.origin.put("b", key, b"body")
        await bench.get(key)

    async def down(*_args, **_kwargs):
        raise OriginUnavailable("connection refused")

    bench.origin.head = down
    bench.clock.advance(3600)
    assert (await bench.get("timed/k"))[0] == b"body"
    with pytest.raises(OriginUnavailable):
        await bench.get("checked/k")
    while not bench.engine.idle:
        await asyncio.sleep(0.01)


async def test_a_change_noticed_before_anything_was_sent_is_read_anew(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"a" * 2 * PAGE)
    await bench.get("k", range=RangeSpec(0, PAGE - 1))
    bench.origin.put("b", "k", b"b" * 2 * PAGE)
    assert (await bench.get("k"))[0] == b"b" * 2 * PAGE


async def test_an_object_that_changes_between_two_pages_is_never_mixed(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"a" * 6 * PAGE)
    for cached in (0, 2):  # So one answer does not bring all missing pages.
        await bench.get("k", range=RangeSpec(cached * PAGE, (cached + 1) * PAGE - 1))
    got = b""
    with pytest.raises(ObjectChanged):
        async with bench.engine.open(ReadRequest(ObjectRef("b", "k"))) as reading:
            bench.origin.put("b", "k", b"b" * 6 * PAGE)
            async for piece in reading.body(Span(0, 6 * PAGE)):
                got += piece
    assert set(got) == {ord("a")}
    assert (await bench.get("k"))[0] == b"b" * 6 * PAGE


async def test_metadata_that_went_old_is_replaced_before_anything_is_sent(make_bench):
    bench = await make_bench(ram_bytes=1 << 16)
    bench.origin.put("b", "k", b"a" * 100)
    await bench.engine.stat(ReadRequest(ObjectRef("b", "k")))
    bench.origin.put("b", "k", b"b" * 200)
    assert (await bench.get("k"))[0] == b"b" * 200


async def test_conditions_that_end_in_304_fetch_no_page(make_bench):
    bench = await make_bench()
    etag = bench.origin.put("b", "k", BODY).etag
    request = ReadRequest(ObjectRef("b", "k"), conditions=Conditions(if_none_match=etag))
    async with bench.engine.open(request) as reading:
        assert reading.meta.etag == etag
    assert (bench.origin.heads, bench.origin.gets) == (1, 0)


async def test_a_version_that_is_gone_is_asked_for_once(make_bench):
    bench = await make_bench()
    bench.engine._versions.learn(ObjectRef("b", "k"), old := bench.origin.put("b", "k", b"old"))
    bench.origin.put("b", "k", b"newer")
    asked, open_read = [], bench.origin.open

    def note(ref, **options):
        asked.append(options["if_match"])
        return open_read(ref, **options)

    bench.origin.open = note
    assert await bench.get("k") == (b"newer", Source.ORIGIN)
    assert asked == [old.etag, None]
