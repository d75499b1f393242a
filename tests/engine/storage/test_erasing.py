"""The engine refuses a write if a restart could bring the old version back. It tries failed
erasures again.
"""

import asyncio
import errno
import os
from contextlib import nullcontext
from dataclasses import replace

import pytest

from shadeproxy.core.errors import WriteRefused
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.read import writes
from shadeproxy.engine.storage import erasing
from shadeproxy.tiers import tombstones
from shadeproxy.tiers.tombstones import Tombstones
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled
from tests.support.clock import ManualClock
from tests.support.engine import HeldIO
from tests.support.purging import purge_under

REF = ObjectRef("b", "k")


@pytest.fixture
def refusing(monkeypatch):
    """Return a list of one flag. While ``refusing[0]`` is true, no tombstone can be written."""
    state = [False]
    real = Tombstones.add

    def add(self, hashed):
        if state[0]:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(self, hashed)

    monkeypatch.setattr(Tombstones, "add", add)
    return state


@pytest.fixture
async def bench(make_bench):
    """Return a bench with one cached object. Its medium can lose writes."""
    made = await make_bench(ram_bytes=1 << 16, disk_bytes=1 << 20)
    made.origin.put("b", "k", b"old" * 1000)
    await made.get("k")
    return made


async def with_pages_on_disk(make_bench):
    """Return a bench with 30 cached objects, ``k0`` to ``k29``. Most of them are on the disk."""
    made = await make_bench(ram_bytes=1 << 15, disk_bytes=1 << 20)
    for number in range(30):
        made.origin.put("b", f"k{number}", bytes([number]) * 4000)
        await made.get(f"k{number}")
        await made.settle()
    return made


async def test_a_write_is_refused_in_time_while_a_disk_hangs(make_bench, monkeypatch):
    monkeypatch.setattr(writes, "_ERASED_S", 0.2)
    bench = await with_pages_on_disk(make_bench)
    held, medium = HeldIO(), bench.cache.media[1]
    bench.cache.media[1] = replace(medium, write=held)
    with pytest.raises(WriteRefused, match=r"a disk of the cache has not answered .*: nothing was written"):
        async with bench.engine.writing([ObjectRef("b", "k1")]):
            raise AssertionError("the origin would be asked")
    bench.cache.media[1] = medium
    held.go.set()
    async with bench.engine.writing([ObjectRef("b", "k1")]):
        bench.origin.put("b", "k1", b"new")
    assert (await bench.get("k1"))[0] == b"new"


@pytest.mark.parametrize("lasting", [False, True])
async def test_a_write_waits_only_for_disks_that_had_a_page_of_its_object(make_bench, monkeypatch, lasting):
    """A tombstone on a tmpfs stands for erasures that wait for a slow disk: those of evicted pages. A disk
    tier that is itself on a tmpfs has no tombstones, so a write waits for its erasures.
    """
    monkeypatch.setattr(writes, "_ERASED_S", 0.2)
    bench = await with_pages_on_disk(make_bench)
    ram, medium = bench.cache.media
    ram.tier.erasures._lasting, erasures = True, medium.tier.erasures
    erasures._lasting, erasures._session.tombstones.on_tmpfs = lasting, not lasting
    table, refs = bench.cache.residents, [ObjectRef("b", f"k{number}") for number in range(30)]
    slots = {ref: table.first_page(object_hash(ref)) for ref in refs}
    evicted, kept, *_ = [ref for ref, slot in slots.items() if slot is not None and table.tiers[slot] == 1]
    bench.cache.drop_object(evicted, "policy")
    bench.cache.media[1] = replace(medium, write=HeldIO())
    for ref, refused in ((ObjectRef("b", "new"), lasting), (evicted, lasting), (kept, True)):
        with pytest.raises(WriteRefused) if refused else nullcontext():
            async with bench.engine.writing([ref]):
                assert lasting or object_hash(ref) in await noted(bench, 1)
    bench.cache.media[1] = medium


async def test_a_write_that_cannot_be_noted_is_refused_before_the_origin_hears_of_it(bench, refusing):
    refusing[0] = True
    with pytest.raises(
        WriteRefused, match=r"tier cannot record .* old \(Read-only file system\).*was written"
    ):
        async with bench.engine.writing([REF]):
            raise AssertionError("the origin would be asked")
    # Writes to this object and to others are accepted again once tombstones can be written.
    refusing[0] = False
    async with bench.engine.writing([REF, ObjectRef("b", "other")]):
        bench.origin.put("b", "k", b"new")
    assert (await bench.get("k"))[0] == b"new"


async def noted(bench, tier=0) -> set[int]:
    """Return the tombstones that the next process would find."""
    other = Tombstones(bench.cache.media[tier].tier.claim.session.tombstones.path)
    assert await asyncio.to_thread(other.read)
    return other.found


async def test_the_name_is_noted_when_the_origin_is_asked(bench):
    async with bench.engine.writing([REF]):
        assert object_hash(REF) in await noted(bench)


async def test_a_purge_that_cannot_be_noted_nor_flushed_is_no_success(bench, refusing, monkeypatch):
    def doubt_all(_self):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    refusing[0] = True
    tier = bench.cache.media[0].tier
    calls = FaultyCalls(scheduled(script=[MediumFault.FLUSH_EIO] * 3))
    for segment in tier._all_segments():
        segment._calls = calls
    with monkeypatch.context() as patched:
        patched.setattr(Tombstones, "doubt_all", doubt_all)
        with pytest.raises(WriteRefused, match="cannot record"):
            await purge_under(bench.engine, "b", "k")
    refusing[0] = False
    await bench.cache.erasing.settle()
    assert (await purge_under(bench.engine, "b", "k"))[0] == 0


async def test_a_purge_that_cannot_be_noted_is_on_the_medium_itself(bench, refusing):
    refusing[0] = True
    assert (await purge_under(bench.engine, "b", "k"))[0] == 1
    tier = bench.cache.media[0].tier
    assert not tier.erasures.any_unmarked
    assert not any(segment.unflushed for segment in tier._all_segments())


@pytest.fixture
def few_slots(monkeypatch):
    """Leave room for only eight tombstones in each half of the file."""
    monkeypatch.setattr(tombstones, "_SLOTS", 8)


async def test_a_purge_of_more_objects_than_there_is_room_for_names_leaves_nothing_in_doubt(
    few_slots, make_bench
):
    made = await make_bench(ram_bytes=1 << 19, disk_bytes=1 << 20)
    for number in range(100):
        made.origin.put("b", str(number), b"x" * 1000)
        await made.get(str(number))
    assert (await purge_under(made.engine, "b", ""))[0] == 100
    for medium in made.cache.media:
        assert not medium.tier.erasures.in_doubt
        assert not medium.tier.erasures.unsettled


async def test_names_that_fill_their_room_are_settled_before_it_is_full(few_slots, make_bench, monkeypatch):
    """Tombstones are settled before they fill their file. Here clients write some objects every second."""
    made = await make_bench(ram_bytes=1 << 16, disk_bytes=1 << 20)
    made.origin.put("b", "k", b"old" * 1000)
    await made.get("k")
    clock, written = ManualClock(), []

    async def sleep(_seconds):
        await asyncio.sleep(0)
        if len(written) < 100:
            refs = [ObjectRef("b", str(len(written) + number)) for number in range(5)]
            async with made.engine.writing(refs):
                written.extend(refs)

    monkeypatch.setattr(clock, "sleep", sleep)
    made.cache.erasing.start(clock)
    while len(written) < 100:
        await asyncio.sleep(0.001)
    await made.cache.erasing.aclose()
    assert not any(medium.tier.erasures.in_doubt for medium in made.cache.media)


async def test_a_version_that_is_seen_to_be_old_is_noted_too(bench):
    """An object also gets a tombstone when a check in the background finds another version. A restart must
    not serve the old version.
    """
    bench.origin.put("b", "k", b"new")
    bench.engine._outdated(REF)
    assert object_hash(REF) in await noted(bench)


async def test_owed_erasures_are_tried_again_in_the_background(bench, monkeypatch):
    schedule = scheduled(script=[MediumFault.WRITE_EIO] * 5)
    tier = bench.cache.media[0].tier
    for segment in tier._all_segments():
        segment._calls = FaultyCalls(schedule)
    async with bench.engine.writing([REF]):
        bench.origin.put("b", "k", b"new")
    assert tier.erasures.owed == 1
    waits, clock = [], ManualClock()
    real = clock.sleep

    async def sleep(seconds):
        waits.append(seconds)
        await real(seconds)

    monkeypatch.setattr(clock, "sleep", sleep)
    bench.cache.erasing.start(clock)
    while tier.erasures.unsettled:
        await asyncio.sleep(0.001)
    await bench.cache.erasing.aclose()
    assert sum(waits) > 4 * erasing._RETRY_S, "later each time"
    assert tier.erasures.owed == tier.erasures.tombstones == 0


@pytest.mark.parametrize("fault", [MediumFault.FLUSH_EIO, MediumFault.WRITE_EIO])
async def test_a_purge_on_a_medium_that_forgets_puts_in_doubt_what_no_slot_tells_of(bench, fault):
    """A purge on a medium that loses writes puts the tier in doubt, because of pages that have no slot. A
    page that was evicted earlier may match the prefix and may come back.
    """
    tier = bench.cache.media[0].tier
    schedule = scheduled(script=[fault] * 20)
    for segment in tier._all_segments():
        segment._calls = FaultyCalls(schedule)
    cache = bench.cache
    cache.drop(int(cache.residents.ready()[0]), "policy")
    assert not tier.erasures.in_doubt
    await purge_under(bench.engine, "b", "")
    assert tier.erasures.in_doubt


async def test_a_purge_on_a_sound_medium_leaves_nothing_to_doubt(bench):
    await purge_under(bench.engine, "b", "")
    for medium in bench.cache.media:
        assert not medium.tier.erasures.in_doubt
        assert not medium.tier.erasures.unsettled
        assert not any(segment.unflushed for segment in medium.tier._all_segments())


async def test_purges_at_once_settle_one_after_another(bench, monkeypatch):
    """Purges at the same time settle one after another. Otherwise each purge would occupy a thread that reads
    need.
    """
    steps, erasures = [], bench.cache.media[-1].tier.erasures

    def noting(name):
        real = getattr(erasures, name)

        def noted(*arguments):
            steps.append(name)
            return real(*arguments)

        monkeypatch.setattr(erasures, name, noted)

    noting("turn")
    noting("settle")
    await asyncio.gather(*(purge_under(bench.engine, "b", "") for _ in range(3)))
    assert steps == ["turn", "settle"] * 3
