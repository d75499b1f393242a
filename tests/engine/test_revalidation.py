"""Freshness of many objects: few requests, every change seen, nothing lost by an odd server."""

import asyncio
from dataclasses import replace

import pytest

from shadeproxy.core.errors import OriginAnswer, OriginUnavailable
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule


async def test_many_stale_objects_are_checked_by_listing(make_bench):
    bench = await make_bench(rules=(Rule(freshness=Freshness.TTL, ttl_s=60),))
    keys = [f"d/{n:04d}" for n in range(300)]
    for key in keys:
        bench.origin.put("b", key, b"1")
        await bench.get(key)
    bench.clock.advance(61)
    bench.origin.put("b", keys[7], b"22")
    for key in keys:
        await bench.get(key)
    while not bench.engine.idle:
        await asyncio.sleep(0.01)
    assert bench.origin.lists <= 3
    assert bench.origin.heads <= 10
    assert (await bench.get(keys[7]))[0] == b"22"
    bench.clock.advance(30)
    assert (await bench.get(keys[8]))[1] is Source.RAM


async def stale(make_bench, count):
    """Objects that were cached more than their TTL ago; one of them is another since."""
    bench = await make_bench(rules=(Rule(freshness=Freshness.TTL, ttl_s=60),))
    keys = [f"d/{n:04d}" for n in range(count)]
    for key in keys:
        bench.origin.put("b", key, b"1")
        await bench.get(key)
    bench.clock.advance(61)
    bench.origin.put("b", keys[-1], b"22")
    return bench, keys


async def settled(bench):
    while not bench.engine.idle:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("order", [1, -1])
async def test_stale_objects_that_are_read_one_after_another_are_listed_too(make_bench, order):
    """One listing speaks for all of its prefix that is cached."""
    bench, keys = await stale(make_bench, 60)
    for key in keys[::order]:
        await bench.get(key)
        await settled(bench)
    assert bench.origin.heads < 10
    assert bench.origin.lists == 1
    assert (await bench.get(keys[-1]))[0] == b"22"


async def test_of_a_long_prefix_what_follows_the_key_is_listed(make_bench, monkeypatch):
    bench, keys = await stale(make_bench, 60)
    listing = bench.origin.list_objects

    async def short(*args, **options):
        return await listing(*args, **options, max_keys=20)

    monkeypatch.setattr(bench.origin, "list_objects", short)
    for key in [*keys[30:], *keys[:30]]:
        await bench.get(key)
        await settled(bench)
    assert bench.origin.heads < 20
    assert bench.origin.lists <= 6
    assert (await bench.get(keys[-1]))[0] == b"22"


@pytest.mark.parametrize(
    "refusal", [OriginAnswer(403, "AccessDenied", "Access Denied"), OriginUnavailable("timed out")]
)
async def test_where_listing_is_refused_each_object_is_asked_for(make_bench, refusal):
    bench, keys = await stale(make_bench, 20)

    async def refuse(*_args, **_kwargs):
        raise refusal

    bench.origin.list_objects = refuse
    for key in keys:
        await bench.get(key)
    await settled(bench)
    assert bench.origin.heads == 20
    assert (await bench.get(keys[-1]))[0] == b"22"


async def test_an_object_that_cannot_be_asked_for_keeps_no_other_from_being_asked(make_bench):
    bench, keys = await stale(make_bench, 5)
    head = bench.origin.head

    async def fails(ref, **options):
        if ref.key == keys[0]:
            raise OriginUnavailable("the origin answered 500")
        return await head(ref, **options)

    bench.origin.head = fails
    for key in keys:
        await bench.get(key)
    await settled(bench)
    assert (await bench.get(keys[-1]))[0] == b"22"


async def test_what_a_listing_shows_to_be_another_version_is_dropped_unasked(make_bench):
    bench, keys = await stale(make_bench, 60)
    for key in keys:
        bench.origin.put("b", key, b"333")
    bench.engine.check_listed("b", "d/", 1)
    await settled(bench)
    assert (bench.origin.lists, bench.origin.heads) == (1, 3)  # a few bear it out
    for key in keys:
        assert (await bench.get(key))[0] == b"333"


async def test_a_server_whose_listings_tell_other_etags_loses_nothing_by_them(make_bench):
    bench, keys = await stale(make_bench, 60)
    listing = bench.origin.list_objects

    async def strange(*args, **options):
        page = await listing(*args, **options)
        return replace(page, entries=tuple(replace(one, etag='"strange"') for one in page.entries))

    bench.origin.list_objects = strange
    bench.engine.check_listed("b", "d/", 1)
    await settled(bench)
    assert (await bench.get(keys[5]))[1] is Source.RAM


async def test_a_prefix_is_checked_by_listing_it(make_bench):
    bench, keys = await stale(make_bench, 60)
    bench.engine.check_listed("b", "d/", 1)
    await settled(bench)
    assert (bench.origin.lists, bench.origin.heads) == (1, 1)
    for key in keys:
        assert (await bench.get(key))[0] == (b"22" if key == keys[-1] else b"1")
    await settled(bench)
    assert (bench.origin.lists, bench.origin.heads) == (1, 1)


async def test_a_listing_that_was_asked_for_before_a_write_undoes_nothing(make_bench):
    bench, keys = await stale(make_bench, 20)
    listing, written = bench.origin.list_objects, asyncio.Event()

    async def late(*args, **kwargs):
        page = await listing(*args, **kwargs)
        await written.wait()
        return page

    bench.origin.list_objects = late
    bench.engine.check_listed("b", "d/", 1)
    await asyncio.sleep(0)
    bench.origin.put("b", keys[0], b"333")
    await bench.engine.purge("b", keys[0], dry_run=False)
    assert (await bench.get(keys[0]))[0] == b"333"
    written.set()
    await settled(bench)
    assert (await bench.get(keys[0]))[0] == b"333"


@pytest.mark.parametrize(("before", "after"), [("", "in a week"), ("in a week", "today"), ("today", "")])
async def test_what_a_bucket_says_of_its_objects_shows_after_it_was_changed(make_bench, before, after):
    """Of one version other fields are sent, as after a change of when objects expire: more, others, fewer."""
    bench = await make_bench()

    def tell(when):
        bench.origin.put("b", "k", b"body", (("x-amz-expiration", when),) if when else ())

    tell(before)
    for _ in range(2):
        await bench.get("k")
    async with bench.engine.writing([ObjectRef("b", "")]):
        tell(after)
    for _ in range(2):
        async with bench.engine.open(ReadRequest(ObjectRef("b", "k"))) as reading:
            assert reading.source is Source.RAM
            assert (reading.meta.header("x-amz-expiration") or "") == after
    assert bench.origin.heads == 1
