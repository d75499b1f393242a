"""Several disk tiers: pages are spread over the disks, found on each, and kept when the disks change."""

import asyncio
import shutil
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.app.media import tier_gauges
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import Source
from shadeproxy.engine.index.residents import NO_TIER
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled
from tests.support.engine import PAGE, HeldIO

SIZE = 3000
RAM_BYTES = 64 << 10
DISK_BYTES = 8 << 20
COUNT = 400
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)


def body(number: int) -> bytes:
    return number.to_bytes(2, "big") * (SIZE // 2)


def origin() -> MemoryOrigin:
    made = MemoryOrigin()
    for number in range(COUNT):
        made.put("b", f"k{number}", body(number))
    return made


def disks(*speeds: float) -> dict[str, tuple[int, float]]:
    return {f"disks[{place}]": (DISK_BYTES, speed) for place, speed in enumerate(speeds)}


async def read_all(bench) -> Counter:
    """Read every object, and compare its bytes. Return the number of objects from each source."""
    sources = Counter()
    for number in range(COUNT):
        found, source = await bench.get(f"k{number}")
        assert found == body(number)
        sources[source] += 1
        await bench.settle()
    return sources


def by_tier(bench) -> list[int]:
    tiers = bench.cache.residents.tier
    return np.bincount(tiers[tiers != NO_TIER], minlength=len(bench.cache.media)).tolist()


async def test_pages_are_spread_by_speed_and_all_are_hits(make_bench):
    bench = await make_bench(
        origin=origin(), ram_bytes=RAM_BYTES, more_disks=disks(1e8, 4e8), rules=IMMUTABLE
    )
    await read_all(bench)
    ram, slow, fast = by_tier(bench)
    assert ram + slow + fast == COUNT
    assert 0.12 < slow / (slow + fast) < 0.28
    sources = await read_all(bench)
    assert sources[Source.ORIGIN] == 0
    assert sources[Source.DISK] > COUNT / 2
    shown = [tier_gauges(one, bench.cache, place)() for place, one in enumerate(bench.cache.media)]
    assert [one.read_speed for one in shown] == [0, 1e8, 4e8]
    # The hits of the tiers add up to the hits of the answers. Each disk's share of the hits is its share of
    # the pages.
    tiers = bench.counted_stats().snapshot()["tiers"]
    assert tiers["ram"]["hits"] == sources[Source.RAM]
    hits = [tiers[f"disks[{place}]"]["hits"] for place in (0, 1)]
    assert sum(hits) == sources[Source.DISK]
    assert hits[0] / sum(hits) == pytest.approx(slow / (slow + fast), abs=0.05)


async def test_a_restart_finds_the_pages_of_every_disk_and_a_new_speed_moves_none(make_bench):
    bench = await make_bench(
        origin=origin(), ram_bytes=RAM_BYTES, more_disks=disks(1e8, 4e8), rules=IMMUTABLE
    )
    await read_all(bench)
    held = by_tier(bench)
    await asyncio.to_thread(bench.cache.close)
    again = await make_bench(
        origin=bench.origin, ram_bytes=RAM_BYTES, more_disks=disks(9e8, 1e8), rules=IMMUTABLE
    )
    assert by_tier(again) == held
    assert (await read_all(again))[Source.ORIGIN] == 0


async def test_an_added_disk_loses_nothing_of_the_only_one(make_bench):
    bench = await make_bench(origin=origin(), ram_bytes=RAM_BYTES, disk_bytes=DISK_BYTES, rules=IMMUTABLE)
    await read_all(bench)
    held = by_tier(bench)
    await asyncio.to_thread(bench.cache.close)
    again = await make_bench(
        origin=bench.origin,
        ram_bytes=RAM_BYTES,
        disk_bytes=DISK_BYTES,
        more_disks=disks(1e8),
        rules=IMMUTABLE,
    )
    assert by_tier(again) == [*held, 0]
    assert (await read_all(again))[Source.ORIGIN] == 0


async def test_a_disk_that_was_removed_costs_its_pages_only(make_bench, tmp_path):
    bench = await make_bench(
        origin=origin(), ram_bytes=RAM_BYTES, more_disks=disks(1e8, 1e8), rules=IMMUTABLE
    )
    await read_all(bench)
    _, first, _ = by_tier(bench)
    await asyncio.to_thread(bench.cache.close)
    await asyncio.to_thread(shutil.rmtree, tmp_path / "one" / "disks[0]")
    again = await make_bench(
        origin=bench.origin, ram_bytes=RAM_BYTES, more_disks=disks(1e8, 1e8), rules=IMMUTABLE
    )
    assert (await read_all(again))[Source.ORIGIN] == first


async def test_a_disk_that_fails_for_good_is_left_out_without_the_others(make_bench):
    broken_calls = FaultyCalls(scheduled(rates={MediumFault.WRITE_EIO: 1.0}))
    bench = await make_bench(
        origin=origin(),
        ram_bytes=RAM_BYTES,
        more_disks=disks(1e8, 1e8),
        rules=IMMUTABLE,
        calls={"disks[0]": broken_calls},
    )
    await read_all(bench)
    _, broken, sound = by_tier(bench)
    assert bench.cache.media[1].tier.disabled_reason is not None
    assert bench.cache.media[2].tier.disabled_reason is None
    # The broken disk keeps no page. The sound disk lacks only a few pages.
    assert broken == 0
    assert sound > COUNT - 64
    tiers = bench.counted_stats().snapshot()["tiers"]
    assert sum(tiers["disks[0]"]["errors"].values()) < 16
    assert not tiers["disks[1]"]["errors"]


@pytest.mark.parametrize("read_between", [False, True])
@pytest.mark.parametrize("pages", [1, 2])
async def test_of_two_versions_that_two_disks_have_none_answers_unchecked(make_bench, read_between, pages):
    """A killed process can leave the page of an older version on a disk, if its erasure was still queued and
    no client had written the object. The next start finds that page first, and clients read it.
    """
    old, new = b"old!" * 1000 * pages, b"new!" * 1000 * pages
    source = MemoryOrigin()
    sizes = {"ram_bytes": 2048, "rules": IMMUTABLE, "origin": source}
    for place, body in enumerate((old, new)):
        source.put("b", "k", body)
        bench = await make_bench(**sizes, more_disks={f"disks[{place}]": (DISK_BYTES, 1e8)})
        # Only the last page of the new version is cached.
        wanted = RangeSpec((pages - 1) * PAGE, None) if place else None
        assert (await bench.get("k", range=wanted))[1] is Source.ORIGIN
        await bench.settle()
        await bench.engine.aclose()
        await asyncio.to_thread(bench.cache.close)
    again = await make_bench(**sizes, more_disks=disks(1e8, 1e8), recover=False)
    (_, first, second), go = [one.tier for one in again.cache.media], threading.Event()
    arrivals = second.arrivals

    def late():
        go.wait()
        yield from arrivals()

    second.arrivals = late
    again.cache.start_recovery()
    while first.pending_segments:
        await asyncio.sleep(0.001)
    if read_between:
        assert await again.get("k") == (old, Source.DISK)
    go.set()
    await again.cache.recovered()
    assert (await again.get("k"))[0] == new


@pytest.mark.parametrize("policy", ["default", "lru"])
async def test_disks_whose_writes_hang_leave_most_of_the_memory_to_reads(make_bench, policy):
    """Pages that wait for a disk hold memory. Reads from the origin need the same memory, so without a limit
    they would be refused for as long as the disk hangs.
    """
    bench = await make_bench(
        origin=origin(),
        ram_bytes=RAM_BYTES,
        more_disks=disks(1e8, 1e8),
        budget_bytes=200_000,
        policy=policy,
        rules=IMMUTABLE,
    )
    held, media = HeldIO(), list(bench.cache.media)
    for index in (1, 2):
        bench.cache.media[index] = replace(media[index], write=held)
    for number in range(COUNT):
        assert (await bench.get(f"k{number}"))[0] == body(number)
        assert bench.ledger.taken_bytes <= bench.ledger.capacity_bytes // 4
    assert held.waiting.is_set()
    held.go.set()
    await bench.settle()
    bench.cache.media[1:] = media[1:]
    await read_all(bench)
    _, first, second = by_tier(bench)
    assert min(first, second) > 50
