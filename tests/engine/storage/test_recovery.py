"""Recovery adds pages while the engine works. An event of this session counts more than a recovered page."""

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef, Page, Source
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.policy.registry import get_policy
from shadeproxy.tiers import pending_segments
from shadeproxy.tiers.store import SegmentStore
from shadeproxy.tiers.tombstones import Tombstones
from tests.support.purging import purge_under

SIZE = 3000
IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)


def origin_of(count: int) -> MemoryOrigin:
    origin = MemoryOrigin()
    for n in range(count):
        origin.put("b", f"dir{n % 2}/{n}", bytes([n]) * SIZE)
    return origin


async def listed(path):
    """Return the tombstones that the next start of the tier in ``path`` would find."""
    (file,) = path.glob("*.tombstones")
    tombstones = Tombstones(file)
    await asyncio.to_thread(tombstones.read)
    return tombstones.found


class Writer:
    """The thread that writes a disk tier. It is blocked until ``go`` is set."""

    def __init__(self):
        self.go = threading.Event()
        self.thread = ThreadPoolExecutor(1)
        self.submit = self.thread.submit

    async def write(self, work):
        await asyncio.get_running_loop().run_in_executor(self.thread, work)

    def hold(self):
        self.submit(self.go.wait)

    def end(self):
        self.go.set()
        self.thread.shutdown()


@pytest.fixture
def writer():
    made = Writer()
    yield made
    made.end()


@pytest.fixture
async def restarted(make_bench, tmp_path):
    """Return a function ``restarted(count)``. It makes a bench whose tier has ``count`` objects, all in
    pending segments.
    """

    async def restart(count=20, *, spoil=lambda _path: None, disk=False, page_size=1 << 16, writer=None):
        sizes = {"ram_bytes": 1 << 15, "disk_bytes": 1 << 20} if disk else {}
        bench = await make_bench(
            origin=origin_of(count), rules=IMMUTABLE, page_size=page_size, segment_bytes=1 << 15, **sizes
        )
        for n in range(count):
            await bench.get(f"dir{n % 2}/{n}")
        await bench.engine.aclose()
        await asyncio.to_thread(bench.cache.close)
        await asyncio.to_thread(spoil, tmp_path / "one")
        media = []
        for one in bench.cache.media:
            sizes = {"capacity_bytes": one.tier.capacity_bytes, "segment_bytes": 1 << 15}
            write = one.write
            if writer is not None and one.source is Source.DISK:
                sizes["submit"], write = writer.submit, writer.write
            tier = SegmentStore(one.tier.name, one.tier.path, **sizes)
            media.append(Medium(tier, one.source, write, one.load))
        bench.cache = PageCache(
            media,
            policy=get_policy("default"),
            weights=bench.weights,
            stats=bench.stats,
            ledger=bench.ledger,
            rng=np.random.default_rng(7),
        )
        await asyncio.to_thread(bench.cache.open)
        bench.engine = Engine(
            bench.origin, bench.cache, rules=Rules(IMMUTABLE), ledger=bench.ledger,
            stats=bench.stats, clock=bench.clock, page_size=page_size,
        )  # fmt: skip
        return bench

    return restart


async def test_what_was_there_comes_in_and_hits(restarted):
    bench = await restarted()
    assert bench.cache.pending_segments > 1
    assert (await bench.get("dir1/7"))[1] is Source.ORIGIN
    bench.cache.start_recovery()
    await bench.cache.recovered()
    assert bench.cache.pending_segments == 0
    assert [await bench.get(f"dir{n % 2}/{n}") for n in range(20)] == [
        (bytes([n]) * SIZE, Source.RAM) for n in range(20)
    ]


async def test_what_a_lowered_capacity_has_no_room_for_counts_as_evicted_not_as_damaged(make_bench):
    bench = await make_bench(origin=origin_of(100), rules=IMMUTABLE)
    for n in range(100):
        await bench.get(f"dir{n % 2}/{n}")
    await bench.engine.aclose()
    await asyncio.to_thread(bench.cache.close)
    again = await make_bench(origin=bench.origin, rules=IMMUTABLE, ram_bytes=1 << 17, recover=False)
    again.cache.start_recovery()
    await again.cache.recovered()
    left = len(again.cache.residents)
    assert 0 < left < 100
    assert again.stats.tiers["ram"].evictions == {"capacity lowered": 100 - left}
    assert again.cache.media[0].tier.dropped.records == 0


async def test_placement_gets_the_slots_of_what_comes_in_and_of_nothing_else(restarted):
    bench = await restarted()
    await bench.get("dir1/7")  # The page is cached again before recovery finds its old record.
    entered = []
    bench.cache.recovery._entered = lambda slots: entered.extend(slots.tolist())
    bench.cache.start_recovery()
    await bench.cache.recovered()
    table = bench.cache.residents
    fresh = table.first_page(object_hash(ObjectRef("b", "dir1/7")))
    assert sorted([*entered, fresh]) == table.ready().tolist()
    assert fresh not in entered
    assert table.unverified[entered].all()


async def test_an_object_written_before_it_comes_in_never_does(restarted, tmp_path):
    bench = await restarted()
    async with bench.engine.writing([ObjectRef("b", "dir0/4")]):
        # The tombstone is on the medium before the origin changes. So even after a kill the old page cannot
        # come back.
        assert object_hash(ObjectRef("b", "dir0/4")) in await listed(tmp_path / "one" / "ram")
        bench.origin.put("b", "dir0/4", b"new")
    bench.cache.start_recovery()
    await bench.cache.recovered()
    assert len(bench.cache.residents) == 19
    assert await bench.get("dir0/4") == (b"new", Source.ORIGIN)
    assert await bench.cache.erasing.settle()
    assert await listed(tmp_path / "one" / "ram") == set()


async def written_while_busy(bench, writer, key):
    """Begin a write through the proxy while the thread that writes the disk tier is blocked."""
    entered = asyncio.Event()

    async def begin():
        async with bench.engine.writing([ObjectRef("b", key)]):
            entered.set()
            assert writer.go.is_set(), "the origin may change before the disk tier is told"

    task = asyncio.create_task(begin())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not entered.is_set()
    writer.go.set()
    await task


async def test_a_write_waits_until_the_disk_tier_has_noted_it(restarted, writer, tmp_path):
    """A write waits until the disk tier has stored the tombstone. Otherwise kill -9 after the answer could
    bring the overwritten page back.
    """
    bench = await restarted(disk=True, writer=writer)
    assert bench.cache.media[1].tier.pending_segments
    writer.hold()
    await written_while_busy(bench, writer, "dir0/4")
    assert object_hash(ObjectRef("b", "dir0/4")) in await listed(tmp_path / "one" / "disk")


async def test_so_does_a_second_write_behind_the_first(restarted, writer):
    bench = await restarted(disk=True, writer=writer)
    writer.hold()
    bench.cache.drop_object(ObjectRef("b", "dir0/4"), "written")
    bench.cache._erased = list(bench.cache.transfers.released)
    await written_while_busy(bench, writer, "dir0/4")


async def test_a_write_waits_for_what_the_recovery_erases(restarted, writer):
    bench = await restarted(disk=True, writer=writer)
    for n in range(20):
        bench.cache.recovery.note_version(object_hash(ObjectRef("b", f"dir{n % 2}/{n}")), 1)
    writer.hold()
    bench.cache.start_recovery()
    await bench.cache.recovered()
    assert len(bench.cache.residents) == 0
    await written_while_busy(bench, writer, "dir0/4")


async def test_tombstones_stay_until_the_records_that_recovery_ignored_are_erased(
    restarted, writer, tmp_path
):
    bench = await restarted(disk=True, writer=writer)
    refs = [ObjectRef("b", f"dir{n % 2}/{n}") for n in range(20)]
    async with bench.engine.writing(refs):
        pass
    await bench.cache.erasing.over()
    writer.hold()
    settling, busy = asyncio.create_task(bench.cache.erasing.settle()), threading.Event()
    await asyncio.sleep(0)
    # Recovery ends now, and its erasures wait behind other work of the disk's writer.
    writer.submit(busy.wait)
    bench.cache.start_recovery()
    await bench.cache.recovered()
    writer.go.set()
    try:
        await settling
        named = await listed(tmp_path / "one" / "disk")
    finally:
        busy.set()
    assert named == {object_hash(ref) for ref in refs}
    assert await bench.cache.erasing.settle()
    assert await listed(tmp_path / "one" / "disk") == set()


async def test_beside_a_segment_that_cannot_be_read_nothing_piles_up(restarted, monkeypatch, tmp_path):
    bench, real = await restarted(), pending_segments.restore

    def restore(segment, *arguments, **options):
        if segment.number == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(segment, *arguments, **options)

    monkeypatch.setattr(pending_segments, "restore", restore)
    await bench.engine.stat(ReadRequest(ObjectRef("b", "dir0/4")))
    async with bench.engine.writing([ObjectRef("b", "")]):
        pass
    recovery = bench.cache.recovery
    assert recovery._news
    assert recovery._stale_buckets
    bench.cache.start_recovery()
    await bench.cache.recovered()
    assert bench.cache.pending_segments == 1
    for n in range(20):
        await bench.get(f"dir{n % 2}/{n}")
    async with bench.engine.writing([ObjectRef("b", ""), ObjectRef("b", "dir0/6")]):
        pass
    assert not recovery._news
    assert not recovery._stale_buckets
    # The tombstone stays, because the next start may be able to read the segment.
    assert object_hash(ObjectRef("b", "dir0/6")) in await listed(tmp_path / "one" / "ram")


async def test_what_the_origin_said_meanwhile_beats_what_comes_in(restarted):
    bench = await restarted()
    bench.origin.put("b", "dir0/4", b"behind our back")
    request = ReadRequest(ObjectRef("b", "dir0/4"))
    assert (await bench.engine.stat(request))[0].size == 15
    assert bench.cache.find(Page(ObjectRef("b", "dir0/4"), '"x"', 0)) is None
    bench.cache.start_recovery()
    await bench.cache.recovered()
    # This object was not checked since the start, so its rule lets the cached page answer.
    assert (await bench.get("dir0/6"))[1] is Source.RAM
    bench.engine._versions.forget(request.ref)
    assert await bench.get("dir0/4") == (b"behind our back", Source.ORIGIN)


async def test_a_listing_with_other_etags_keeps_no_page_from_coming_in(restarted):
    """Some servers list other ETags than they send with objects."""
    bench = await restarted(page_size=700)
    tier, listing = bench.cache.media[0].tier, bench.origin.list_objects

    async def strange(*args, **options):
        page = await listing(*args, **options)
        return replace(page, entries=tuple(replace(one, etag='"strange"') for one in page.entries))

    bench.origin.list_objects = strange
    arrivals = tier.arrivals()
    while (arrival := await asyncio.to_thread(next, arrivals, None)) is not None:
        for contents in tier.take_in(arrival):
            bench.cache.recovery._take_in(0, contents)
        for prefix in ("dir0/", "dir1/"):
            bench.engine._versions._revalidator.check_listed(ObjectRef("b", prefix), 1)
        while not bench.engine.idle:
            await asyncio.sleep(0)
    assert len(bench.cache.residents) == 20 * 5


async def test_a_purge_waits_for_what_is_to_come(restarted):
    bench = await restarted()
    bench.cache.start_recovery()
    assert await purge_under(bench.engine, "b", "dir1/") == (10, 10, 10 * SIZE)
    assert bench.cache.pending_segments == 0
    assert len(bench.cache.residents) == 10


async def test_a_bucket_that_was_touched_is_asked_about_before_it_is_served(restarted):
    bench = await restarted()
    async with bench.engine.writing([ObjectRef("b", "")]):
        pass
    bench.cache.start_recovery()
    await bench.cache.recovered()
    assert (bench.cache.residents.validated_s[bench.cache.residents.ready()] == 0).all()


async def test_a_stop_while_pages_come_in_loses_none(restarted, tmp_path):
    bench = await restarted()
    bench.cache.start_recovery()
    await bench.cache.stop_recovery()
    assert len(bench.cache.residents) == 0
    assert bench.cache.pending_segments > 1
    await asyncio.to_thread(bench.cache.close)
    await asyncio.to_thread(bench.cache.recover)
    assert len(bench.cache.residents) == 20


def swap_pages(path, number=0):
    """Write catalogues in which pages are swapped, with correct hashes. No accident could produce such
    catalogues.
    """
    from shadeproxy.tiers import catalogue
    from shadeproxy.tiers.directory import claim

    held = claim(path / "ram", setting="cache.ram.path")
    for file in (path / "ram").glob("*.cat"):
        segment_bytes = file.with_suffix(".seg").stat().st_size
        key = catalogue.Key(held.store_id, int(file.stem), segment_bytes)
        found = catalogue.read(file, key, boot=None)
        rows = found.rows.copy()
        for name in ("object_hash", "etag"):
            rows[name][rows["number"] == number] = np.roll(rows[name][rows["number"] == number], 1)
        catalogue.write(file, found._replace(rows=rows), key, boot=held.boot)
    held.release()


async def test_a_catalogue_that_lies_costs_misses_and_no_wrong_byte(restarted):
    bench = await restarted(spoil=swap_pages)
    bench.cache.start_recovery()
    await bench.cache.recovered()
    assert len(bench.cache.residents) == 20
    for n in range(20):
        assert await bench.get(f"dir{n % 2}/{n}") == (bytes([n]) * SIZE, Source.ORIGIN)
    assert bench.counted_stats().snapshot()["evictions"]["damaged"] == 20


async def test_one_that_lies_about_later_pages_too(restarted):
    bench = await restarted(spoil=lambda path: swap_pages(path, number=1), page_size=1024)
    bench.cache.start_recovery()
    await bench.cache.recovered()
    assert len(bench.cache.residents) == 60
    for n in range(20):
        assert (await bench.get(f"dir{n % 2}/{n}"))[0] == bytes([n]) * SIZE
    assert bench.counted_stats().snapshot()["evictions"]["damaged"] == 20


def damage_bodies(path):
    for file in (path / "ram").glob("*.seg"):
        raw = bytearray(file.read_bytes())
        for n in range(20):
            at = raw.find(bytes([n]) * 1000)
            if at >= 0 and n:
                raw[at + 500] ^= 1
        file.write_bytes(raw)


async def test_a_damaged_page_is_not_demoted_as_if_it_were_whole(restarted):
    bench = await restarted(spoil=damage_bodies, count=8, disk=True)
    bench.cache.start_recovery()
    await bench.cache.recovered()
    for slot in bench.cache.residents.members[0].slots.tolist():
        bench.cache.transfers._evict(slot, "policy")
    await bench.cache.drain()
    for n in range(1, 8):
        assert (await bench.get(f"dir{n % 2}/{n}"))[0] == bytes([n]) * SIZE
