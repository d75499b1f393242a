"""``Warm``: its reads, the objects that it skips, and its end."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shadeproxy.core.errors import OriginAnswer, OriginUnavailable, Overloaded
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import Intent, ListPage, ObjectRef, Source
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.hints.hashing import object_hash
from shadeproxy.origin.base import Origin, PassOn
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy.prefetch.warm import Warm
from tests.support.prefetching import until
from tests.support.purging import purge_under

PAGE = 4096
RECORD = 4608  # bytes that the record of such a page takes in a tier
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)


class Refusing:
    """An origin like ``inner`` in which reads of some keys fail, or all reads for a while."""

    def __init__(self, inner: Origin) -> None:
        self.inner = inner
        self.errors: dict[str, Exception] = {}
        self.crowded = 0
        self.listing: Exception | None = None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open(self, ref, **options):
        if self.crowded and options["intent"] is Intent.PREFETCH:
            self.crowded -= 1
            raise Overloaded("no read to spare")
        if ref.key in self.errors:
            raise self.errors[ref.key]
        return self.inner.open(ref, **options)

    async def list_objects(self, bucket, prefix, **options):
        if self.listing is not None:
            raise self.listing
        return await self.inner.list_objects(bucket, prefix, **options)


class Claiming:
    """An origin whose object d/0000 is of 2^62 bytes, as it says."""

    def __init__(self, inner: Origin) -> None:
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def list_objects(self, bucket, prefix, **options):
        page = await self.inner.list_objects(bucket, prefix, **options)
        return replace(page, entries=(replace(page.entries[0], size=1 << 62), *page.entries[1:]))

    @asynccontextmanager
    async def open(self, ref, **options):
        async with self.inner.open(ref, **options) as read:
            if ref.key != "d/0000":
                yield read
            else:
                yield replace(read, meta=replace(read.meta, size=1 << 62), pass_on=PassOn())


def filled(count=30, size=PAGE, prefix="d/") -> MemoryOrigin:
    origin = MemoryOrigin()
    for number in range(count):
        origin.put("b", f"{prefix}{number:04d}", bytes([number % 256]) * size)
    return origin


def warming(bench, prefix="d/", *, dry_run=False, fetches=32) -> Warm:
    return Warm(
        bench.engine.prefetch_port,
        bench.engine.list_objects,
        bucket="b",
        prefix=prefix,
        dry_run=dry_run,
        clock=bench.clock,
        fetches=lambda: fetches,
    )


async def warm(bench, prefix="d/", **kwargs):
    work = warming(bench, prefix, **kwargs)
    await work.run()
    assert work.progress.listed
    assert work.progress.done == work.progress.total
    return work.progress


async def test_what_is_warm_is_read_without_the_origin(make_bench):
    bench = await make_bench(origin=filled(), rules=IMMUTABLE)
    progress = await warm(bench)
    assert (progress.total, progress.total_bytes, progress.bytes) == (30, 30 * PAGE, 30 * PAGE)
    gets, heads = bench.origin.gets, bench.origin.heads
    assert gets == 30
    for number in range(30):
        assert await bench.get(f"d/{number:04d}") == (bytes([number]) * PAGE, Source.RAM)
    assert (bench.origin.gets, bench.origin.heads) == (gets, heads)


async def test_objects_of_many_pages_and_of_none(make_bench):
    origin = MemoryOrigin()
    body = bytes(range(256)) * (5 * PAGE // 256) + b"end"
    origin.put("b", "d/big", body, (("x-amz-meta-of", "big"),))
    origin.put("b", "d/empty", b"")
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    progress = await warm(bench)
    assert (progress.bytes, progress.resident, progress.not_stored) == (len(body), 0, 0)
    assert origin.gets == 6
    assert await bench.get("d/big") == (body, Source.RAM)
    assert await bench.get("d/big", range=RangeSpec(4 * PAGE, None)) == (body[4 * PAGE :], Source.RAM)
    known = bench.engine._versions.known_now(ObjectRef("b", "d/big"))
    assert known.header("x-amz-meta-of") == "big"


@pytest.mark.parametrize("kept", [3, 0])
@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_listing_that_does_not_go_on_ends_the_warm(make_bench, kept, dry_run):
    bench = await make_bench(origin=filled(5), rules=IMMUTABLE)
    listed, calls = bench.origin.list_objects, 0

    async def same(bucket, prefix, **_options):
        nonlocal calls
        calls += 1
        assert calls < 10
        page = await listed(bucket, prefix)
        return ListPage(page.entries[:kept], truncated=True)

    bench.origin.list_objects = same
    with pytest.raises(OriginUnavailable, match="the origin's listing of 'b' does not go on after"):
        await warming(bench, dry_run=dry_run).run()


async def test_only_what_lies_under_the_prefix_over_many_pages_of_the_listing(make_bench):
    origin = filled(2300, size=8)
    origin.put("b", "other", b"x")
    bench = await make_bench(origin=origin, ram_bytes=4 << 20, rules=IMMUTABLE)
    assert (await warm(bench)).total == 2300
    assert len(bench.cache.residents) == 2300


async def test_what_is_there_is_not_read_again(make_bench):
    bench = await make_bench(origin=filled(), rules=IMMUTABLE)
    await bench.get("d/0003")
    progress = await warm(bench)
    assert (bench.origin.gets, progress.resident, progress.bytes) == (30, 1, 29 * PAGE)
    again = await warm(bench)
    assert (bench.origin.gets, again.resident, again.bytes) == (30, 30, 0)


async def test_the_missing_pages_of_an_object_are_read(make_bench):
    origin = filled(1, size=4 * PAGE)
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    await bench.get("d/0000", range=RangeSpec(PAGE, PAGE + 9))
    progress = await warm(bench)
    assert (progress.bytes, progress.resident, origin.gets) == (3 * PAGE, 0, 4)


async def test_a_version_that_was_written_past_the_proxy_is_replaced(make_bench):
    bench = await make_bench(origin=filled(3), rules=IMMUTABLE)
    await bench.get("d/0001")
    bench.origin.put("b", "d/0001", b"new")
    await warm(bench)
    assert await bench.get("d/0001") == (b"new", Source.RAM)


async def test_a_dry_run_counts_and_changes_nothing(make_bench):
    bench = await make_bench(origin=filled(), rules=IMMUTABLE)
    await bench.get("d/0003")
    progress = await warm(bench, dry_run=True)
    assert (progress.total, progress.total_bytes) == (30, 30 * PAGE)
    assert (progress.resident, progress.bytes) == (1, 29 * PAGE)
    assert bench.origin.gets == 1
    assert len(bench.cache.residents) == 1


async def test_nothing_is_stored_where_a_rule_caches_nothing(make_bench):
    bench = await make_bench(origin=filled(5), rules=(Rule(cache=False),))
    assert (await warm(bench)).not_stored == 5
    assert (await warm(bench, dry_run=True)).bytes == 0
    assert bench.origin.gets == 0


# ---------------------------------------------------------------------- room


@pytest.mark.parametrize("policy", ["default", "lru", "fifo", "static"])
async def test_a_full_cache_loses_nothing_to_it(make_bench, policy):
    origin = filled(20, prefix="hot/")
    for number in range(40):
        origin.put("b", f"d/{number:04d}", bytes(PAGE))
    ram_bytes = 24 * RECORD + (64 << 10) * (policy in ("lru", "fifo"))
    bench = await make_bench(origin=origin, ram_bytes=ram_bytes, policy=policy, rules=IMMUTABLE)
    hot = [f"hot/{number:04d}" for number in range(20)]
    for key in hot:
        await bench.get(key)
    gets = bench.origin.gets
    progress = await warm(bench)
    assert bench.cached(hot) == 20
    assert 30 <= progress.not_stored < 40
    # Pages that win no place are not read from the origin.
    assert bench.origin.gets - gets <= 10


async def test_what_matters_more_displaces_what_matters_less(make_bench):
    origin = filled(40)
    bench = await make_bench(origin=origin, ram_bytes=24 * RECORD, rules=IMMUTABLE)
    wanted = {object_hash(ObjectRef("b", f"d/{number:04d}")) for number in range(30, 40)}
    bench.weights.by_hash.update(dict.fromkeys(wanted, 9.0))
    for number in range(30):
        hashed = object_hash(ObjectRef("b", f"d/{number:04d}"))
        bench.weights.by_hash[hashed] = 0.5
        await bench.get(f"d/{number:04d}")
    await warm(bench)
    assert bench.cached(f"d/{number:04d}" for number in range(30, 40)) == 10


async def test_it_fills_both_tiers(make_bench):
    bench = await make_bench(
        origin=filled(40), ram_bytes=16 * RECORD, disk_bytes=40 * RECORD, rules=IMMUTABLE
    )
    progress = await warm(bench)
    await bench.settle()
    assert progress.not_stored == 0
    assert bench.cached(f"d/{number:04d}" for number in range(40)) == 40


async def test_a_pinned_prefix_is_read_into_a_full_cache(make_bench):
    origin = filled(60, prefix="rest/")
    for number in range(10):
        origin.put("b", f"d/{number:04d}", bytes(PAGE))
    bench = await make_bench(origin=origin, ram_bytes=24 * RECORD, policy="lru", rules=IMMUTABLE)
    for number in range(60):
        await bench.get(f"rest/{number:04d}")
    await bench.pin("d/")
    assert (await warm(bench)).bytes == 10 * PAGE
    for number in range(60):
        await bench.get(f"rest/{number:04d}")
    assert bench.cached(f"d/{number:04d}" for number in range(10)) == 10


# ---------------------------------------------------------------------- beside others


async def test_its_pages_are_no_guesses(make_bench):
    """Pages of a warm do not count as guesses. Prefetching is judged by its guesses. A page of a warm is
    none, so it does not count as wasted while it is unread.
    """
    bench = await make_bench(origin=filled(5), rules=IMMUTABLE)
    await warm(bench)
    counts = bench.stats.prefetch
    assert (counts.issued, counts.warmed, counts.used, counts.wasted) == (5, 5, 0, 0)
    assert not bench.cache.residents.unread
    slot = bench.cache.residents.first_page(object_hash(ObjectRef("b", "d/0001")))
    assert bench.cache.residents.uses[slot] == 0
    await purge_under(bench.engine, "b", "")
    assert counts.wasted == 0


async def test_few_at_a_time_while_others_read(make_bench):
    origin = filled(100)
    origin.put("b", "asked", bytes(PAGE))
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    origin.gate = Barrier()
    reading = asyncio.create_task(bench.get("asked"))
    await until(lambda: bench.engine.prefetch_port.flying == 1)
    running = asyncio.create_task(warm(bench))
    await until(lambda: bench.engine.prefetch_port.flying == 9)
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.engine.prefetch_port.flying == 9
    origin.gate.release()
    assert await reading == (bytes(PAGE), Source.ORIGIN)
    assert (await running).bytes == 100 * PAGE


async def test_few_at_a_time_while_clients_read_what_is_cached(make_bench):
    """Hits of clients have no flight, but a warm must leave the event loop to them too."""
    origin = filled(100)
    origin.put("b", "asked", bytes(PAGE))
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    work = warming(bench)
    for _ in range(200):
        await bench.get("asked")
    bench.engine.access_log.flush()
    bench.clock.advance(1.0)
    origin.gate = Barrier()
    running = asyncio.create_task(work.run())
    await until(lambda: bench.engine.prefetch_port.flying == 8)
    for _ in range(10):
        await asyncio.sleep(0)
    assert bench.engine.prefetch_port.flying == 8
    before_s = bench.clock.monotonic_s()
    origin.gate.release()
    await running
    assert work.progress.bytes == 100 * PAGE
    # For the first quarter of a second it paused after each eight pages. Then it saw that clients had ended.
    assert 0.05 <= bench.clock.monotonic_s() - before_s <= 0.3


async def test_few_begin_at_a_time(make_bench):
    """Fetches that begin together end together, and would then hold up the event loop for long."""
    bench = await make_bench(origin=filled(200), rules=IMMUTABLE)
    port, begun, most = bench.engine.prefetch_port, 0, 0
    begin = port.begin

    def counted(*need):
        nonlocal begun
        begun += 1
        return begin(*need)

    async def watch():
        nonlocal most
        before = 0
        while True:
            most, before = max(most, begun - before), begun
            await asyncio.sleep(0)

    port.begin = counted
    watching = asyncio.create_task(watch())
    await warm(bench)
    watching.cancel()
    assert (begun, most) == (200, 8)


async def test_memory_for_reads_is_left_to_others(make_bench):
    origin = filled(100)
    bench = await make_bench(origin=origin, budget_bytes=20 * PAGE, rules=IMMUTABLE)
    origin.gate = Barrier()
    running = asyncio.create_task(warm(bench))
    await until(lambda: bench.ledger.taken_bytes > 8 * PAGE)
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.ledger.taken_bytes <= 10 * PAGE
    origin.gate.release()
    assert (await running).bytes == 100 * PAGE
    assert origin.gets == 100  # No read began before there was memory for it.


async def test_a_reader_joins_what_is_on_its_way(make_bench):
    origin = filled(1)
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    origin.gate = Barrier()
    running = asyncio.create_task(warm(bench))
    await until(lambda: bench.engine.prefetch_port.flying == 1)
    reading = asyncio.create_task(bench.get("d/0000"))
    for _ in range(10):
        await asyncio.sleep(0)
    origin.gate.release()
    assert await reading == (bytes(PAGE), Source.COALESCED)
    assert (await running).bytes == PAGE
    assert origin.gets == 1


async def test_where_demand_is_quicker_it_comes_back(make_bench):
    origin = Refusing(filled(10))
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    origin.crowded = 50
    progress = await warm(bench)
    assert (progress.bytes, progress.failed) == (10 * PAGE, 0)


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("steps", [0, 1, 3, 10, 40])
async def test_cancelled_it_leaves_nothing_under_way(make_bench, steps):
    origin = filled(200)
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    origin.gate = Barrier()
    work = warming(bench)
    running = asyncio.create_task(work.run())
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not bench.engine.prefetch_port.flying)
    bench.engine.assert_quiescent()
    assert not [task for task in asyncio.all_tasks() if "d/" in task.get_name()]
    origin.gate.release()


async def test_objects_that_cannot_be_read_are_counted_and_the_first_is_told(make_bench):
    origin = Refusing(filled(20))
    origin.errors["d/0003"] = OriginAnswer(403, "AccessDenied", "no")
    origin.errors["d/0007"] = OriginUnavailable("timed out")
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    progress = await warm(bench)
    assert (progress.failed, progress.bytes) == (2, 18 * PAGE)
    assert progress.error == "s3://b/d/0003: 403 AccessDenied: no"


async def test_an_object_that_is_too_long_to_be_cached_is_counted_as_failed(make_bench):
    origin = Claiming(filled(3))
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    progress = await asyncio.wait_for(warm(bench), 20)
    assert (progress.failed, progress.bytes) == (1, 2 * PAGE)
    assert "d/0000 cannot be cached" in progress.error


@pytest.mark.parametrize("count", [16, 40, 200])
async def test_an_origin_that_answers_nothing_ends_it(make_bench, count):
    origin = Refusing(filled(count))
    origin.errors = {f"d/{number:04d}": OriginUnavailable("refused") for number in range(count)}
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    work = warming(bench)
    with pytest.raises(
        OriginUnavailable, match=r"16 reads in a row failed, the last of s3://b/d/\d+: refused"
    ):
        await work.run()
    assert work.progress.failed < 100


async def test_changed_objects_that_cannot_be_looked_up_end_it(make_bench):
    origin = filled(200)
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    await warm(bench)
    for number in range(200):
        origin.put("b", f"d/{number:04d}", b"new")

    async def fail(ref):
        raise OriginUnavailable("refused")

    bench.engine.prefetch_port.check = fail
    work = warming(bench)
    with pytest.raises(OriginUnavailable, match="16 reads in a row failed"):
        await work.run()
    assert work.progress.failed < 100


async def test_a_prefix_that_cannot_be_listed_is_an_error(make_bench):
    origin = Refusing(filled(3))
    origin.listing = OriginAnswer(404, "NoSuchBucket", "there is none")
    bench = await make_bench(origin=origin)
    with pytest.raises(OriginAnswer, match="NoSuchBucket"):
        await warming(bench).run()
    with pytest.raises(OriginAnswer, match="NoSuchBucket"):
        await warming(bench, dry_run=True).run()


async def test_an_object_that_changes_meanwhile_is_read_in_its_new_version(make_bench):
    origin = filled(1, size=2 * PAGE)
    bench = await make_bench(origin=origin, rules=IMMUTABLE)
    await bench.get("d/0000", range=RangeSpec(0, 9))
    work = warming(bench)
    listing = work._listing

    async def then_changed(bucket, prefix, **options):
        page = await listing(bucket, prefix, **options)
        origin.put("b", "d/0000", b"n" * (2 * PAGE))
        return page

    work._listing = then_changed
    await work.run()
    assert work.progress.failed == 0
    assert (await bench.get("d/0000"))[0] == b"n" * (2 * PAGE)
