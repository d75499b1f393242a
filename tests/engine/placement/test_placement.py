"""Placement over two tiers, and hit ratios that only a correct policy reaches."""

import asyncio
import math

import numpy as np
import pytest

from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Page, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.hints.hashing import object_hash
from shadeproxy.origin.memory import MemoryOrigin

SIZE = 16_000
COUNT = 1000
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)


def filled_origin(count=COUNT, size=SIZE) -> MemoryOrigin:
    origin = MemoryOrigin()
    for n in range(count):
        origin.put("b", f"{n:05d}", n.to_bytes(4, "little") * (size // 4))
    return origin


async def epoch(bench, rng, count=COUNT) -> float:
    """Read one epoch in random order as a client without hints. Return its hit ratio."""
    hits = 0
    for n in rng.permutation(count).tolist():
        body, source = await bench.get(f"{n:05d}")
        assert body[:4] == n.to_bytes(4, "little")
        hits += source in (Source.RAM, Source.DISK)
    return hits / count


async def test_shuffled_epochs_of_a_stock_client_hit_the_cached_fraction(make_bench):
    bench = await make_bench(
        origin=filled_origin(),
        ram_bytes=COUNT * SIZE // 5,
        page_size=1 << 20,
        rules=IMMUTABLE,
        budget_bytes=8 << 20,
    )
    rng = np.random.default_rng(1)
    ratios = [await epoch(bench, rng) for _ in range(3)]
    # The capacity counts whole records, which are about 1 % longer than these small bodies.
    share = len(bench.cache.residents) / COUNT
    assert share >= 0.2 * 0.97
    assert min(ratios[1:]) >= 0.99 * share


async def test_lru_on_the_same_epochs_hits_its_closed_form(make_bench):
    bench = await make_bench(
        origin=filled_origin(),
        ram_bytes=COUNT * SIZE // 5,
        page_size=1 << 20,
        rules=IMMUTABLE,
        policy="lru",
        budget_bytes=8 << 20,
    )
    rng = np.random.default_rng(1)
    ratios = [await epoch(bench, rng) for _ in range(3)]
    expected = 0.2 + 0.8 * math.log(0.8)
    assert np.mean(ratios[1:]) == pytest.approx(expected, abs=0.008)


async def test_capacities_of_both_tiers_add_up(make_bench):
    bench = await make_bench(
        origin=filled_origin(400),
        ram_bytes=40 * 16_384,
        disk_bytes=120 * 16_384,
        page_size=1 << 20,
        rules=IMMUTABLE,
        budget_bytes=8 << 20,
    )
    rng = np.random.default_rng(1)
    for _ in range(2):
        await epoch(bench, rng, 400)
    ram, disk = bench.cache.residents.members
    assert ram.count >= 38
    assert disk.count >= 115
    assert await epoch(bench, rng, 400) == pytest.approx(0.4, abs=0.02)


async def test_lru_demotes_to_disk_and_promotes_on_use(make_bench):
    bench = await make_bench(
        origin=filled_origin(30),
        ram_bytes=10 * 16_384,
        disk_bytes=10 * 16_384,
        page_size=1 << 20,
        policy="lru",
        budget_bytes=8 << 20,
    )
    for n in range(15):
        await bench.get(f"{n:05d}")
        await bench.settle()
    assert (await bench.get("00014"))[1] is Source.RAM
    assert (await bench.get("00001"))[1] is Source.DISK
    await bench.settle()
    assert (await bench.get("00001"))[1] is Source.RAM
    for n in range(15, 30):
        await bench.get(f"{n:05d}")
        await bench.settle()
    assert (await bench.get("00000"))[1] is Source.ORIGIN


async def test_a_page_that_is_written_while_it_is_demoted_does_not_come_back(make_bench):
    bench = await make_bench(
        origin=filled_origin(12),
        ram_bytes=10 * 16_384,
        disk_bytes=10 * 16_384,
        page_size=1 << 20,
        policy="lru",
        rules=IMMUTABLE,
        budget_bytes=8 << 20,
    )
    for n in range(10):
        await bench.get(f"{n:05d}")
    await bench.get("00010")  # This read demotes 00000. The write of 00000 to the disk tier now waits.
    async with bench.engine.writing([ref(0)]):
        bench.origin.put("b", "00000", b"new")
    await bench.get("00011")  # This new page may get the former slot of 00000.
    await bench.settle()
    assert await bench.get("00000") == (b"new", Source.ORIGIN)
    assert (await bench.get("00011"))[0][:4] == (11).to_bytes(4, "little")


async def test_scores_change_what_is_evicted(make_bench):
    bench = await make_bench(
        origin=filled_origin(100), ram_bytes=20 * 16_384, page_size=1 << 20, rules=IMMUTABLE
    )
    for n in range(100):
        await bench.get(f"{n:05d}")
    wanted = range(60, 75)
    for n in range(100):
        bench.weights.by_hash[object_hash(ref(n))] = 5.0 if n in wanted else 0.5
    for n in range(100):
        await bench.get(f"{n:05d}")
    sources = [(await bench.get(f"{n:05d}"))[1] for n in wanted]
    assert sources == [Source.RAM] * len(wanted)


async def test_scores_tell_the_pages_of_a_shard_apart(make_bench):
    size, origin = 16_384, MemoryOrigin()
    for shard in range(4):
        origin.put("b", f"{shard:05d}", bytes(20 * size))
    bench = await make_bench(origin=origin, ram_bytes=30 * (size + 4096), page_size=size, rules=IMMUTABLE)

    async def read(shard, number):
        return await bench.get(f"{shard:05d}", range=RangeSpec(number * size, (number + 1) * size - 1))

    pages = [(shard, number) for shard in range(4) for number in range(20)]
    wanted = [page for page in pages if page[1] in (3, 7, 11)]
    for shard, number in pages:
        bench.weights.by_page[object_hash(ref(shard)), number] = 5.0 if (shard, number) in wanted else 0.5
    for page in pages * 2:
        await read(*page)
    assert [(await read(*page))[1] for page in wanted] == [Source.RAM] * len(wanted)


async def test_hits_that_are_noted_late_do_not_make_pages_look_dead(make_bench):
    """Pages do not count as dead because their hits are counted late. Hits are counted together some time
    later, and misses at once.
    """
    bench = await make_bench(
        origin=filled_origin(100), ram_bytes=20 * 16_384, page_size=1 << 20, rules=IMMUTABLE
    )
    for n in range(100):
        await bench.get(f"{n:05d}")
    resident = len(bench.cache.residents)
    for n in range(4):
        request = ReadRequest(ref(n))
        assert bench.engine.hit(request, bench.engine.usable_now(request), Span(0, SIZE)) is not None
    bench.engine.access_log.flush()
    for n in range(resident, 100):
        await bench.get(f"{n:05d}")
    sources = [(await bench.get(f"{n:05d}"))[1] for n in range(resident)]
    assert sources == [Source.RAM] * resident


async def test_several_reads_of_one_page_in_quick_succession_cost_one_origin_read(make_bench):
    """Several reads of one page in quick succession cost one origin read. The cache is full of a dataset in
    use, and each new page is read in small parts.
    """
    bench = await make_bench(
        origin=filled_origin(500), ram_bytes=100 * 16_384, page_size=1 << 20, rules=IMMUTABLE
    )
    rng = np.random.default_rng(3)
    for _ in range(2):
        await epoch(bench, rng, 500)
    outsiders = [n for n in range(500) if bench.cache.find(page(bench, n)) is None]
    for n in outsiders[:130]:
        if n == outsiders[80]:  # By now the learner knows that such pages are soon read again.
            reads = bench.origin.gets
        for _ in range(4):
            await bench.get(f"{n:05d}")
    assert bench.origin.gets - reads == 50


async def test_a_finished_data_set_drains_away_for_the_next(make_bench):
    bench = await make_bench(
        origin=filled_origin(100), ram_bytes=50 * 16_384, page_size=1 << 20, rules=IMMUTABLE
    )
    for n in range(100):
        bench.origin.put("b", f"next/{n}", bytes(SIZE))
    rng = np.random.default_rng(3)
    for _ in range(3):
        await epoch(bench, rng, 100)
    hits = 0
    for _ in range(6):
        hits = 0
        for n in rng.permutation(100).tolist():
            hits += (await bench.get(f"next/{n}"))[1] is Source.RAM
    assert hits >= 45


def reads_in_history(bench, n: int) -> int:
    slot = bench.cache.residents.first_page(object_hash(ref(n)))
    return int(bench.cache.placement.histories._reads[slot])


async def test_a_page_takes_its_read_history_along(make_bench):
    """The read history follows its page out of a slot and into another one. The page may or may not have been
    in a tier meanwhile.
    """
    bench = await make_bench(
        origin=filled_origin(40), ram_bytes=20 * 16_384, page_size=1 << 20, rules=IMMUTABLE
    )
    await bench.get("00000")
    await bench.get("00000")
    assert reads_in_history(bench, 0) == 2
    bench.cache.drop_object(ref(0), "test")
    await bench.get("00001")  # Another page gets the slot.
    assert reads_in_history(bench, 1) == 1
    await bench.get("00000")
    assert reads_in_history(bench, 0) == 3
    for n in range(2, 40):
        await bench.get(f"{n:05d}")
    assert bench.cache.find(page(bench, 39)) is None, "the cache is full"
    await bench.get("00039")
    bench.cache.drop_object(ref(0), "test")
    await bench.get("00039")
    assert reads_in_history(bench, 39) == 3


async def test_a_damaged_page_is_dropped_counted_and_read_again(make_bench, tmp_path):
    bench = await make_bench(origin=filled_origin(1), page_size=1 << 20, rules=IMMUTABLE)
    await bench.get("00000")
    await asyncio.to_thread(bench.cache.close)
    for segment in (tmp_path / "one" / "ram").rglob("*.seg"):
        data = bytearray(segment.read_bytes())
        where = data.index(bytes(8))
        body_at = data.index(b"\0\0\0\0" * 100)
        data[max(where, body_at) + 50] ^= 1
        segment.write_bytes(data)
    again = await make_bench(origin=filled_origin(1), page_size=1 << 20, rules=IMMUTABLE)
    assert await again.get("00000") == (bytes(SIZE), Source.ORIGIN)
    assert await again.get("00000") == (bytes(SIZE), Source.RAM)


def ref(n: int) -> ObjectRef:
    return ObjectRef("b", f"{n:05d}")


def page(bench, n: int) -> Page:
    return Page(ref(n), bench.origin.buckets["b"][f"{n:05d}"].meta.etag, 0)
