"""Listings of the cached objects below a prefix."""

import asyncio

import pytest

from shadeproxy.core.errors import ShuttingDown
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.rules import Age
from shadeproxy.engine.storage import listing, object_names
from tests.support.engine import PAGE

KEYS = ["a", "d/1", "d/10", "d/2", "d/ä", "d/\U0001f600", "d/\uffee", "e"]


async def filled(make_bench, **options):
    bench = await make_bench(**options)
    for key in KEYS:
        bench.origin.put("b", key, b"x" * 100)
        bench.origin.put("other", key, b"y" * 100)
        await bench.get(key)
        await bench.get(key, bucket="other")
    await bench.settle()
    return bench


async def listed(bench, prefix, *, bucket="b", start_after="", limit=100):
    refs, more = await bench.cache.listing.under(bucket, prefix, start_after=start_after, limit=limit)
    assert {ref.bucket for ref in refs} <= {bucket}
    return [ref.key for ref in refs], more


async def test_objects_are_listed_in_utf8_order_and_in_parts(make_bench, monkeypatch):
    # With such small limits, a listing of eight objects passes through all steps.
    monkeypatch.setattr(object_names, "ASKED", 2)
    monkeypatch.setattr(object_names, "_SLICE", 3)
    bench = await filled(make_bench)
    below = ["d/1", "d/10", "d/2", "d/ä", "d/\uffee", "d/\U0001f600"]
    assert await listed(bench, "d/") == (below, 0)
    assert await listed(bench, "d/", limit=2) == (["d/1", "d/10"], 4)
    assert await listed(bench, "d/", limit=2, start_after="d/10") == (["d/2", "d/ä"], 2)
    assert await listed(bench, "d/1") == (["d/1", "d/10"], 0)
    assert await listed(bench, "") == (["a", *below, "e"], 0)
    assert await listed(bench, "f") == ([], 0)
    assert await listed(bench, "", bucket="nothing") == ([], 0)
    bench.cache.drop_object(ObjectRef("b", "d/10"), "test")
    assert await listed(bench, "d/1") == (["d/1"], 0)


async def test_a_call_that_continues_a_listing_reads_only_new_keys(make_bench, monkeypatch):
    bench = await filled(make_bench)
    asked, ask = [], bench.cache.names.ask

    async def noted(pages, wanted):
        asked.append(len(set(pages.hashes.tolist())))
        return await ask(pages, wanted)

    monkeypatch.setattr(bench.cache.names, "ask", noted)
    assert await listed(bench, "d/", limit=2) == (["d/1", "d/10"], 4)
    bench.origin.put("b", "d/11", b"new")
    await bench.get("d/11")
    bench.cache.drop_object(ObjectRef("b", "d/ä"), "test")
    assert await listed(bench, "d/", limit=2, start_after="d/10") == (["d/11", "d/2"], 2)
    assert await listed(bench, "d/", limit=9, start_after="d/2") == (["d/\uffee", "d/\U0001f600"], 0)
    assert asked == [8, 1, 0]
    # A listing of other keys leaves these alone, and one that begins before them reads again.
    assert await listed(bench, "d/1", start_after="d/1") == (["d/10", "d/11"], 0)
    assert (await listed(bench, "d/1"))[0] == ["d/1", "d/10", "d/11"]
    assert asked == [8, 1, 0, 8, 8]


async def test_keys_of_a_listing_are_kept_for_a_time_only(make_bench, monkeypatch):
    monkeypatch.setattr(listing, "_KEPT_S", 1.0)
    bench = await filled(make_bench)
    kept = bench.cache.listing._kept
    for prefix in ("a", "d/", "e"):
        await listed(bench, prefix)
    assert [place.key for place in kept] == ["d/", "e"]
    while kept:
        await asyncio.sleep(0.01)


async def test_an_object_whose_first_page_left_is_listed_with_the_time_of_another_page(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"x" * 3 * PAGE)
    await bench.get("k", range=RangeSpec(PAGE, 2 * PAGE - 1))
    await bench.settle()
    ref = ObjectRef("b", "k")
    known, age, pages = await bench.engine.inspect(ref)
    assert (known.meta.size, age) == (3 * PAGE, Age.FRESH)
    assert [page[:3] for page in pages] == [(1, "ram", PAGE)]
    # Forget the metadata. After a restart the memory does not have it either.
    bench.engine._versions.forget(ref)
    known, age, again = await bench.engine.inspect(ref)
    assert (known.meta.size, known.validated_s) == (3 * PAGE, bench.clock.now_s())
    assert (age, again) == (Age.FRESH, pages)
    assert await listed(bench, "") == (["k"], 0)
    assert bench.cache.residents.first_page(object_hash(ref)) is None


async def test_looking_at_a_million_slots_yields_between_steps(make_bench, monkeypatch):
    """A look at a million slots lets other tasks run. Each step examines a bounded number of slots."""
    bench = await filled(make_bench)
    table, steps, turns = bench.cache.residents, [], []
    in_groups = type(table).in_groups
    monkeypatch.setattr(type(table), "slots", 1_000_000)

    def noted(self, groups, start, stop):
        steps.append((stop - start, len(turns)))
        return in_groups(self, groups, start, stop)

    monkeypatch.setattr(type(table), "in_groups", noted)

    async def others():
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    assert len((await listed(bench, "d/"))[0]) == 6
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert max(size for size, _ in steps) <= 1 << 15
    assert len({turn for _, turn in steps}) == len(steps) > 30


async def test_a_listing_and_a_count_end_when_the_cache_closes_and_blame_no_tier(make_bench, monkeypatch):
    """A control call may outlive its connection, and the cache."""
    monkeypatch.setattr(object_names, "ASKED", 2)
    bench = await filled(make_bench)
    await asyncio.to_thread(bench.cache.close)
    for call in (
        bench.cache.listing.under("b", "d/", start_after="", limit=9),
        bench.cache.find_under("b", "d/"),
    ):
        with pytest.raises(ShuttingDown, match="the proxy is shutting down"):
            await call
    assert bench.stats.snapshot()["tiers"]["ram"]["errors"] == {}
