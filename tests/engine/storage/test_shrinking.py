"""A tier gives up space when other files take it, with every policy, and as few pages as possible."""

import asyncio
import errno
import os
from types import SimpleNamespace

import pytest

from shadeproxy.engine.rules import Freshness, Rule
from tests.support.clock import ManualClock

IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
CAPACITY = 1 << 20
SIZE = 9000
RECORD = 3 * 4096
"""Most bytes that the eviction of one page gives back."""

POLICIES = ["default", "lru", "lfu"]


class Others:
    """Other files on the medium of ``tiers``. ``free_bytes``: the bytes that they leave, of which the tiers
    take a part.
    """

    def __init__(self):
        self.free_bytes, self.broken, self.tiers = 1 << 30, False, []

    def fstatvfs(self, _descriptor):
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        segments = (segment for tier in self.tiers for segment in tier._space.segments.values())
        own = sum(segment.allocated_bytes for segment in segments)
        return SimpleNamespace(f_bavail=(self.free_bytes - own) // 4096, f_frsize=4096)

    @property
    def left_bytes(self):
        """Bytes that no file takes."""
        return self.fstatvfs(0).f_bavail * 4096


@pytest.fixture
def others(monkeypatch):
    made = Others()
    monkeypatch.setattr(os, "fstatvfs", made.fstatvfs)
    return made


@pytest.fixture
def make_full(make_bench, others):
    """Return a function that makes a bench with a full RAM tier; its medium has nothing else on it yet."""

    async def make(policy="default", **options):
        bench = await make_bench(policy=policy, rules=IMMUTABLE, ram_bytes=CAPACITY, **options)
        others.tiers = [medium.tier for medium in bench.cache.media]
        for number in range(150):
            bench.origin.put("b", f"k{number}", bytes([number]) * SIZE)
            await bench.get(f"k{number}")
        await bench.settle()
        assert tier_of(bench).used_bytes > 0.9 * CAPACITY
        return bench

    return make


def tier_of(bench):
    return bench.cache.media[0].tier


async def pass_time(bench):
    """Let the task look often enough: it rests after an eviction, measures the space, and then evicts."""
    for _ in range(4):
        await bench.cache.shrinking.shrink()


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_tier_shrinks_by_as_much_as_other_files_grow(make_full, others, policy):
    bench = await make_full(policy)
    others.free_bytes = CAPACITY // 2
    await pass_time(bench)
    tier = tier_of(bench)
    assert tier.used_bytes <= tier.limit_bytes
    assert 0 <= others.left_bytes <= RECORD
    evicted = bench.stats.tiers["ram"].evictions["medium full"]
    for _ in range(3):
        await pass_time(bench)
    assert bench.stats.tiers["ram"].evictions["medium full"] == evicted
    bench.cache.assert_quiescent()


async def test_tiers_that_share_a_medium_do_not_both_pay_for_its_space(make_full, others):
    bench = await make_full("lru", disk_bytes=CAPACITY)
    await bench.settle()
    disk = bench.cache.media[1].tier
    assert disk.used_bytes > CAPACITY // 4
    held = tier_of(bench).used_bytes + disk.used_bytes
    others.free_bytes = held - CAPACITY // 4
    for _ in range(4):
        await pass_time(bench)
        await asyncio.to_thread(bool)
    assert 0 <= others.left_bytes <= 2 * RECORD


async def test_the_worst_pages_leave_first(make_full, others):
    bench = await make_full("lru")
    kept = [f"k{number}" for number in range(150) if bench.cached([f"k{number}"])]
    others.free_bytes = CAPACITY // 2
    await pass_time(bench)
    left = bench.cached(kept)
    assert 0 < left < len(kept)
    assert bench.cached(kept[-left:]) == left


@pytest.mark.parametrize("policy", POLICIES)
async def test_it_grows_again_when_other_files_leave(make_full, others, policy):
    bench = await make_full(policy)
    others.free_bytes = 0
    await pass_time(bench)
    assert bench.cached(f"k{number}" for number in range(150)) == 0
    others.free_bytes = 1 << 30
    await pass_time(bench)
    for number in range(60):
        await bench.get(f"k{number}")
    await bench.settle()
    assert bench.cached(f"k{number}" for number in range(60)) == 60


async def test_nothing_leaves_while_the_space_cannot_be_measured(make_full, others):
    bench = await make_full()
    others.free_bytes = CAPACITY // 2
    await bench.cache.shrinking.shrink()
    others.broken = True
    tier_of(bench).measure_room()
    pages = len(bench.cache.residents)
    for _ in range(20):
        await pass_time(bench)
    assert len(bench.cache.residents) == pages
    assert tier_of(bench).disabled_reason is None
    others.broken = False
    await pass_time(bench)
    assert 0 <= others.left_bytes <= RECORD


async def test_a_guess_after_a_failed_write_evicts_nothing(make_full):
    bench = await make_full()
    await pass_time(bench)
    tier, pages = tier_of(bench), len(bench.cache.residents)
    tier._health.note_failure(OSError(errno.ENOSPC, ""), used_bytes=tier.used_bytes)
    assert tier.limit_bytes < tier.used_bytes
    await pass_time(bench)
    assert len(bench.cache.residents) == pages


async def test_pinned_pages_stay(make_full, others):
    bench = await make_full("lru")
    await bench.pin("k14")
    pinned = [f"k14{number}" for number in range(10)]
    others.free_bytes = 0
    await pass_time(bench)
    assert bench.cached(pinned) == 10
    assert bench.cache.residents.members[0].count == 0


async def test_pins_leave_a_tenth_of_what_is_left_to_other_pages(make_full, others):
    bench = await make_full("lru")
    others.free_bytes = CAPACITY // 2
    await pass_time(bench)
    await bench.pin("k")
    for number in range(60):
        await bench.get(f"k{number}")
    await bench.settle()
    await pass_time(bench)
    limit_bytes, members = tier_of(bench).limit_bytes, bench.cache.residents.members[0]
    assert 0.7 * limit_bytes < members.pinned_bytes <= 0.9 * limit_bytes
    bench.origin.put("b", "other", b"1" * SIZE)
    await bench.get("other")
    await bench.settle()
    assert bench.cached(["other"])


async def test_a_page_that_a_reader_still_holds_is_not_paid_for_by_another_one(make_full, others):
    bench = await make_full("lru")
    table = bench.cache.residents
    views = [bench.cache.hot.view(slot) for slot in table.ready().tolist()]
    assert None not in views
    before = len(table)
    others.free_bytes = CAPACITY // 2
    for _ in range(3):
        await pass_time(bench)
    assert before // 2 - 10 < len(table) < before // 2 + 10
    views.clear()
    await pass_time(bench)
    assert 0 <= others.left_bytes <= RECORD


async def test_a_page_finds_no_room_beyond_the_limit(make_full, others):
    bench = await make_full("lru")
    others.free_bytes = CAPACITY // 2
    await pass_time(bench)
    for number in range(150):
        await bench.get(f"k{number}")
    await bench.settle()
    assert others.left_bytes >= 0
    assert bench.stats.tiers["ram"].errors == {}


async def test_a_task_does_so_every_second(make_full, others):
    clock = ManualClock()
    bench = await make_full(clock=clock)
    others.free_bytes = CAPACITY // 2
    bench.cache.shrinking.start(clock)
    for _ in range(20):
        await asyncio.sleep(0)
    await bench.cache.shrinking.aclose()
    assert 0 <= others.left_bytes <= RECORD
