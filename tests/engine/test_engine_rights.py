"""Rights to cached bytes, purges, the counting of reads, and the end of an engine."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from shadeproxy.core.conditions import Conditions
from shadeproxy.core.errors import (
    OriginAnswer,
    ShuttingDown,
)
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, ObjectMeta, ObjectRef, Source, Upstream
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.index import metadata
from shadeproxy.engine.index.metadata import MetadataCache
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import Barrier
from tests.support.purging import purge_under

PAGE = 4096
BODY = bytes(range(256)) * 64  # four pages


def body_of(size: int) -> bytes:
    return (BODY * (size // len(BODY) + 1))[:size]


async def test_a_hit_is_authorised_like_a_miss(make_bench):
    bench = await make_bench(verdicts=True)
    bench.origin.put("b", "k", b"secret")
    alice, mallory = Upstream("alice"), Upstream("mallory")
    bench.origin.denied.add(mallory)
    assert (await bench.get("k", upstream=alice))[0] == b"secret"
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k", upstream=mallory)
    assert caught.value.status == 403
    assert await bench.get("k", upstream=alice) == (b"secret", Source.RAM)
    # The origin is asked again after the verdict has expired. It is also asked after a write, because the
    # write may have changed the right.
    bench.origin.denied.add(alice)
    assert (await bench.get("k", upstream=alice))[0] == b"secret"
    bench.clock.advance(61)
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=alice)


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_a_reader_is_not_refused_because_of_others_whose_flights_it_joins(make_bench, count):
    """``count`` readers without the right fetch the page, one after another."""
    bench, mallory = await make_bench(verdicts=True), Upstream("mallory")
    bench.origin.put("b", "k", b"secret")
    for upstream in (mallory, SHARED):
        await bench.get("k", upstream=upstream)  # Both have a verdict from now on.
    await bench.settle()
    bench.cache.drop(bench.cache.residents.first_page(object_hash(ObjectRef("b", "k"))), "policy")
    opened, joined, refused = bench.origin.open, asyncio.Event(), []

    def begin():
        refused.append(asyncio.create_task(bench.get("k", upstream=mallory)))

    @asynccontextmanager
    async def refuse(ref, **options):
        if options.get("upstream") != mallory:
            async with opened(ref, **options) as read:
                yield read
            return
        await joined.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        if len(refused) < count:
            # This reader begins when the flight has failed, and before the reader that joined it wakes.
            asyncio.get_running_loop().call_soon(begin)
        raise OriginAnswer(403, "AccessDenied", "Access Denied")

    bench.origin.open = refuse
    begin()
    await asyncio.sleep(0)
    reader = asyncio.create_task(bench.get("k"))
    await asyncio.sleep(0.01)
    joined.set()
    assert (await reader)[0] == b"secret"
    answers = await asyncio.gather(*refused, return_exceptions=True)
    assert [answer.status for answer in answers] == [403] * count


@pytest.mark.parametrize("freshness", [Freshness.TTL, Freshness.IMMUTABLE])
async def test_what_clients_were_granted_is_checked_once_the_origin_decides_no_more(make_bench, freshness):
    """When the origin no longer decides on rights, grants to single clients do not count any more. This
    happens when the last client with an upstream of its own leaves the configuration.
    """
    bench = await make_bench(verdicts=True, rules=(Rule(freshness=freshness),))
    bench.origin.put("b", "k", b"secret")
    bench.origin.denied.add(SHARED)
    assert (await bench.get("k", upstream=Upstream("alice")))[0] == b"secret"
    bench.engine.forget_rights(None)
    for _ in range(2):
        with pytest.raises(OriginAnswer) as caught:
            await bench.get("k", upstream=SHARED)
        assert caught.value.status == 403
    bench.origin.denied.clear()
    assert await bench.get("k", upstream=SHARED) == (b"secret", Source.RAM)


async def test_verdicts_fall_with_a_write(make_bench):
    bench = await make_bench(verdicts=True)
    bench.origin.put("b", "k", b"secret")
    await bench.get("k", upstream=SHARED)
    bench.origin.denied.add(SHARED)
    async with bench.engine.writing([ObjectRef("b", "k")]):
        pass
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=SHARED)


@pytest.mark.parametrize("before", [True, False])
async def test_what_is_asked_while_rights_change_is_asked_again(make_bench, before):
    """An answer that was requested before the rights changed does not grant a read later. ``before`` says
    whether the origin decided on the rights of clients at that time.
    """
    bench = await make_bench(verdicts=before)
    bench.origin.put("b", "k", b"secret")
    asked = bench.origin.open

    def ask(ref, **options):
        bench.engine.forget_rights(Verdicts(60.0))
        return asked(ref, **options)

    bench.origin.open = ask
    assert (await bench.get("k"))[0] == b"secret"
    bench.origin.denied.add(SHARED)
    with pytest.raises(OriginAnswer):
        await bench.get("k", upstream=SHARED)


async def test_purge_counts_first_and_then_drops(make_bench):
    bench = await make_bench()
    for n in range(10):
        bench.origin.put("b", f"p/{n}", b"12345")
        bench.origin.put("b", f"q/{n}", b"12345")
        await bench.get(f"p/{n}")
        await bench.get(f"q/{n}")
    assert await purge_under(bench.engine, "b", "p/", dry_run=True) == (10, 10, 50)
    assert (await bench.get("p/1"))[1] is Source.RAM
    assert await purge_under(bench.engine, "b", "p/") == (10, 10, 50)
    assert (await bench.get("p/1"))[1] is Source.ORIGIN
    assert (await bench.get("q/1"))[1] is Source.RAM


async def test_a_purge_ends_though_readers_do_not(make_bench):
    """A purge ends although clients continue to read. Pages that clients fetch during the purge are newer
    than the purge, so they stay.
    """
    bench = await make_bench()
    ask, looks = bench.cache.names.ask, []
    for n in range(10):
        bench.origin.put("b", f"p/{n}", b"old")
        await bench.get(f"p/{n}")
        bench.origin.put("b", f"p/{n}", b"new")

    async def look_beside_readers(pages, wanted):
        for n in range(10):
            await bench.get(f"p/{n}")
        found = await ask(pages, wanted)
        looks.append(len(found.wanted))
        assert len(looks) < 10
        return found

    bench.cache.names.ask = look_beside_readers
    assert (await purge_under(bench.engine, "b", "p/"))[0] == 10
    # The purge read the keys once, to count the pages. When it dropped them, it read only keys of new pages.
    assert looks == [10, 0]
    for n in range(10):
        assert (await bench.get(f"p/{n}"))[0] == b"new"


@pytest.mark.parametrize("prefix", ["", "p/"])
async def test_a_purge_lets_others_run_every_few_pages(make_bench, prefix):
    """A purge lets other tasks run after every few pages. It repeats some steps for each page or object. It
    never does all repetitions of a step in one turn of the loop.
    """
    count = 3000
    bench = await make_bench(budget_bytes=1 << 22)
    for n in range(count):
        bench.origin.put("b", f"p/{n}", b"x")
        await bench.get(f"p/{n}")
    turn, steps = 0, []

    def counted(function):
        def call(*args, **kwargs):
            steps.append(turn)
            return function(*args, **kwargs)

        return call

    async def others():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    bench.cache.transfers.drop = counted(bench.cache.transfers.drop)
    bench.cache.transfers.drop_unplaced = counted(bench.cache.transfers.drop_unplaced)
    beside = asyncio.create_task(others())
    assert (await purge_under(bench.engine, "b", prefix))[0] == count
    beside.cancel()
    assert len(steps) >= count
    assert max(steps.count(one) for one in set(steps)) <= 64


async def test_what_is_known_of_objects_is_forgotten_in_slices():
    known = MetadataCache()
    for n in range(3 * metadata.SLICE):
        known.learn(ObjectRef("b", f"p/{n}"), ObjectMeta('"e"', 1), 1.0)
    known.learn(ObjectRef("b", "q"), ObjectMeta('"e"', 1), 1.0)
    forgetting = asyncio.create_task(known.forget_prefix("b", "p/"))
    sizes = []
    while not forgetting.done():
        sizes.append(len(known))
        await asyncio.sleep(0)
    assert all(before - after <= metadata.SLICE for before, after in pairwise(sizes))
    assert len(known) == 1


class CountedRef(ObjectRef):
    """A reference that counts how often any reference was hashed. Each hash means a lookup in memory that is
    not in the processor's cache.
    """

    hashed = 0

    def __hash__(self):
        CountedRef.hashed += 1
        return super().__hash__()


def known_objects(count):
    known = MetadataCache(count)
    for n in range(count):
        known.learn(CountedRef("b", f"p/{n}"), ObjectMeta('"e"', 1), 1.0)
    return known


async def test_a_turn_of_forgetting_looks_up_one_slice():
    known = known_objects(20 * metadata.SLICE)
    forgetting = asyncio.create_task(known.forget_prefix("b", "p/"))
    while not forgetting.done():
        CountedRef.hashed = 0
        await asyncio.sleep(0)
        assert CountedRef.hashed <= 2 * metadata.SLICE
    assert len(known) == 0


def test_a_bucket_is_forgotten_without_a_step_for_each_object():
    known = known_objects(20 * metadata.SLICE)
    known.learn(ObjectRef("other", "k"), ObjectMeta('"e"', 1), 1.0)
    known.learn(ObjectRef("b", "k", "theirs"), ObjectMeta('"e"', 1), 1.0)
    CountedRef.hashed = 0
    known.forget_bucket("b")
    assert CountedRef.hashed == 0
    assert all(known.get(ObjectRef("b", f"p/{n}")) is None for n in range(20 * metadata.SLICE))
    assert known.get(ObjectRef("other", "k")) is not None
    assert known.get(ObjectRef("b", "k", "theirs")) is not None


@pytest.mark.parametrize("complete", [False, True])
def test_an_answer_after_its_bucket_was_forgotten_counts(complete):
    known, ref = MetadataCache(), ObjectRef("b", "k")
    richer = ObjectMeta('"e"', 1, (("Content-Type", "text/old"), ("Cache-Control", "no-store")))
    known.learn(ref, richer, 2.0)
    known.forget_bucket("b")
    learned = known.learn(ref, ObjectMeta('"e"', 1), 1.0, complete=complete)
    assert known.get(ref) is learned
    # Header fields and the time of the check come only from the new answer.
    assert learned.meta.headers == ()
    assert learned.validated_s == 1.0


def test_a_body_proves_metadata_unless_another_version_is_known():
    known, ref = MetadataCache(2), ObjectRef("b", "k")
    first, other = ObjectMeta('"e"', 1), ObjectMeta('"f"', 2)
    assert known.learn_unless_other(ref, first, 1.0)
    assert not known.learn_unless_other(ref, other, 2.0)
    assert (known.get(ref).meta, known.get(ref).validated_s) == (first, 1.0)
    assert known.learn_unless_other(ref, first, 3.0)
    assert known.get(ref).validated_s == 3.0
    # After the bucket is forgotten, older metadata does not count as another version.
    known.forget_bucket("b")
    assert known.learn_unless_other(ref, other, 4.0)
    assert known.get(ref).meta == other
    for key in ("l", "m"):
        assert known.learn_unless_other(ObjectRef("b", key), first, 5.0)
    assert len(known) == 2


async def test_a_closing_engine_takes_no_new_reads_and_finishes_the_old(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", b"z" * 2000)
    bench.origin.gate = gate = Barrier()
    reader = asyncio.create_task(bench.get("k"))
    await gate.reached.wait()
    closing = asyncio.create_task(bench.engine.aclose())
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await bench.get("k")
    gate.release()
    assert (await reader)[0] == b"z" * 2000
    await closing


async def test_hits_and_misses_are_counted_once_per_get(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", BODY)
    await bench.get("k")
    await bench.get("k")
    await bench.get("k", range=RangeSpec(0, 9))
    totals = bench.counted_stats().snapshot()["totals"]
    assert totals["requests"] == 3
    assert totals["hit_ratio"] == pytest.approx(2 / 3)
    assert totals["byte_hit_ratio"] == pytest.approx((len(BODY) + 10) / (2 * len(BODY) + 10))


async def test_a_get_whose_head_was_refused_without_a_word_gets_the_origins_words(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "other", b"")

    async def bare(*_args, **_kwargs):
        raise OriginAnswer(404, "")

    bench.origin.head = bare
    with pytest.raises(OriginAnswer) as caught:
        await bench.get("k", conditions=Conditions(if_none_match='"x"'))
    assert caught.value.code == "NoSuchKey"


@pytest.mark.parametrize("body", [BODY, b""])
async def test_an_object_that_is_written_after_its_head_was_refused_is_read(make_bench, body):
    bench = await make_bench()
    head = bench.origin.head

    async def bare(*_args, **_kwargs):
        bench.origin.head = head
        bench.origin.put("b", "k", body)
        raise OriginAnswer(404, "")

    bench.origin.head = bare
    assert (await bench.get("k", conditions=Conditions(if_none_match='"x"')))[0] == body
