"""Which clients are cut off while reads wait for memory, and which are not."""

import asyncio
from dataclasses import dataclass, field

import pytest

from shadeproxy.core.ledger import Ledger
from shadeproxy.core.tracing import CLIENT
from shadeproxy.core.types import Intent
from shadeproxy.engine.read.flight import DetachedBuffers
from shadeproxy.engine.read.slow_readers import LEAST_BYTES_PER_S, PAUSE_S, SHARED_S, SlowReaders
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock

PAGE = 100
PAGES = 20


@dataclass(eq=False)
class Reader:
    """A reader, and its flight."""

    ledger: Ledger
    client: str = "slow"
    pace: float = 0.0
    bytes_taken: int = 0
    budget_bytes: int = PAGE
    over: bool = True
    is_taker: bool = True
    is_cut: bool = False

    @property
    def taker(self):
        return self if self.is_taker else None

    @property
    def followers(self):
        return [] if self.is_cut else [self]

    @property
    def held_bytes(self):
        return self.budget_bytes

    def cut(self):
        assert not self.is_cut
        self.is_cut = True
        self.ledger.give(self.budget_bytes)
        self.budget_bytes = 0


@dataclass
class Scene:
    ledger: Ledger = field(default_factory=lambda: Ledger(PAGES * PAGE))
    clock: ManualClock = field(default_factory=ManualClock)
    stats: Stats = field(default_factory=Stats)
    detached: DetachedBuffers = field(default_factory=lambda: DetachedBuffers(0))
    readers: list[Reader] = field(default_factory=list)
    waiters: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self):
        self.slow = SlowReaders(
            lambda: self, self.detached, ledger=self.ledger, stats=self.stats, clock=self.clock
        )

    def all(self):
        return list(self.readers)

    def add(self, count, **options):
        for _ in range(count):
            assert self.ledger.try_take(PAGE)
            self.readers.append(Reader(self.ledger, **options))
        return self.readers[-count:]

    async def wait(self, client="good"):
        """Let a read wait for memory."""

        async def take():
            CLIENT.set(client)
            await self.ledger.take(PAGE, Intent.DEMAND)

        self.waiters.append(asyncio.create_task(take()))
        await asyncio.sleep(0)

    async def run(self, seconds):
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            for reader in self.readers:
                reader.bytes_taken += round(reader.pace)
            self.slow.look()
            for _ in range(3):
                await asyncio.sleep(0)

    @property
    def cut(self):
        return [reader for reader in self.readers if reader.is_cut]


@pytest.fixture
async def scene():
    scene = Scene()
    yield scene
    for waiter in scene.waiters:
        waiter.cancel()
    await asyncio.gather(*scene.waiters, return_exceptions=True)


async def test_no_client_is_cut_off_while_no_read_waits(scene):
    scene.add(PAGES)
    await scene.run(1000)
    assert not scene.cut
    assert scene.stats.gauges["slow_clients_cut"]() == 0


async def test_a_read_that_waits_gets_the_memory_of_a_client_that_is_slow_already(scene):
    scene.add(PAGES)
    await scene.run(PAUSE_S + 2)
    await scene.wait()
    await scene.run(1)
    assert len(scene.cut) == 1
    assert scene.waiters[0].done()
    assert scene.stats.gauges["slow_clients_cut"]() == 1


async def test_a_client_has_some_seconds(scene):
    scene.add(PAGES)
    await scene.wait()
    await scene.run(PAUSE_S)
    assert not scene.cut
    await scene.run(2)
    assert len(scene.cut) == 1


@pytest.mark.parametrize("late", ["over", "budget", "elsewhere", "plenty"])
async def test_only_clients_that_keep_memory_are_cut_off(scene, late):
    """Readers are left alone whose page is on its way or stored, or whose client another process serves, and
    all readers while memory is plenty.
    """
    if late == "plenty":
        scene.add(PAGES // 2)
    else:
        for reader in scene.add(PAGES):
            reader.over = late != "over"
            reader.budget_bytes = 0 if late == "budget" else PAGE
            reader.is_taker = late != "elsewhere"
        await scene.wait()
    await scene.run(100)
    assert not scene.cut


async def test_a_client_with_a_good_pace_is_never_cut_off(scene):
    good = scene.add(PAGES // 2, pace=LEAST_BYTES_PER_S)
    scene.add(PAGES // 2, pace=1)
    for _ in range(PAGES):
        await scene.wait()
    await scene.run(300)
    assert not any(reader.is_cut for reader in good)
    assert len(scene.cut) == PAGES // 2


async def test_pauses_are_allowed_if_the_client_has_taken_enough_before(scene):
    (bursts,) = scene.add(1)
    scene.add(PAGES - 1, pace=LEAST_BYTES_PER_S)
    await scene.wait()
    for _ in range(50):
        await scene.run(PAUSE_S - 1)
        bursts.bytes_taken += round(PAUSE_S * LEAST_BYTES_PER_S)
        await scene.run(1)
    assert not scene.cut


async def test_a_burst_buys_no_more_than_one_pause(scene):
    (reader,) = scene.add(1)
    scene.add(PAGES - 1, pace=LEAST_BYTES_PER_S)
    await scene.wait()
    await scene.run(1)
    reader.bytes_taken += 1 << 40
    await scene.run(PAUSE_S + 1)
    assert scene.cut == [reader]


async def test_the_slowest_client_is_cut_off_first(scene):
    drips = scene.add(PAGES - 1, pace=LEAST_BYTES_PER_S / 2)
    (stalls,) = scene.add(1)
    await scene.run(30)
    await scene.wait()
    await scene.run(1)
    assert scene.cut == [stalls]
    assert len(drips) == PAGES - 1


async def test_one_look_frees_no_more_than_a_quarter(scene):
    scene.add(PAGES)
    await scene.run(PAUSE_S + 2)
    for _ in range(PAGES):
        await scene.wait()
    for looks in range(1, 5):
        await scene.run(1)
        assert len(scene.cut) == looks * PAGES // 4
    assert all(waiter.done() for waiter in scene.waiters)


async def test_bodies_that_tasks_read_are_looked_at_too(scene):
    assert scene.ledger.try_take(PAGES * PAGE)
    body = Reader(scene.ledger)
    scene.detached.bodies.add(body)
    await scene.wait()
    await scene.run(PAUSE_S + 2)
    assert body.is_cut


async def test_clients_that_were_cut_off_share_one_turn_for_a_while(scene):
    for number in range(PAGES):
        scene.add(1, client=f"slow {number}")
    await scene.run(PAUSE_S + 2)
    for _ in range(3):
        await scene.wait()
    await scene.run(1)
    cut = [reader.client for reader in scene.cut]
    assert list(scene.ledger.slow) == cut
    assert len(cut) == 3
    # Now the others come back, and after them a good client. It waits behind one of them only.
    order = scene.waiters = []
    for client in [*cut, "good", "good"]:
        await scene.wait(client)
    done = []
    for waiter, client in zip(order, [*cut, "good", "good"], strict=True):
        waiter.add_done_callback(lambda _, client=client: done.append(client))
    for _ in range(5):
        scene.ledger.give(PAGE)
        await asyncio.sleep(0.001)
    assert done == [cut[0], "good", cut[1], "good", cut[2]]
    await scene.run(SHARED_S + 1)
    scene.slow.look()
    assert not scene.ledger.slow
