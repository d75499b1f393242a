"""A disk that is slower than the origin gets no more reads than it can carry out in time. If the origin
fails, the disk serves all the same.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.deadline import DEADLINE, DEFAULT_BOUNDS, Deadline, ReadBounds
from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.engine.storage.load_queue import LoadQueue, OriginPace
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy.origin.wrapping import WrappedOrigin
from shadeproxy.telemetry.stats import Stats
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.engine import HeldIO

IMMUTABLE = (Rule(freshness=Freshness.IMMUTABLE),)
SIZE = 3000
COUNT = 60


class Disk:
    """A disk with a virtual clock. It carries out its reads one after another, and each takes ``read_s``."""

    def __init__(self, read_s: float) -> None:
        self.read_s = read_s
        self.now_s = 0.0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def load(self, work) -> None:
        await self.goes_on.wait()
        self.now_s += self.read_s
        work()


def queue_of(disk: Disk, origin_s: float) -> LoadQueue:
    return LoadQueue(lambda _size: origin_s, now_s=lambda: disk.now_s)


async def test_a_disk_is_behind_once_its_queue_is_longer_than_a_get():
    disk = Disk(0.01)
    queue = queue_of(disk, 0.05)
    await queue.run(disk.load, lambda: None)
    assert not queue.is_behind(1000)  # A read takes 10 ms from the disk, and 50 ms from the origin.
    disk.goes_on.clear()
    running = [asyncio.create_task(queue.run(disk.load, lambda: None)) for _ in range(4)]
    await asyncio.sleep(0)
    assert not queue.is_behind(1000)  # A fifth read would end after 50 ms, as it would at the origin.
    running.append(asyncio.create_task(queue.run(disk.load, lambda: None)))
    await asyncio.sleep(0)
    assert queue.is_behind(1000)
    disk.goes_on.set()
    await asyncio.gather(*running)
    assert not queue.is_behind(1000)


async def test_a_fast_disk_is_never_behind_a_faster_origin():
    disk = Disk(0.0001)
    queue = queue_of(disk, 0.00001)
    await queue.run(disk.load, lambda: None)
    disk.goes_on.clear()
    running = [asyncio.create_task(queue.run(disk.load, lambda: None)) for _ in range(64)]
    await asyncio.sleep(0)
    assert not queue.is_behind(1000)  # All waiting reads end within 20 ms.
    disk.goes_on.set()
    await asyncio.gather(*running)


async def test_a_disk_that_was_left_alone_gets_one_read_a_second_and_recovers():
    disk = Disk(0.2)
    queue = queue_of(disk, 0.05)
    await queue.run(disk.load, lambda: None)
    assert queue.is_behind(1000)
    disk.now_s += 1.5
    assert not queue.is_behind(1000)
    disk.read_s = 0.001
    for _ in range(64):
        await queue.run(disk.load, lambda: None)
    assert not queue.is_behind(1000)


async def test_a_failed_read_leaves_no_place_in_the_queue():
    def fail() -> None:
        raise OSError(5, "Input/output error")

    disk = Disk(0.1)
    queue = queue_of(disk, 0.05)
    for _ in range(10):
        with pytest.raises(OSError, match="Input/output"):
            await queue.run(disk.load, fail)
    await queue.run(disk.load, lambda: None)
    disk.now_s += 1.5
    assert not queue.is_behind(1000)  # No read waits.


async def test_a_disk_whose_reads_fail_slowly_is_behind():
    def fail() -> None:
        raise OSError(5, "Input/output error")

    disk = Disk(30.0)  # A dying disk repeats a read for half a minute before it reports the error.
    queue = queue_of(disk, 0.05)
    with pytest.raises(OSError, match="Input/output"):
        await queue.run(disk.load, fail)
    assert queue.is_behind(1000)


async def test_a_disk_that_hangs_is_behind_once_a_reader_has_given_up():
    disk = Disk(0.001)
    queue = queue_of(disk, 0.05)
    for _ in range(20):
        await queue.run(disk.load, lambda: None)
    disk.goes_on.clear()
    reader = asyncio.create_task(queue.run(disk.load, lambda: None))
    await asyncio.sleep(0)
    disk.now_s += 60.0
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert queue.is_behind(1000)


async def test_readers_that_leave_at_once_do_not_make_a_disk_look_faster():
    disk = Disk(0.2)
    queue = queue_of(disk, 0.05)
    await queue.run(disk.load, lambda: None)
    disk.goes_on.clear()
    for _ in range(64):
        reader = asyncio.create_task(queue.run(disk.load, lambda: None))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    assert queue.is_behind(1000)


def test_the_pace_of_an_origin_is_that_of_its_latest_gets():
    health = {"answering": True}
    stats = Stats(origin_health=lambda: health)
    pace = OriginPace(stats)
    assert pace.get_s(1000) == float("inf")
    for _ in range(32):
        stats.record_origin("get", 1000, 0.5)
    assert pace.get_s(1000) == pytest.approx(0.5)
    for _ in range(31):
        stats.record_origin("get", 1000, 0.01)
    assert pace.get_s(1000) == pytest.approx(0.5)
    stats.record_origin("get", 1000, 0.01)
    assert pace.get_s(1000) == pytest.approx(0.01)
    # A body four times as long as the mean takes four times as long.
    assert pace.get_s(4000) == pytest.approx(0.04)
    assert pace.get_s(10) == pytest.approx(0.01)
    for no_proof in (False, None):
        health["answering"] = no_proof
        assert pace.get_s(1000) == float("inf")


class SlowDisk:
    """A bench whose disk tier has objects k0 and so on. The test decides when this disk is behind."""

    def __init__(self, bench) -> None:
        self.bench = bench
        self.loads = 0
        medium = bench.cache.media[1]
        tier = medium.tier
        # The machine has these pages in its page cache, so pretend that it has not.
        tier.is_hot = lambda _location: False
        self.queue = bench.cache._places._queues[1]
        bench.cache.media[1] = replace(medium, load=self._load)

    async def _load(self, work) -> None:
        self.loads += 1
        await asyncio.sleep(0)
        work()

    def be_behind(self) -> None:
        self.queue._pace_s = 10.0
        self.queue._ended_s = self.queue._now_s()
        self.queue._origin_s = lambda _size: 0.03

    def on_disk(self) -> list[str]:
        tiers = self.bench.cache.residents
        return [name for name in names() if tiers.tiers[first_slot(self.bench, name)] == 1]


def names() -> list[str]:
    return [f"k{number}" for number in range(COUNT)]


def body(name: str) -> bytes:
    return (name.encode() * SIZE)[:SIZE]


def first_slot(bench, name: str) -> int:
    return bench.cache.residents.first_page(object_hash(ObjectRef("b", name)))


@pytest.fixture
async def slow(make_bench):
    origin = MemoryOrigin()
    for name in names():
        origin.put("b", name, body(name))
    bench = await make_bench(origin=origin, ram_bytes=64 << 10, disk_bytes=8 << 20, rules=IMMUTABLE)
    for name in names():
        await bench.get(name)
        await bench.settle()
    return SlowDisk(bench)


async def test_reads_of_a_disk_that_is_behind_go_to_the_origin_and_its_pages_stay(slow):
    bench, there = slow.bench, slow.on_disk()
    assert len(there) > COUNT / 2
    slow.be_behind()
    admitted = bench.counted_stats().snapshot()["tiers"]["disk"]["admissions"]
    for name in there:
        assert await bench.get(name) == (body(name), Source.ORIGIN)
        await bench.settle()
    tiers = bench.counted_stats().snapshot()["tiers"]
    assert slow.loads == 0
    # The fetched pages were stored in no tier, because they are on the disk already.
    assert slow.on_disk() == there
    assert tiers["disk"]["admissions"] == admitted
    assert tiers["disk"]["left_to_origin"] == len(there)


async def test_pages_that_the_kernel_has_in_memory_are_hits_of_a_disk_that_is_behind(slow):
    there = slow.on_disk()
    slow.be_behind()
    slow.bench.cache.media[1].tier.is_hot = lambda _location: True
    for name in there[:5]:
        assert (await slow.bench.get(name))[1] in (Source.DISK, Source.RAM)


async def test_a_range_of_a_page_costs_its_own_bytes_only(slow):
    name = slow.on_disk()[0]
    slow.be_behind()
    before = slow.bench.stats.pages.bypassed
    found, source = await slow.bench.get(name, range=RangeSpec(10, 19))
    assert (found, source) == (body(name)[10:20], Source.ORIGIN)
    await slow.bench.settle()
    assert slow.bench.stats.pages.bypassed == before + 1


async def test_a_slow_disk_answers_when_the_origin_fails(slow, monkeypatch):
    bench, there = slow.bench, slow.on_disk()
    slow.be_behind()

    def refuse(*_args, **_kwargs):
        raise OriginUnavailable("the origin does not answer")

    monkeypatch.setattr(bench.origin, "open", refuse)
    assert await bench.get(there[0]) == (body(there[0]), Source.DISK)
    assert slow.loads == 1


@pytest.mark.parametrize("behind", [False, True])
async def test_a_disk_gets_all_the_time_that_is_left_when_the_origin_has_failed(slow, monkeypatch, behind):
    """The disk gives the page only after the half of the time that it gets while the origin may answer."""
    bench, name = slow.bench, slow.on_disk()[0]
    if behind:
        slow.be_behind()
    held = HeldIO()
    bench.cache.media[1] = replace(bench.cache.media[1], load=held)
    refused = asyncio.Event()

    def refuse(*_args, **_kwargs):
        refused.set()
        raise OriginUnavailable("the origin does not answer")

    monkeypatch.setattr(bench.origin, "open", refuse)
    # The page comes after half of the time that is left when the origin has failed.
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=4.0 if behind else 8.0)))
    reading = asyncio.create_task(bench.get(name))
    await refused.wait()
    await asyncio.sleep(2.5)
    held.go.set()
    assert await reading == (body(name), Source.DISK)


async def test_a_disk_that_takes_long_reads_a_page_once_when_the_origin_fails(slow, monkeypatch):
    """The disk gives the page after the half of the time that it gets while the origin may answer."""
    bench, name = slow.bench, slow.on_disk()[0]
    loads, go, refused = 0, asyncio.Event(), asyncio.Event()

    async def load(work):
        nonlocal loads
        loads += 1
        await go.wait()
        work()

    def refuse(*_args, **_kwargs):
        refused.set()
        raise OriginUnavailable("the origin does not answer")

    bench.cache.media[1] = replace(bench.cache.media[1], load=load)
    monkeypatch.setattr(bench.origin, "open", refuse)
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=2.0)))
    reading = asyncio.create_task(bench.get(name))
    await refused.wait()
    go.set()
    assert await reading == (body(name), Source.DISK)
    assert loads == 1


async def test_a_disk_that_takes_long_reads_a_page_once_when_the_origin_breaks_off(slow):
    """The origin fails after the head of its answer, while the disk still reads the page."""
    bench, name = slow.bench, slow.on_disk()[0]
    loads, go, broke_off = 0, asyncio.Event(), asyncio.Event()

    async def load(work):
        nonlocal loads
        loads += 1
        await go.wait()
        work()

    class BreaksOff(FaultyOrigin):
        @asynccontextmanager
        async def open(self, ref, **options):
            try:
                async with super().open(ref, **options) as read:
                    yield read
            finally:
                broke_off.set()

    bench.cache.media[1] = replace(bench.cache.media[1], load=load)
    bench.engine._filling.filler._origin = BreaksOff(bench.origin, script=[Fault(cut_after_bytes=1000)])
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=2.0)))
    reading = asyncio.create_task(bench.get(name))
    await broke_off.wait()
    go.set()
    assert (await reading)[0] == body(name)
    assert loads == 1


@pytest.mark.parametrize("reads_body", [True, False])
async def test_a_load_ends_with_the_read_that_the_origin_has_answered(slow, reads_body):
    bench, name = slow.bench, slow.on_disk()[0]
    held, ended = HeldIO(), asyncio.Event()

    async def load(work):
        try:
            await held(work)
        finally:
            ended.set()

    bench.cache.media[1] = replace(bench.cache.media[1], load=load)
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=0.3)))
    async with bench.engine.open(ReadRequest(ObjectRef("b", name))) as reading:
        assert reading.source is Source.ORIGIN
        if reads_body:
            pieces = [bytes(piece) async for piece in reading.body(Span(0, SIZE))]
            assert b"".join(pieces) == body(name)
            await asyncio.wait_for(ended.wait(), 10)
    await asyncio.wait_for(ended.wait(), 10)


class SilentOrigin(WrappedOrigin):
    """An origin that never answers a GET."""

    @asynccontextmanager
    async def open(self, _ref, **_options):
        yield await asyncio.Event().wait()


def mute(origin):
    """Return an origin that answers a GET with a head, and then sends no body."""
    return FaultyOrigin(origin, script=[Fault(stall_after_bytes=0)])


@pytest.mark.parametrize("silenced", [SilentOrigin, mute])
async def test_a_slow_disk_answers_in_time_when_the_origin_is_silent(slow, silenced):
    bench, there = slow.bench, slow.on_disk()
    slow.be_behind()
    bench.engine._filling.filler._origin = silenced(bench.origin)
    DEADLINE.set(Deadline(bench.clock, DEFAULT_BOUNDS))
    reader = asyncio.create_task(bench.get(there[0]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert slow.loads == 0
    bench.clock.advance(DEFAULT_BOUNDS.first_byte_s / 2 + 0.1)
    for flight in list(bench.engine._filling.flights.live[ObjectRef("b", there[0])]):
        flight.refuse_late()
    assert (await reader)[0] == body(there[0])
    assert slow.loads == 1


async def test_a_slow_disk_goes_on_where_the_origin_broke_off(slow):
    bench, there = slow.bench, slow.on_disk()
    slow.be_behind()
    bench.engine._filling.filler._origin = FaultyOrigin(bench.origin, script=[Fault(cut_after_bytes=1000)])
    found, source = await bench.get(there[0])
    assert found == body(there[0])
    assert source in (Source.ORIGIN, Source.DISK)
    assert slow.loads == 1


async def test_where_a_disk_hangs_the_origin_tells_what_the_disk_knows(slow):
    bench, name = slow.bench, slow.on_disk()[0]
    held, medium = HeldIO(), bench.cache.media[1]
    bench.cache.media[1] = replace(medium, load=held)
    bench.engine._versions._metadata.clear()
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=0.2)))
    assert (await bench.engine.stat(ReadRequest(ObjectRef("b", name))))[0].size == SIZE
    assert held.waiting.is_set()
    assert name in slow.on_disk()  # The disk may only be slow.
    bench.engine._versions._metadata.clear()
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=0.2)))
    assert (await bench.get(name)) == (body(name), Source.ORIGIN)


async def test_a_page_on_a_disk_that_hangs_comes_from_the_origin_in_time(slow):
    bench, name = slow.bench, slow.on_disk()[0]
    held = HeldIO()
    bench.cache.media[1] = replace(bench.cache.media[1], load=held)
    DEADLINE.set(Deadline(SystemClock(), ReadBounds(first_byte_s=0.3)))
    got, source = await asyncio.wait_for(bench.get(name), 10)
    assert (got, source) == (body(name), Source.ORIGIN)
    assert name in slow.on_disk(), "the page stays cached"
    held.go.set()


async def test_a_page_that_the_disk_lost_meanwhile_is_stored(slow):
    bench, name = slow.bench, slow.on_disk()[0]
    slow.be_behind()
    gate = Barrier()
    bench.origin.gate = gate
    reader = asyncio.create_task(bench.get(name))
    await gate.reached.wait()
    bench.cache.drop(first_slot(bench, name), "damaged")
    gate.release()
    assert (await reader)[0] == body(name)
    await bench.settle()
    assert first_slot(bench, name) is not None


async def test_a_read_that_falls_back_counts_once(slow, monkeypatch):
    bench, there = slow.bench, slow.on_disk()
    slow.be_behind()

    def refuse(*_args, **_kwargs):
        raise OriginUnavailable("the origin does not answer")

    bench.engine.access_log.flush()
    before = bench.cache.tick()
    monkeypatch.setattr(bench.origin, "open", refuse)
    await bench.get(there[0])
    bench.engine.access_log.flush()
    assert bench.cache.tick() == before + 1


async def test_an_object_that_changed_at_the_origin_is_read_in_its_new_version(slow):
    bench, there = slow.bench, slow.on_disk()
    slow.be_behind()
    bench.origin.put("b", there[0], b"other" * 100)
    assert (await bench.get(there[0]))[0] == b"other" * 100


async def test_readers_of_a_slow_page_share_one_get(slow, monkeypatch):
    bench, name = slow.bench, slow.on_disk()[0]
    slow.be_behind()
    gets, opened = [], bench.origin.open
    monkeypatch.setattr(
        bench.origin, "open", lambda *args, **more: gets.append(args) or opened(*args, **more)
    )
    found = await asyncio.gather(*(bench.get(name) for _ in range(8)))
    assert {one for one, _ in found} == {body(name)}
    assert len(gets) == 1
