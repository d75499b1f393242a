"""Distrust: when the trust epoch rises, everything that came from the origin earlier is checked before it
answers.
"""

import asyncio
import os
from dataclasses import replace

import pytest

from shadeproxy.core.clock import boot_time_s
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.engine.worker_reads import TierFiles, WorkerReads
from tests.support.engine import PAGE, HeldIO
from tests.support.ownership import HeldOrigin, SetOwnership, all_kept

IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
REF = ObjectRef("b", "k")
PLAIN = ReadRequest(REF)
OLD, NEW = b"old" * 500, b"new!" * 500


@pytest.fixture
async def bench(make_bench):
    """Return an engine in a cluster. Its freshness rule requires no checks. Its only object is not cached
    yet.
    """
    bench = await make_bench(rules=IMMUTABLE, ownership=SetOwnership())
    bench.origin.put("b", "k", OLD)
    return bench


async def test_after_a_rise_each_page_is_checked_once(bench):
    bench.origin.put("b", "other", OLD)
    await bench.get("k")
    await bench.get("other")
    handle = bench.engine.find_handle(REF, 0, bench.clock.now_s())
    bench.origin.put("b", "k", NEW)
    bench.engine.distrust()
    assert bench.engine.take(handle, None, bench.clock.now_s()) is None
    assert not isinstance(bench.engine.usable_now(PLAIN), type(handle.meta))
    assert (await bench.get("k"))[0] == NEW
    assert await bench.get("other") == (OLD, Source.RAM)
    assert (bench.origin.heads, bench.origin.gets) == (2, 3)
    assert await bench.get("other") == (OLD, Source.RAM)
    assert bench.origin.heads == 2


async def test_reads_from_before_a_rise_still_count_as_uses_of_their_pages(bench):
    await bench.get("k")
    await bench.settle()
    slot = bench.cache.residents.first_page(object_hash(REF))
    bench.engine.access_log.flush()
    before = float(bench.cache.residents.uses[slot])
    handle = bench.engine.find_handle(REF, 0, bench.clock.now_s())
    assert bench.engine.take(handle, None, bench.clock.now_s()) is not None
    bench.engine.distrust()
    bench.engine.access_log.flush()
    assert bench.cache.residents.uses[slot] > before


async def test_objects_that_a_rise_does_not_concern_are_answered_at_once(bench):
    bench.origin.put("b", "other", OLD)
    await bench.get("k")
    await bench.get("other")
    handle = bench.engine.find_handle(REF, 0, bench.clock.now_s())
    kept = object_hash(REF)
    bench.engine.distrust(lambda hashes: hashes == kept)
    assert bench.engine.take(handle, None, bench.clock.now_s()) is None, "its handle is void all the same"
    assert await bench.get("k") == (OLD, Source.RAM)
    assert bench.origin.heads == 0
    await bench.get("other")
    assert bench.origin.heads == 1


class Later:
    """A stand-in for ``OffLoop`` that does its work when the test says so."""

    def __init__(self):
        self.works = []

    def __call__(self, work, done, _failed):
        self.works.append((work, done))

    def step(self):
        work, done = self.works.pop(0)
        done(work())


async def test_trust_that_comes_back_late_passes_over_pages_that_have_changed(make_bench, monkeypatch):
    monkeypatch.setattr("shadeproxy.engine.storage.distrust.AT_ONCE", 2)
    later = Later()
    bench = await make_bench(rules=IMMUTABLE, ownership=SetOwnership(), off_loop=later)
    keys = ["a", "b", "c", "d", "e"]
    for key in keys:
        bench.origin.put("b", key, OLD)
        await bench.get(key)
    asked = []

    def keep(hashes):
        asked.append(len(hashes))
        return all_kept(hashes)

    bench.engine.distrust(keep)
    assert not asked, "a big cache is not looked through on the loop"
    later.step()
    async with bench.engine.writing([ObjectRef("b", "c")]):
        bench.origin.put("b", "c", NEW)
    # This distrust concerns all pages. So the work left from the earlier one must give no page its trust
    # back.
    bench.engine.distrust()
    while later.works:
        later.step()
    assert asked == [2, 2, 1]
    for key in keys:
        await bench.get(key)
    assert bench.origin.heads == 4

    bench.engine.distrust(keep)
    while later.works:
        later.step()
    for key in keys:
        assert (await bench.get(key))[1] is Source.RAM
    assert bench.origin.heads == 4


async def test_no_reader_joins_a_flight_from_before_a_rise_and_it_is_not_stored(bench):
    early, gate = await bench.held("k")
    bench.engine.distrust(all_kept)
    bench.origin.put("b", "k", NEW)
    bench.origin.gate = None
    async with asyncio.timeout(2):
        assert (await bench.get("k"))[0] == NEW
    gate.release()
    assert (await early)[0] == OLD
    await bench.settle()
    assert await bench.get("k") == (NEW, Source.RAM)


async def test_no_reader_joins_a_check_from_before_a_rise_and_it_settles_nothing(make_bench):
    origin = HeldOrigin()
    bench = await make_bench(
        rules=(Rule(freshness=Freshness.REVALIDATE),), ownership=SetOwnership(), origin=origin
    )
    origin.put("b", "k", OLD)
    await bench.get("k")
    early = asyncio.create_task(bench.get("k"))
    await origin.asked.wait()
    bench.engine.distrust()
    origin.put("b", "k", NEW)
    origin.holds = False
    async with asyncio.timeout(2):
        assert (await bench.get("k"))[0] == NEW
    origin.go.set()
    await early
    bench.rules.adopt(IMMUTABLE)
    assert await bench.get("k") == (NEW, Source.RAM)


async def test_a_page_that_moves_to_a_disk_during_a_rise_is_checked(make_bench):
    bench = await make_bench(
        ram_bytes=4 * PAGE, disk_bytes=1 << 20, policy="lru", rules=IMMUTABLE, ownership=SetOwnership()
    )
    held = await bench.put_many_that_move_to_disk()
    bench.engine.distrust(lambda hashes: ~all_kept(hashes))
    for n in range(6):
        bench.origin.put("b", f"k{n}", b"new%d" % n * 700)
    held.go.set()
    await bench.settle()
    for n in range(6):
        assert (await bench.get(f"k{n}"))[0] == b"new%d" % n * 700


async def test_a_new_page_that_is_written_during_a_rise_is_not_stored(make_bench):
    bench = await make_bench(ram_bytes=2048, disk_bytes=1 << 20, rules=IMMUTABLE, ownership=SetOwnership())
    held, medium = HeldIO(), bench.cache.media[1]
    bench.cache.media[1] = replace(medium, write=held)
    bench.origin.put("b", "k", b"1" * 3000)
    early = asyncio.create_task(bench.get("k"))
    await held.waiting.wait()
    bench.engine.distrust()
    bench.origin.put("b", "k", b"2" * 3000)
    held.go.set()
    await early
    await bench.settle()
    assert not bench.cached(["k"])
    assert (await bench.get("k"))[0] == b"2" * 3000


async def test_metadata_that_is_read_from_a_disk_during_a_rise_is_checked(make_bench):
    bench = await make_bench(ram_bytes=2048, disk_bytes=1 << 20, rules=IMMUTABLE, ownership=SetOwnership())
    bench.origin.put("b", "k", b"1" * 3000)
    await bench.get("k")
    await bench.settle()
    bench.engine._versions.forget(REF)
    held, medium = HeldIO(), bench.cache.media[1]
    bench.cache.media[1] = replace(medium, load=held)
    bench.cache.media[1].tier.is_hot = lambda _location: False
    reader = asyncio.create_task(bench.get("k"))
    await held.waiting.wait()
    bench.engine.distrust()
    bench.cache.media[1] = medium
    held.go.set()
    await reader
    assert bench.origin.heads == 1
    bench.engine.distrust()
    bench.origin.put("b", "k", b"2" * 3000)
    assert (await bench.get("k"))[0] == b"2" * 3000


async def test_rights_that_the_origin_granted_before_a_rise_are_asked_for_again(make_bench):
    bench = await make_bench(rules=IMMUTABLE, ownership=SetOwnership(), verdicts=True)
    bench.origin.put("b", "k", OLD)
    await bench.get("k")
    assert bench.engine.usable_now(PLAIN) is not None
    bench.engine.distrust(all_kept)
    assert bench.engine.usable_now(PLAIN) is None


async def test_a_worker_answers_what_is_still_trusted_while_the_lease_lasts(make_bench):
    share = Share.create()
    bench = await make_bench(rules=IMMUTABLE, ownership=SetOwnership(), share=share)
    bench.origin.put("b", "k", OLD)
    await bench.get("k")
    tiers = [
        TierFiles(m.tier.path, m.tier.claim.store_id, m.source, can_wait=False) for m in bench.cache.media
    ]
    worker = WorkerReads(
        Share(os.dup(share.descriptor)),
        tiers,
        rules=Rules(IMMUTABLE),
        clock=bench.clock,
        page_size=PAGE,
        on_flush=lambda *_: None,
        is_elsewhere=lambda _ref: False,
    )
    assert worker.usable_now(PLAIN) is None
    share.show_lease(boot_time_s() + 60)
    assert worker.usable_now(PLAIN) is not None
    bench.engine.distrust(all_kept)
    assert worker.usable_now(PLAIN) is not None
    bench.engine.distrust()
    assert worker.usable_now(PLAIN) is None
    await bench.get("k")
    assert worker.usable_now(PLAIN) is not None
