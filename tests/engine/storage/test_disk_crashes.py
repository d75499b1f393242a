"""A process that is killed at any step of a write leaves no old page that answers, on any of its disks."""

import asyncio
import gc
import random
import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled
from tests.support.clock import ManualClock
from tests.support.engine import Weights

KEYS = [f"k{number}" for number in range(8)]
PAGE = 4096
TIERS = {"ram": 4 * PAGE, "disks[0]": 1 << 18, "disks[1]": 1 << 18}


def body(key: str, version: int) -> bytes:
    return f"{key}:{version}!".encode() * 600


class Disk:
    """The I/O of a disk. While ``held``, each piece of work waits in ``queue`` until ``step`` does it."""

    def __init__(self) -> None:
        self.queue, self.held = deque(), False
        self.calls = FaultyCalls(scheduled())

    def submit(self, work) -> None:
        self.queue.append(work)
        while self.queue and not self.held:
            self.step()

    async def write(self, work) -> None:
        done: Future[None] = Future()
        self.submit(partial(_carry_out, work, done))
        await asyncio.wrap_future(done)

    def step(self) -> None:
        self.queue.popleft()()


def _carry_out(work, done: Future[None]) -> None:
    try:
        done.set_result(work())
    except TierError as error:
        done.set_exception(error)


class Life:
    """One process with a RAM tier and two disks in ``folder``."""

    def __init__(self, folder, origin) -> None:
        self.disks, media = [Disk(), Disk()], []
        for (name, capacity_bytes), disk in zip(TIERS.items(), [None, *self.disks], strict=True):
            queue = {} if disk is None else {"submit": disk.submit, "calls": disk.calls}
            tier = SegmentStore(name, folder / name, capacity_bytes, segment_bytes=1 << 15, **queue)
            source = Source.RAM if disk is None else Source.DISK
            media.append(Medium(tier, source, None if disk is None else disk.write))
        parts = {"stats": Stats(), "ledger": Ledger(1 << 20)}
        self.cache = PageCache(
            media, policy=get_policy("lru"), weights=Weights(), rng=np.random.default_rng(7), **parts
        )
        rules = Rules((Rule(freshness=Freshness.IMMUTABLE),))
        self.engine = Engine(origin, self.cache, rules=rules, clock=ManualClock(), page_size=PAGE, **parts)

    async def get(self, key: str, wanted: RangeSpec | None = None) -> bytes:
        async with self.engine.open(ReadRequest(ObjectRef("b", key), wanted)) as reading:
            span = (wanted or RangeSpec(0, None)).resolve(reading.meta.size)
            return b"".join([bytes(piece) async for piece in reading.body(span)])

    async def end(self) -> None:
        for disk in self.disks:
            disk.held = False
            while disk.queue:
                disk.step()
        await self.engine.aclose()
        await asyncio.to_thread(self.cache.close)
        gc.collect()  # An engine refers to itself. Those of all crashes of a test would take gigabytes.


async def start(folder, origin) -> Life:
    life = Life(folder, origin)
    await asyncio.to_thread(life.cache.recover)
    return life


def on_a_thread(work, *arguments) -> None:
    """Do blocking work while the event loop stands still. On the loop's own thread, the check for blocking
    calls would look at the whole stack in each call of the system.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work, *arguments).result()


def origin_with(versions: dict[str, int]) -> MemoryOrigin:
    origin = MemoryOrigin()
    for key, version in versions.items():
        origin.put("b", key, body(key, version))
    return origin


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def interleaved(work, disks: list[Disk], rng: random.Random, *, after_each) -> None:
    """Run the coroutines and the I/O of the disks in a random order. Call ``after_each`` after each I/O."""
    tasks = []
    while work or not all(task.done() for task in tasks) or any(disk.queue for disk in disks):
        if work and rng.random() < 0.3:
            tasks.append(asyncio.create_task(work.pop()))
        if waiting := [disk for disk in disks if disk.queue]:
            rng.choice(waiting).step()
        await turns()
        if waiting:
            after_each()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("seed", range(2))
async def test_a_process_killed_at_any_step_leaves_no_old_page_that_answers(tmp_path, seed, failing):
    """``failing``: one disk takes no writes any more, so erasures on it fail."""
    rng, folder = random.Random(seed), tmp_path / "cache"
    versions = dict.fromkeys(KEYS, 1)
    origin = origin_with(versions)
    life = await start(folder, origin)
    for key in KEYS:
        assert await life.get(key) == body(key, 1)
        await turns()
    held = np.bincount(life.cache.residents.tier[life.cache.residents.ready()], minlength=3)
    assert held.all(), "each tier has pages"
    crashes = []

    def crash() -> None:
        """Keep what a restart would find if the process were killed now."""
        left = tmp_path / f"left{len(crashes)}"
        crashes.append((left, dict(versions)))
        on_a_thread(shutil.copytree, folder, left)

    async def write(key: str) -> None:
        async with life.engine.writing([ObjectRef("b", key)]):
            versions[key] += 1
            origin.put("b", key, body(key, versions[key]))
            crash()
        crash()

    for disk in life.disks:
        disk.held = True
    if failing:
        faults = {MediumFault.WRITE_EIO: 1.0, MediumFault.PUNCH_EIO: 1.0, MediumFault.FLUSH_EIO: 1.0}
        life.disks[seed].calls.schedule = scheduled(rates=faults)
    work = [write(key) for key in KEYS[:4]] + [life.get(key) for key in KEYS]
    rng.shuffle(work)
    await interleaved(work, life.disks, rng, after_each=crash)
    await life.end()
    for left, there in crashes:
        on_a_thread(shutil.rmtree, folder)
        left.rename(folder)
        life = await start(folder, origin_with(there))
        for key, version in there.items():
            assert await life.get(key) == body(key, version)
        await life.end()


async def test_an_old_page_that_comes_back_beside_a_new_one_is_checked_before_it_answers(tmp_path):
    """The origin's object changed after its old pages had been evicted. A kill undid the erasure of one of
    them, and the start finds another page, of the new version.
    """
    folder, old, new = tmp_path / "cache", body("long", 1) * 2, body("long", 2) * 2
    origin = origin_with(dict.fromkeys(KEYS, 1))
    origin.put("b", "long", old)
    life = await start(folder, origin)
    assert await life.get("long") == old
    for key in KEYS:
        await life.get(key)
        await turns()
    table = life.cache.residents
    first, *others = table.pages_of(object_hash(ObjectRef("b", "long")))
    assert table.tier[first] > 0
    for slot in others:
        life.cache.drop(slot, "policy")
    for disk in life.disks:
        disk.held = True
    life.cache.drop(first, "policy")
    # The metadata of many other objects have displaced those of this one.
    life.engine._versions.forget(ObjectRef("b", "long"))
    origin.put("b", "long", new)
    assert await life.get("long", RangeSpec(PAGE, 2 * PAGE - 1)) == new[PAGE : 2 * PAGE]
    await turns()
    assert len(table.pages_of(object_hash(ObjectRef("b", "long")))) == 1
    left = tmp_path / "left"
    shutil.copytree(folder, left)
    await life.end()
    folder.rename(tmp_path / "ended")
    left.rename(folder)
    life = await start(folder, origin)
    assert await life.get("long", RangeSpec(0, 99)) == new[:100]
    await life.end()
