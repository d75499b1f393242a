"""The clock watch: after the clock was set back, versions whose last check seems to lie ahead are checked
again.
"""

import asyncio

import pytest

from shadeproxy.app.clock_watch import watch_clock
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.rules import Freshness, Rule
from tests.support.clock import ManualClock
from tests.support.engine import benches

DAY_S = 86_400.0
REF = ObjectRef("b", "k")
OLD, NEW = b"old" * 500, b"new!" * 500


class SetClock(ManualClock):
    """A clock whose time of day a test can set back. Its ``sleep`` ends when the test calls ``look``."""

    def __init__(self):
        super().__init__()
        self._step_s = 0.0
        self._looks = asyncio.Event()

    def set_back(self, seconds):
        self._step_s -= seconds

    def now_s(self):
        return super().now_s() + self._step_s

    async def sleep(self, _seconds):
        self._looks.clear()
        await self._looks.wait()

    async def look(self):
        """Let the clock watch look at the clock once."""
        self._looks.set()
        await asyncio.sleep(0.01)


@pytest.fixture
async def make(tmp_path):
    watches = []
    async with benches(tmp_path) as make_bench:

        async def bench_of(freshness):
            """Return a bench with one cached object, whose rule has this freshness."""
            bench = await make_bench(rules=(Rule(freshness=freshness),), clock=SetClock())
            bench.origin.put("b", "k", OLD)
            await bench.get("k")
            await bench.settle()
            return bench

        def watch(bench):
            watches.append(asyncio.create_task(watch_clock(bench.engine, bench.clock)))

        yield bench_of, watch
        for task in watches:
            task.cancel()


async def checked(bench):
    while not bench.engine.idle:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("running", [True, False])
async def test_a_check_that_lies_ahead_counts_as_long_ago(make, running):
    bench_of, watch = make
    bench = await bench_of(Freshness.TTL)
    handle = bench.engine.find_handle(REF, 0, bench.clock.now_s())
    if running:
        watch(bench)
        await bench.clock.look()
    bench.origin.put("b", "k", NEW)
    bench.clock.set_back(DAY_S)
    if not running:
        watch(bench)
    await bench.clock.look()
    assert bench.engine.take(handle, None, bench.clock.now_s()) is None
    assert await bench.get("k") == (OLD, Source.RAM)  # The read starts a check in the background.
    await checked(bench)
    assert (await bench.get("k"))[0] == NEW


async def test_a_page_is_checked_once_after_a_step_back(make):
    bench_of, watch = make
    bench = await bench_of(Freshness.TTL)
    watch(bench)
    bench.clock.set_back(DAY_S)
    for _ in range(3):
        await bench.clock.look()
        assert await bench.get("k") == (OLD, Source.RAM)
        await checked(bench)
    assert bench.origin.heads == 1


async def test_an_immutable_object_is_not_checked(make):
    bench_of, watch = make
    bench = await bench_of(Freshness.IMMUTABLE)
    watch(bench)
    bench.clock.set_back(DAY_S)
    await bench.clock.look()
    assert await bench.get("k") == (OLD, Source.RAM)
    assert bench.origin.heads == 0


async def test_small_steps_and_steps_ahead_void_nothing(make):
    bench_of, watch = make
    bench = await bench_of(Freshness.IMMUTABLE)
    watch(bench)
    handle = bench.engine.find_handle(REF, 0, bench.clock.now_s())
    for seconds in (0.5, -DAY_S):
        await bench.clock.look()
        bench.clock.set_back(seconds)
        await bench.clock.look()
        assert bench.engine.take(handle, None, bench.clock.now_s()) is not None
