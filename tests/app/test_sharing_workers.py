"""The link is shared by job, however many workers the reads of a job come from. More workers cost no more
decisions.
"""

import asyncio
import heapq
import itertools
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

from shadeproxy.app.sharing import STEP_S
from shadeproxy.core import fair_queue
from shadeproxy.core.tracing import CLIENT, READER
from shadeproxy.core.types import Intent, JobContext
from shadeproxy.hints.needs import JobNeed
from shadeproxy.origin import limit, link, link_depth
from shadeproxy.origin.link import OTHERS
from tests.support.sharing_world import LINK, SIZE, World

LATENCY_S = 0.03
WINDOW_S = 0.25
"""The time between two looks of the proxy for jobs that are behind."""
NEED = 50.0
MODEST, GREEDY = 8, 192
"""The numbers of reads that are always under way or waiting: of the job with a need, and of the other job."""

DECIDING = frozenset(module.__file__ for module in (fair_queue, limit, link, link_depth))
"""The files whose code decides which read is next."""


class Workers(World):
    """Two jobs whose reads come to the coordinator from ``count`` workers, over a link in virtual time."""

    def __init__(self, count):
        super().__init__(max_open=128)
        self.register("a", JobNeed(samples_per_s=NEED))
        self.register("b")
        self.free_s = self.clock.monotonic_s()
        self.ends = []
        self.numbers = itertools.count()
        self.got = Counter()
        self.waiting = set()
        for number in range(MODEST + GREEDY):
            self.ask("a" if number < MODEST else "b", f"worker {number % count}")

    def ask(self, job, worker):
        """Have the coordinator begin a read of a worker, either at once, or when a slot is free."""
        READER.set(JobContext(job))
        CLIENT.set(worker)
        slot = self.limited.take_now(Intent.DEMAND)
        if slot is not None:
            self.begin(job, worker, slot)
            return
        task = asyncio.create_task(self.wait(job, worker))
        self.waiting.add(task)
        task.add_done_callback(self.waiting.discard)

    async def wait(self, job, worker):
        self.begin(job, worker, await self.limited.take(Intent.DEMAND))

    def begin(self, job, worker, slot):
        if isinstance(slot, link.LinkSlot):
            slot.charge(SIZE)
        self.free_s = max(self.free_s, self.clock.monotonic_s() + LATENCY_S) + SIZE / LINK
        heapq.heappush(self.ends, (self.free_s, next(self.numbers), job, worker, slot))

    async def window(self):
        """Let the link carry reads for a quarter of a second, and count them as the statistics would."""
        until_s = self.clock.monotonic_s() + WINDOW_S
        self.got.clear()
        while self.ends[0][0] <= until_s:
            end_s, _, job, worker, slot = heapq.heappop(self.ends)
            self.clock.advance(end_s - self.clock.monotonic_s())
            self.got[job] += 1
            self.limited.give(slot)
            self.ask(job, worker)
            for _ in range(4):  # The read that got the slot begins.
                await asyncio.sleep(0)
        self.clock.advance(until_s - self.clock.monotonic_s())
        for job, count in self.got.items():
            self.read(job, count / 2)
        self.sharing.hurry()

    async def windows(self, count):
        """Let ``count`` steps of two seconds pass. Return how many samples per second each job got."""
        got = Counter()
        for _ in range(count):
            for _ in range(8):
                await self.window()
                got += self.got
            self.sharing.step()
        return {job: samples / count / STEP_S for job, samples in got.items()}

    async def aclose(self):
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)


@pytest.fixture
async def workers():
    made = []

    def make(count):
        made.append(Workers(count))
        return made[-1]

    yield make
    for one in made:
        await one.aclose()


@contextmanager
def counted(files=None):
    """Count the Python calls of this thread for each file, or for each of ``files`` only."""
    calls = Counter()

    def note(frame, event, _argument):
        name = frame.f_code.co_filename
        if event == "call" and (files is None or name in files):
            calls[name] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("count", [1, 64])
async def test_a_job_has_its_share_however_many_workers_the_others_reads_come_from(workers, count):
    world = workers(count)
    before = await world.windows(1)
    assert before["b"] > LINK / SIZE - NEED, "as long as nothing is shared, b takes what a needs"
    await world.windows(20)
    got = await world.windows(20)
    assert world.mode() == "needs"
    assert world.sharing.share_of("a").kept is True
    assert got["a"] == pytest.approx(1.08 * NEED, rel=0.04)
    assert sum(got.values()) == pytest.approx(LINK / SIZE, rel=0.02)


async def test_more_workers_cost_no_more_decisions(workers):
    of_reads, of_steps = [], []
    for count in (1, 64):
        world = workers(count)
        await world.windows(20)
        read = 0
        with counted(DECIDING) as calls:
            for _ in range(16):
                await world.window()
                read += world.got.total()
        of_reads.append(calls.total() / read)
        with counted() as calls:
            world.sharing.step()
        of_steps.append(calls.total())
        assert set(world.sharing._queue.flows) == {"a", "b", OTHERS}
        assert world.limited.waiting > GREEDY / 2
    assert of_reads[1] == pytest.approx(of_reads[0], rel=0.02)
    assert of_steps[1] == of_steps[0]
