"""Pinned pages stay cached, whatever else is read. Other pages are evicted as usual."""

import asyncio

import numpy as np
import pytest

from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.placement.pins import PINNED_SHARE, PinnedPrefix, Pins
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.policy.registry import POLICIES
from tests.support.purging import purge_under

SIZE = 16_000
PLACE = 16_384  # bytes that a record of such a page takes in a tier
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
KEPT = [f"keep/{n:03d}" for n in range(10)]
OTHERS = [f"rest/{n:03d}" for n in range(60)]


@pytest.fixture
def origin() -> MemoryOrigin:
    origin = MemoryOrigin()
    for key in (*KEPT, *OTHERS):
        origin.put("b", key, key.encode() * (SIZE // len(key)))
    return origin


@pytest.fixture
def make(make_bench, origin):
    """Return a function that makes a cache with room for 20 objects. With ``disk`` it has room for 12 objects
    in RAM and 20 on disk.
    """

    async def make(*, disk=False, **kwargs):
        return await make_bench(
            origin=origin,
            ram_bytes=(12 if disk else 20) * PLACE,
            disk_bytes=20 * PLACE if disk else 0,
            page_size=1 << 20,
            budget_bytes=8 << 20,
            **({"rules": IMMUTABLE} | kwargs),
        )

    return make


async def read(bench, keys, times=1) -> list[Source]:
    sources = []
    for key in list(keys) * times:
        body, source = await bench.get(key)
        assert body[: len(key)] == key.encode()
        sources.append(source)
        await bench.cache.drain()
    return sources


def hits(sources) -> int:
    return sum(source in (Source.RAM, Source.DISK) for source in sources)


# ---------------------------------------------------------------------- pins under pressure


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_what_is_pinned_before_it_is_read_survives_any_pressure(make, policy, disk):
    bench = await make(policy=policy, disk=disk)
    await bench.pin("keep/")
    await read(bench, OTHERS)  # These reads fill the cache before the first pinned page comes.
    await read(bench, KEPT)
    await read(bench, OTHERS, times=3)
    assert hits(await read(bench, KEPT)) == len(KEPT)


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("policy", ["default", "lru"])
async def test_what_is_pinned_while_it_is_cached_survives_any_pressure(make, policy, disk):
    bench = await make(policy=policy, disk=disk)
    await read(bench, KEPT)
    await bench.pin("keep/")
    await read(bench, OTHERS, times=3)
    assert hits(await read(bench, KEPT)) == len(KEPT)


async def test_without_the_pin_they_are_gone(make):
    """Without the pin the pages are evicted. So the reads of the tests above really press pages out of the
    cache.
    """
    bench = await make(policy="lru")
    await read(bench, KEPT)
    await read(bench, OTHERS)
    assert hits(await read(bench, KEPT)) == 0


async def test_what_is_unpinned_is_evicted_as_ever(make):
    bench = await make(policy="lru")
    await bench.pin("keep/")
    await read(bench, KEPT)
    await bench.unpin("keep/")
    await read(bench, OTHERS)
    assert bench.cached(KEPT) == 0


async def test_a_pin_inside_of_another_one_holds_on(make):
    bench = await make(policy="lru")
    await bench.pin("keep/")
    await bench.pin("keep/00")
    await read(bench, KEPT)
    await bench.unpin("keep/")
    await read(bench, OTHERS)
    assert bench.cached(KEPT) == len(KEPT)


async def test_a_prefix_in_the_middle_of_a_name_is_told_apart_by_the_keys(make):
    bench = await make(policy="lru")
    await read(bench, KEPT)
    await bench.pin("keep/003")
    await read(bench, OTHERS)
    assert [bench.cached([key]) for key in KEPT] == [key == "keep/003" for key in KEPT]


async def test_more_than_a_thousand_others_are_evicted_around_it(make_bench):
    """Pages can be pinned after the eviction pool has chosen them, and still stay. The pool holds its victims
    for a while.
    """
    origin = MemoryOrigin()
    keys = [f"o{n:04d}" for n in range(2400)]
    for key in keys:
        origin.put("b", key, key.encode())
    bench = await make_bench(origin=origin, ram_bytes=1200 * 512, policy="lru", rules=IMMUTABLE)
    for key in keys[:1300]:
        await bench.get(key)
    assert len(bench.cache.residents) > 1024
    drawn = bench.cache.placement._drawn[0]
    later = iter(keys[1300:])
    while drawn._left < 3:
        await bench.get(next(later))
    victims = await bench.cache._places.headers([slot for slot, *_ in drawn._queue])
    wanted = {header.page.ref.key for header in victims.values()}
    for key in wanted:
        await bench.pin(key)
    for key in later:
        await bench.get(key)
    assert bench.cached(wanted) == len(wanted) > 3


async def test_a_page_longer_than_its_neighbours_does_not_push_pinned_ones_out(make_bench):
    origin = MemoryOrigin()
    small = [f"keep/{n:03d}" for n in range(30)] + [f"rest/{n:03d}" for n in range(70)]
    for key in small:
        origin.put("b", key, bytes(4000))
    origin.put("b", "long", bytes(150_000))
    bench = await make_bench(
        origin=origin, ram_bytes=100 * 4608, page_size=1 << 20, policy="lru", rules=IMMUTABLE
    )
    for number in range(70):  # Read in this order, the records lie side by side in the segment.
        for key in small[number : number + 1] + small[30 + number : 31 + number]:
            await bench.get(key)
    await bench.pin("keep/")
    held = bench.cached(small[:30])
    assert held
    await bench.get("long")
    await bench.get("long")
    assert bench.cached(small[:30]) == held


async def test_nothing_is_evicted_in_vain_for_a_page_that_fits_nowhere_between_pinned_ones(make_bench):
    origin = MemoryOrigin()
    kept, others = ([f"{name}/{n:03d}" for n in range(48)] for name in ("keep", "rest"))
    for key in (*kept, *others):
        origin.put("b", key, bytes(4000))
    origin.put("b", "long", bytes(60_000))
    bench = await make_bench(
        origin=origin, ram_bytes=97 * 4608, page_size=1 << 20, policy="lru", rules=IMMUTABLE
    )
    # Read in this order, the records lie side by side in the segment.
    for pair in zip(others, kept, strict=True):
        for key in pair:
            await bench.get(key)
    await bench.pin("keep/")
    before = bench.cached(others)
    await bench.get("long")
    assert bench.cached(["long"]) == 0
    assert bench.cached(others) == before == len(others)


async def test_they_take_their_places_from_pages_that_are_soon_read_again(make):
    bench = await make()
    await read(bench, OTHERS[:20])
    await read(bench, OTHERS[20:32], times=40)
    assert bench.cached(OTHERS[20:32]) == 12
    await bench.pin("keep/")
    await read(bench, KEPT)
    assert hits(await read(bench, KEPT)) == len(KEPT)


async def test_pages_that_are_soon_read_again_share_what_pins_leave(make):
    bench = await make()
    await read(bench, OTHERS[:20])
    for _ in range(5):
        for key in OTHERS[20:40]:
            await read(bench, [key] * 4)
    await bench.pin("keep/")
    await read(bench, KEPT)
    assert await read(bench, OTHERS[40:41] * 2) == [Source.ORIGIN, Source.RAM]


# ---------------------------------------------------------------------- the share of pinned pages


@pytest.mark.parametrize("policy", ["default", "lru"])
async def test_pinned_pages_leave_a_tenth_to_others(make, policy):
    bench = await make(policy=policy)
    await bench.pin("")
    await read(bench, OTHERS, times=2)
    members = bench.cache.residents.members[0]
    capacity = bench.cache.media[0].tier.capacity_bytes
    assert 0.8 * capacity < members.pinned_bytes <= PINNED_SHARE * capacity
    pinned = members.pinned
    await read(bench, KEPT, times=2)
    assert members.pinned == pinned
    if policy == "lru":
        assert await read(bench, KEPT[-1:]) == [Source.RAM]


async def test_what_finds_no_room_is_served_and_cached_like_anything_else(make):
    bench = await make(policy="lru")
    await bench.pin("")
    await read(bench, OTHERS)
    assert await read(bench, KEPT[:1] * 2) == [Source.ORIGIN, Source.RAM]
    assert hits(await read(bench, OTHERS[:15])) == 15


async def test_room_that_comes_free_is_taken_by_what_was_left_out(make):
    bench = await make(policy="lru")
    await bench.pin("")
    await read(bench, [*OTHERS[:25], KEPT[0]])
    await bench.pin("keep/")
    await bench.unpin("")
    await read(bench, OTHERS)
    assert bench.cached(KEPT[:1]) == 1


async def test_pins_may_not_be_more_than_their_share_after_a_restart_either(make):
    bench = await make()
    await read(bench, OTHERS)
    await asyncio.to_thread(bench.cache.close)
    again = await make(pinned=("",), policy="lru")
    members = again.cache.residents.members[0]
    assert members.pinned >= 15
    assert members.pinned_bytes <= PINNED_SHARE * again.cache.media[0].tier.capacity_bytes


# ---------------------------------------------------------------------- restarts, writes and moves


@pytest.mark.parametrize("prefix", ["keep/", "keep/0"])
@pytest.mark.parametrize("clean", [True, False])
async def test_they_are_held_after_a_restart(make, prefix, clean):
    bench = await make()
    await read(bench, [*KEPT, *OTHERS])
    if clean:
        await asyncio.to_thread(bench.cache.close)
    else:
        await asyncio.to_thread(bench.cache.media[0].tier.close)
    again = await make(policy="lru", pinned=(prefix,))
    await read(again, OTHERS, times=2)
    assert hits(await read(again, KEPT)) == len(KEPT)


async def test_they_are_held_while_the_cache_is_still_taken_in(make):
    bench = await make()
    await read(bench, [*KEPT, *OTHERS])
    await asyncio.to_thread(bench.cache.close)
    again = await make(policy="lru", pinned=("keep/0",), recover=False)
    again.cache.start_recovery()
    while not len(again.cache.residents):
        await asyncio.sleep(0.001)
    await read(again, OTHERS, times=2)
    await again.cache.recovered()
    await again.cache.renew_pins()
    assert hits(await read(again, KEPT)) == len(KEPT)


async def test_writes_and_purges_remove_pinned_pages(make):
    bench = await make()
    await bench.pin("keep/")
    await read(bench, KEPT)
    async with bench.engine.writing([ObjectRef("b", KEPT[0])]):
        bench.origin.put("b", KEPT[0], b"new")
    assert (await bench.get(KEPT[0])) == (b"new", Source.ORIGIN)
    await purge_under(bench.engine, "b", "keep/")
    assert bench.cached(KEPT) == 0
    assert bench.cache.residents.members[0].pinned_bytes == 0


async def test_a_pin_while_a_page_is_written(make):
    """A page that is pinned while it is written stays. The disk tier writes on another thread, so the engine
    checks the pins again after the write.
    """
    bench = await make(disk=True, policy="lru")
    await read(bench, OTHERS[:13])
    coming = asyncio.create_task(bench.get(OTHERS[13]))  # This read demotes one of the pages above.
    while bench.cache.transfers.idle:
        await asyncio.sleep(0)
    await bench.pin("rest/00")
    await coming
    await bench.settle()
    assert sum(members.pinned for members in bench.cache.residents.members) == 10
    await read(bench, [*OTHERS[14:], *KEPT])
    assert bench.cached(OTHERS[:10]) == 10


async def test_an_unpin_while_a_page_is_written(make):
    bench = await make(disk=True, policy="lru")
    await bench.pin("rest/0")
    await read(bench, OTHERS[:15])  # These are more pages than RAM has room for.
    coming = asyncio.create_task(bench.get(OTHERS[15]))
    while bench.cache.transfers.idle:
        await asyncio.sleep(0)
    await bench.unpin("rest/0")
    await coming
    await bench.settle()
    assert [members.pinned for members in bench.cache.residents.members] == [0, 0]


async def test_a_pinned_page_of_the_disk_tier_moves_up_and_stays_pinned(make):
    bench = await make(disk=True, policy="lru")
    await read(bench, OTHERS[:20])
    await bench.pin("rest/000")
    assert (await read(bench, OTHERS[:1])) == [Source.DISK]
    assert (await read(bench, OTHERS[:1])) == [Source.RAM]
    assert [members.pinned for members in bench.cache.residents.members] == [1, 0]
    await read(bench, [*OTHERS[1:], *KEPT])
    assert (await read(bench, OTHERS[:1])) == [Source.RAM]


# ---------------------------------------------------------------------- rules


async def test_a_rule_pins_and_the_first_that_fits_decides(make):
    rules = (Rule(prefix="keep/00", pin=False), Rule(bucket="?", prefix="keep/", pin=True))
    bench = await make(policy="lru", rules=rules)
    for key in ("keep/100", "keep/101"):
        bench.origin.put("b", key, bytes(SIZE))
        await bench.get(key)
    await read(bench, KEPT)
    await read(bench, OTHERS)
    assert bench.cached(["keep/100", "keep/101"]) == 2
    assert bench.cached(KEPT) == 0


async def test_rules_that_change_are_carried_over(make):
    bench = await make(policy="lru")
    await read(bench, KEPT)
    bench.rules.adopt((Rule(prefix="keep/", pin=True),))
    bench.cache.pins.changed()
    await bench.cache.renew_pins()
    await read(bench, OTHERS)
    assert bench.cached(KEPT) == len(KEPT)
    bench.rules.adopt(())
    bench.cache.pins.changed()
    await bench.cache.renew_pins()
    await read(bench, OTHERS)
    assert bench.cached(KEPT) == 0


@pytest.mark.parametrize("prefix", ["keep/", "keep/0"])
async def test_pages_that_another_proxy_caches_now_are_not_kept(make, prefix):
    """A pin does not hold pages whose objects another proxy of the cluster owns by now. The share of a proxy
    changes as proxies come and go. Pinned pages of lost objects would fill the cache, and no client would
    read them.
    """
    bench = await make(policy="lru")
    await bench.pin(prefix)
    await read(bench, KEPT)
    moved = {object_hash(ObjectRef("b", key)) for key in KEPT[1:]}
    pins = bench.cache.pins
    pins.share = OwnedShare(
        1,
        lambda hashes: np.array([hashed not in moved for hashed in hashes.tolist()]),
        lambda hashed: hashed not in moved,
    )
    pins.changed()
    await bench.cache.renew_pins()
    assert [pins.covers(ObjectRef("b", key)) for key in KEPT] == [True] + [False] * (len(KEPT) - 1)
    await read(bench, OTHERS, times=2)
    assert bench.cached(KEPT) == bench.cached(KEPT[:1]) == 1


RULES = (
    Rule(prefix="a/tmp/", pin=False),
    Rule(bucket="x*", prefix="a/", pin=True),
    Rule(bucket="x*", prefix="b/deep/", pin=True),
    Rule(prefix="c/"),
)


@pytest.mark.parametrize("rules", [(), RULES, (*RULES, Rule(bucket="xx", pin=True))])
@pytest.mark.parametrize("prefixes", [(), ("",), ("a/", "b/"), ("b/deep/er", "nothing"), ("d",)])
def test_what_is_said_of_a_group_is_true_of_every_key_in_it(rules, prefixes):
    pins = Pins(Rules(rules))
    for prefix in prefixes:
        pins.add(PinnedPrefix("xx", prefix, 0.0))
    tails = ["", "1", "tmp/1", "deep/1", "deep/er/1"]
    for bucket in ("xx", "yy"):
        for head in ("a/", "b/", "c/", "d/", "nothing/"):
            covered = {pins.covers(ObjectRef(bucket, head + tail)) for tail in tails}
            said = pins.covers_group(bucket, head)
            assert said is None or covered == {said}, (bucket, head)
            if not rules:
                assert (said is None) == (len(covered) > 1)
        # Test keys without a slash, and keys whose groups lie beyond the bound on the number of groups.
        said = pins.covers_group(bucket, "")
        keys = ["1", "d1", "a/1", "b/deep/1", "c/1"]
        assert said is None or {pins.covers(ObjectRef(bucket, key)) for key in keys} == {said}


async def test_a_slot_that_changes_hands_while_keys_are_asked_is_not_pinned(make, monkeypatch):
    bench = await make()
    await read(bench, ["keep/000", "rest/000"])
    cache = bench.cache
    ask = cache.names.ask

    async def meanwhile(pages, wanted):
        named = await ask(pages, wanted)
        leaving = cache.residents.pages_of(object_hash(ObjectRef("b", "keep/000")))
        if leaving:
            cache.drop_object(ObjectRef("b", "keep/000"), "invalidated")
            await read(bench, ["rest/001"])
            assert cache.residents.pages_of(object_hash(ObjectRef("b", "rest/001"))) == leaving
        return named

    monkeypatch.setattr(cache.names, "ask", meanwhile)
    # The pinned prefix is only a part of a group, so the engine must look at single keys.
    cache.pins.add(PinnedPrefix("b", "rest/000", 0.0))
    await bench.pin("keep/")
    held = cache.residents.pinned
    (slot,) = cache.residents.pages_of(object_hash(ObjectRef("b", "rest/001")))
    assert not held[slot]
