"""Announced samples are in the cache before they are read, and no other read suffers from it."""

import asyncio

import numpy as np
import pytest

from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import Intent, ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.engine.rules import Rule
from shadeproxy.hints.datasets import Sample
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.prefetching import Order, until, whole
from tests.support.purging import purge_under

PAGE = 4096


def fill(origin, count: int, size: int = 1000) -> None:
    for number in range(count):
        origin.put("b", f"k{number}", bytes([number % 256]) * size)


async def test_an_announced_order_is_fetched_before_it_is_read(make_fetching):
    fetching = await make_fetching()
    fill(fetching.bench.origin, 20)
    fetching.orders.announce("j", Order(whole(20), list(reversed(range(20)))))
    await fetching.idle()
    for number in reversed(range(20)):
        assert await fetching.bench.get(f"k{number}") == (bytes([number]) * 1000, Source.RAM)
        fetching.orders.read("j")
    assert fetching.bench.origin.gets == 20
    assert fetching.counts() == (20, 20, 0, 0)


async def test_soonest_first(make_fetching):
    fetching = await make_fetching(fetches=1)
    fill(fetching.bench.origin, 10)
    fetching.orders.announce("j", Order(whole(10), [3, 1, 4, 1, 5, 9, 2, 6]))
    await fetching.idle()
    assert [ref.key for ref, *_ in fetching.bench.origin.reads] == [f"k{n}" for n in (3, 1, 4, 5, 9, 2, 6)]


async def test_jobs_share_by_next_use(make_fetching):
    """Jobs share the prefetching by next use. The fast job's last sample is due before the slow job's second
    one.
    """
    fetching = await make_fetching(fetches=1)
    fill(fetching.bench.origin, 20)
    fetching.orders.orders["slow"] = Order(whole(20), [10, 11], rate_per_s=0.1)
    fetching.orders.announce("fast", Order(whole(20), [0, 1, 2, 3], rate_per_s=100.0))
    await fetching.idle()
    keys = [ref.key for ref, *_ in fetching.bench.origin.reads]
    assert keys.index("k11") > keys.index("k3")


async def test_a_job_whose_prefetches_wait_for_the_link_holds_up_no_other(make_fetching):
    fetching = await make_fetching(fetches=4)
    fill(fetching.bench.origin, 20)
    waiting = {"slow"}
    limits = fetching.prefetcher._limits
    fetching.prefetcher._limits = limits._replace(may_wait=lambda job: job not in waiting)
    fetching.orders.orders["slow"] = Order(whole(20), [10, 11, 12, 13], rate_per_s=100.0)
    fetching.orders.announce("fast", Order(whole(20), [0, 1, 2, 3], rate_per_s=1.0))
    read = fetching.bench.origin.reads
    await until(lambda: len(read) == 4)
    assert {ref.key for ref, *_ in read} == {"k0", "k1", "k2", "k3"}
    waiting.clear()
    await until(lambda: len(read) == 8)
    assert {ref.key for ref, *_ in read[4:]} == {"k10", "k11", "k12", "k13"}


async def test_a_late_page_widens_the_window_of_its_own_job_only(make_fetching):
    fetching = await make_fetching()
    bench, gate = fetching.bench, Barrier()
    fill(bench.origin, 2)
    bench.origin.gate = gate
    fetching.orders.orders["late"] = Order(whole(2), [0], rate_per_s=1.0)
    fetching.orders.announce("calm", Order(whole(2), [1], rate_per_s=1.0))
    await until(lambda: fetching.prefetcher.flying == 2)
    paces = {job: walk.pace for job, walk in fetching.prefetcher._walks.items()}
    before = {job: pace.window(1.0) for job, pace in paces.items()}
    reader = asyncio.create_task(bench.get("k0"))
    await until(lambda: bench.stats.pages.coalesced == 1)
    assert paces["late"].window(1.0) > before["late"]
    assert paces["calm"].window(1.0) == before["calm"]
    gate.release()
    await reader
    await fetching.idle()


async def test_each_job_has_the_latency_of_its_own_fetches(make_fetching):
    fetching = await make_fetching(fetches=1)
    bench, gate = fetching.bench, Barrier()
    fill(bench.origin, 2)
    fetching.orders.announce("quick", Order(whole(2), [0], rate_per_s=1.0))
    await fetching.idle()
    bench.origin.gate = gate
    fetching.orders.announce("slow", Order(whole(2), [1], rate_per_s=1.0))
    await gate.reached.wait()
    bench.clock.advance(8.0)
    gate.release()
    await fetching.idle()
    latency = {job: walk.latency.mean_s for job, walk in fetching.prefetcher._walks.items()}
    assert latency["slow"] > latency["quick"] + 1


async def test_a_reader_makes_a_prefetch_his_own(make_fetching):
    fetching = await make_fetching()
    bench, gate = fetching.bench, Barrier()
    fill(bench.origin, 1)
    bench.origin.gate = gate
    fetching.orders.announce("j", Order(whole(1), [0]))
    await gate.reached.wait()
    reader = asyncio.create_task(bench.get("k0"))
    await until(lambda: bench.stats.pages.coalesced == 1)
    assert bench.engine._filling.flights.find(ObjectRef("b", "k0"), 0).intent is Intent.DEMAND
    fetching.orders.withdraw("j")
    await until(lambda: not fetching.prefetcher.flying)
    gate.release()
    assert await reader == (bytes(1000), Source.COALESCED)
    assert bench.origin.gets == 1
    assert fetching.counts() == (1, 1, 0, 0)


async def two_on_their_way(make_fetching, objects, order):
    """Return a prefetcher with an announced order, and the barrier that holds its two fetches."""
    fetching, gate = await make_fetching(fetches=2), Barrier()
    fill(fetching.bench.origin, objects)
    fetching.bench.origin.gate = gate
    fetching.orders.announce("j", Order(whole(objects), order))
    await until(lambda: fetching.bench.origin.gets == 2)
    return fetching, gate


async def test_what_a_withdrawn_order_wanted_is_cancelled(make_fetching):
    fetching, gate = await two_on_their_way(make_fetching, 10, list(range(10)))
    bench = fetching.bench
    await gate.reached.wait()
    fetching.orders.withdraw("j")
    await fetching.idle()
    gate.release()
    await fetching.idle()
    assert bench.origin.gets == 2
    assert len(bench.cache.residents) == 0
    assert fetching.counts() == (2, 0, 2, 0)


async def test_a_replaced_order_drops_what_was_queued(make_fetching):
    fetching, gate = await two_on_their_way(make_fetching, 40, list(range(20)))
    bench = fetching.bench
    fetching.orders.announce("j", Order(whole(40), list(range(20, 40))))
    for _ in range(20):
        await asyncio.sleep(0)
    gate.release()
    await until(lambda: bench.origin.gets >= 22)
    await fetching.idle()
    assert sorted(int(ref.key[1:]) for ref, *_ in bench.origin.reads) == [0, 1, *range(20, 40)]


async def test_so_many_at_a_time_and_so_far_ahead(make_fetching):
    """At most four pages are fetched ahead, however much is announced. At most three fetches run at a
    time.
    """
    fetching = await make_fetching(ahead_bytes=4 * PAGE, fetches=3)
    bench, gate = fetching.bench, Barrier()
    fill(bench.origin, 100, PAGE)
    bench.origin.gate = gate
    fetching.orders.announce("j", Order(whole(100), list(range(100))))
    await gate.reached.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert bench.origin.gets == 3
    gate.release()
    await fetching.idle()
    assert bench.origin.gets == 4
    fetching.orders.read("j", 2)
    await fetching.idle()
    assert bench.origin.gets == 6


async def test_demand_that_waits_for_memory_stops_it(make_fetching):
    fetching = await make_fetching(budget_bytes=8 * PAGE, flying_bytes=4 * PAGE)
    bench = fetching.bench
    fill(bench.origin, 20)
    await bench.ledger.take(8 * PAGE, Intent.DEMAND)
    reader = asyncio.create_task(bench.get("k19"))
    await until(lambda: bench.ledger.waiting == 1)
    fetching.orders.announce("j", Order(whole(20), list(range(10))))
    for _ in range(50):
        await asyncio.sleep(0)
    assert fetching.counts() == (0, 0, 0, 0)
    bench.ledger.give(8 * PAGE)
    assert (await reader)[1] is Source.ORIGIN
    fetching.orders.changed()
    await fetching.idle()
    assert fetching.counts()[0] == 10


async def test_a_reader_survives_the_failure_of_the_prefetch_that_he_joined(make_fetching):
    memory, down = MemoryOrigin(), asyncio.Event()

    class Down(FaultyOrigin):
        async def _begin(self) -> Fault:
            if self.calls:
                return await super()._begin()
            self.calls += 1
            await down.wait()
            raise OriginUnavailable("down")

    origin = Down(memory)
    fetching = await make_fetching(origin=origin)
    fill(memory, 1)
    fetching.orders.announce("j", Order(whole(1), [0]))
    await until(lambda: origin.calls == 1)
    reader = asyncio.create_task(fetching.bench.get("k0"))
    await until(lambda: fetching.bench.stats.pages.coalesced == 1)
    down.set()
    assert (await reader)[0] == bytes(1000)
    assert fetching.counts() == (1, 1, 0, 0)


async def test_failures_are_counted_and_slow_it_down(make_fetching):
    memory = MemoryOrigin()
    origin = FaultyOrigin(memory, script=[Fault(error=OriginUnavailable("down"))] * 3)
    fetching = await make_fetching(origin=origin, fetches=1)
    fill(memory, 4)
    began_s = fetching.bench.clock.monotonic_s()
    fetching.orders.announce("j", Order(whole(4), list(range(4))))
    await until(lambda: fetching.counts()[3] >= 3)
    await fetching.idle()
    assert fetching.bench.clock.monotonic_s() - began_s >= 0.1
    # Demand reads do not pause.
    for number in range(4):
        assert (await fetching.bench.get(f"k{number}"))[0] == bytes([number]) * 1000


async def test_however_long_the_origin_is_away_it_pauses_between_tries(make_fetching):
    memory = MemoryOrigin()
    fetching = await make_fetching(
        origin=FaultyOrigin(memory, script=[Fault(error=OriginUnavailable("down"))] * 2000)
    )
    fill(memory, 400)
    fetching.orders.announce("j", Order(whole(400), list(range(400))))
    # Count more failures in a row than the largest power of two that a float can hold.
    while (failed := fetching.counts()[3]) < 1100:
        await fetching.bench.clock.sleep(6)
        fetching.orders.changed()
        await fetching.idle()
    began_s = fetching.bench.clock.monotonic_s()
    while fetching.counts()[3] < failed + 100:
        fetching.orders.changed()
        await fetching.idle()
    # At most 32 fetches run together and fail. Then prefetching pauses for five seconds.
    assert fetching.bench.clock.monotonic_s() - began_s >= 3 * 5.0


async def test_what_is_cancelled_at_the_end_makes_no_room_for_more(make_fetching):
    fetching = await make_fetching(fetches=4)
    fill(fetching.bench.origin, 20)
    gate = fetching.bench.origin.gate = Barrier()
    fetching.orders.announce("j", Order(whole(20), list(range(20))))
    await until(lambda: fetching.bench.origin.gets == 4)
    await fetching.prefetcher.aclose()
    for _ in range(20):
        await asyncio.sleep(0)
    left = fetching.prefetcher.flying
    gate.release()
    assert left == 0
    assert fetching.counts()[0] == 4


async def test_a_sample_of_many_pages_is_fetched_whole(make_fetching):
    fetching = await make_fetching()
    bench = fetching.bench
    bench.origin.put("b", "k0", bytes(5 * PAGE + 1))
    fetching.orders.announce("j", Order(whole(1), [0]))
    await until(lambda: len(bench.cache.residents) == 6)
    await fetching.idle()
    assert (await bench.get("k0"))[1] is Source.RAM
    assert fetching.counts() == (6, 6, 0, 0)


async def test_samples_of_very_many_pages_are_looked_up_bit_by_bit(make_fetching, monkeypatch):
    fetching = await make_fetching(page_size=256, ram_bytes=1 << 22, flying_bytes=1 << 14, fetches=64)
    bench, pages = fetching.bench, 600
    for number in range(4):
        bench.origin.put("b", f"k{number}", bytes(pages * 256))
        ref = ObjectRef("b", f"k{number}")
        bench.engine._versions.learn(ref, await bench.origin.head(ref))
    looked = [0]
    plan, occupant = fetching.prefetcher._plan, bench.cache.residents.occupant

    def count(*page: int) -> int | None:
        looked[-1] += 1
        return occupant(*page)

    def plan_anew() -> None:
        looked.append(0)
        plan()
        looked.append(0)

    monkeypatch.setattr(bench.cache.residents, "occupant", count)
    monkeypatch.setattr(fetching.prefetcher, "_plan", plan_anew)
    fetching.orders.announce("j", Order(whole(4), list(range(4))))
    for number in range(4):
        await until(lambda done=number + 1: len(bench.cache.residents) >= done * pages, steps=500_000)
        await fetching.idle()
        fetching.orders.read("j")
    assert max(looked[1::2]) <= 1400
    assert bench.origin.gets == 4 * pages


async def test_of_a_shard_the_pages_of_its_samples(make_fetching):
    fetching = await make_fetching()
    bench = fetching.bench
    bench.origin.put("b", "shard", bytes(10 * PAGE))
    ref = ObjectRef("b", "shard")
    samples = [Sample(ref, 100, 50), Sample(ref, 3 * PAGE - 10, 20), Sample(ref, 3 * PAGE + 10, 20)]
    fetching.orders.announce("j", Order(samples, [2, 1, 0]))
    await until(lambda: len(bench.cache.residents) == 3)
    await fetching.idle()
    meta = await bench.origin.head(ref)
    assert [number for number, *_ in bench.cache.listing.pages_of(ref, meta.etag)] == [0, 2, 3]
    assert bench.origin.gets == 3


async def test_what_is_not_to_be_cached_is_not_fetched(make_fetching):
    fetching = await make_fetching(rules=(Rule(cache=False),))
    fill(fetching.bench.origin, 3)
    fetching.orders.announce("j", Order(whole(3), [0, 1, 2]))
    await fetching.idle()
    assert fetching.bench.origin.gets == 0


async def test_a_page_that_leaves_unread_was_wasted(make_fetching):
    fetching = await make_fetching()
    bench = fetching.bench
    fill(bench.origin, 2)
    fetching.orders.announce("j", Order(whole(2), [0, 1]))
    await until(lambda: len(bench.cache.residents) == 2)
    await bench.get("k0")
    await purge_under(bench.engine, "b", "")
    assert fetching.counts()[:3] == (2, 1, 1)


async def test_the_first_read_of_a_prefetched_page_is_its_only_one(make_fetching):
    """The first read of a prefetched page counts as its only read. If the prefetch also counted, the learner
    would expect such pages to be read again at once.
    """
    fetching = await make_fetching()
    bench = fetching.bench
    fill(bench.origin, 50)
    fetching.orders.announce("j", Order(whole(50), list(range(50))))
    await until(lambda: len(bench.cache.residents) == 50)
    for number in range(50):
        await bench.get(f"k{number}")
    table, histories = bench.cache.residents, bench.cache.placement.histories
    slots = table.ready()
    assert table.uses[slots].tolist() == [1] * 50
    assert histories._reads[slots].tolist() == [1] * 50
    page = object_hash(ObjectRef("b", "k7")), 0
    assert bench.engine.prefetch_port.hits(page) == 1
    await bench.get("k7")
    assert histories._reads[table.first_page(object_hash(ObjectRef("b", "k7")))] == 2


@pytest.mark.parametrize("way", ["open", "hit", "handle"])
async def test_every_way_of_reading_counts_as_use(make_fetching, way):
    fetching = await make_fetching()
    bench, engine = fetching.bench, fetching.bench.engine
    fill(bench.origin, 1)
    fetching.orders.announce("j", Order(whole(1), [0]))
    await until(lambda: len(bench.cache.residents) == 1 and not fetching.prefetcher.flying)
    ref = ObjectRef("b", "k0")
    if way == "open":
        await bench.get("k0")
    elif way == "hit":
        meta = engine.usable_now(ReadRequest(ref))
        assert engine.hit(ReadRequest(ref), meta, Span(0, 1000)) is not None
    else:
        now_s = bench.clock.now_s()
        assert engine.take(engine.find_handle(ref, 0, now_s), None, now_s) is not None
    assert fetching.counts() == (1, 1, 0, 0)


async def epochs_of(fetching, count: int, epochs: int, *, announced: bool) -> tuple[int, int]:
    """Return the hits and the origin reads of a job. The job reads all objects in each epoch, in random
    order. ``announced`` says whether prefetching may work between two reads.
    """
    rng, hits = np.random.default_rng(3), 0
    coming = [int(one) for _ in range(epochs) for one in rng.permutation(count)]
    fetching.orders.announce("j", Order(whole(count), coming, rate_per_s=1000.0))
    for number in coming:
        if announced:
            await fetching.idle()
        fetching.orders.orders["j"].position += 1
        hits += (await fetching.bench.get(f"k{number}"))[1] is Source.RAM
        if announced:
            fetching.orders.changed()
    return hits, fetching.bench.origin.gets


async def test_it_costs_few_origin_reads_more_than_clairvoyant_eviction_alone(make_fetching):
    """Prefetching costs only few more origin reads than clairvoyant eviction alone. Unread pages displace
    only pages that are read later than they are.
    """
    size, count = 8 * 1024, 60
    cache = {"ram_bytes": 20 * (size + PAGE), "segment_bytes": 64 * 1024, "page_size": 4 * PAGE}
    alone = await make_fetching(fetches=0, name="alone", **cache)
    fill(alone.bench.origin, count, size)
    hits_alone, reads_alone = await epochs_of(alone, count, 5, announced=False)
    fetching = await make_fetching(ahead_bytes=3 * size, name="ahead", **cache)
    fill(fetching.bench.origin, count, size)
    hits, reads = await epochs_of(fetching, count, 5, announced=True)
    assert hits_alone < 0.6 * 5 * count
    assert hits >= 0.98 * 5 * count
    # Three of the twenty places hold pages that are read next.
    assert reads <= 1.12 * reads_alone


async def test_nothing_is_fetched_that_would_win_no_place(make_fetching):
    """Nothing is fetched that would win no place. Here the cache is full of pages that are read sooner."""
    fetching = await make_fetching(ram_bytes=8 * PAGE, segment_bytes=4 * PAGE)
    bench = fetching.bench
    fill(bench.origin, 60, 3000)
    fetching.orders.announce("j", Order(whole(60), list(range(60)), rate_per_s=1000.0))
    await fetching.idle()
    for _ in range(10):
        fetching.orders.changed()
        await fetching.idle()
    held = len(bench.cache.residents)
    assert held <= bench.origin.gets <= held + 2


async def test_the_parts_of_a_page_do_not_count_if_the_page_is_fetched_by_a_guess(make_fetching):
    """Later reads of the page are hits. If its first parts still counted, its group would not seem dense."""
    fetching = await make_fetching(
        page_size=1 << 20,
        flying_bytes=1 << 23,
        ram_bytes=4 << 20,
        budget_bytes=1 << 23,
        segment_bytes=4 << 20,
    )
    bench, ref = fetching.bench, ObjectRef("b", "k")
    bench.origin.put("b", "k", bytes(3 << 20))
    await bench.get("k", range=RangeSpec(0, 0))
    await bench.get("k", range=RangeSpec(1 << 20, (1 << 20) + 99_999))
    visits = bench.cache.partial._density._visits
    page = page_hash(object_hash(ref), 1)
    assert page in visits
    age = bench.cache.placement.histories.ghosts.find(page, tick := bench.cache.tick())
    bench.cache.placement.tick = tick + 300
    port, ended = bench.engine.prefetch_port, asyncio.Event()
    (need,) = port.pages(ref, range(1, 2), (await bench.engine.stat(ReadRequest(ref)))[0])
    port.begin(need, lambda _fetched: ended.set())
    await ended.wait()
    assert page not in visits
    slot = bench.cache.residents.occupant(object_hash(ref), 1)
    assert bench.cache.placement.histories._of(slot).last == age.history.last, "no reader waited for the page"
