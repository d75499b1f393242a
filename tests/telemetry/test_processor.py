"""The processor time of the proxy, divided among jobs by their reads."""

import asyncio
import sys
import time

import pytest

from shadeproxy.core.types import JobContext, Source
from shadeproxy.telemetry.processor import keep_charging, used_cpu_s
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock


class World:
    def __init__(self):
        self.stats, self.used_s = Stats(), 5.0
        self.stats.measure_cpu(lambda: self.used_s, cores=2)

    def read(self, count, job=None, epoch=None):
        context = None if job is None else JobContext(job, epoch, 0)
        self.stats.record_reads("train", Source.RAM, count, count, context)

    def charge(self, cpu_s):
        self.used_s += cpu_s
        self.stats.charge_cpu()

    def of(self, job):
        return {epoch: reads.cpu_s for epoch, reads in self.stats.jobs[job].epochs.items()}


@pytest.fixture
def world():
    return World()


def test_the_time_is_shared_by_the_reads_of_the_time(world):
    world.read(30, "a", 0)
    world.read(10, "b", 3)
    world.read(40)  # These reads belong to no job.
    world.charge(0.8)
    assert world.of("a") == {0: pytest.approx(0.3)}
    assert world.of("b") == {3: pytest.approx(0.1)}
    world.read(10, "a", 0)
    world.read(30, "a", 1)
    world.charge(0.4)
    assert world.of("a") == {0: pytest.approx(0.4), 1: pytest.approx(0.3)}
    assert world.of("b") == {3: pytest.approx(0.1)}
    assert world.stats.snapshot()["jobs"]["a"]["cpu_s"] == pytest.approx(0.7)


def test_the_time_of_a_run_that_has_ended_stays_with_the_job(world):
    world.read(10, "a", 0)
    world.charge(1.0)
    world.read(10, "a", 0)
    world.used_s += 1.0
    world.stats.begin_run("a")
    world.charge(0.0)
    assert world.stats.snapshot()["jobs"]["a"]["cpu_s"] == pytest.approx(2.0)


def test_time_without_reads_is_charged_to_no_job(world):
    world.read(1, "a", 0)
    world.charge(0.1)
    world.charge(7.0)
    world.read(1, "a", 0)
    world.charge(0.1)
    assert world.of("a") == {0: pytest.approx(0.2)}


def test_time_that_runs_backwards_is_nothing(world):
    # The sum lacks a process that has just ended until the kernel has counted its time.
    world.read(1, "a", 0)
    world.charge(-1.0)
    assert world.of("a") == {0: 0.0}


def test_a_run_keeps_its_time_when_the_next_begins(world):
    world.read(4, "a", 0)
    world.charge(0.1)
    world.stats.begin_run("a")
    assert world.of("a") == {"other": pytest.approx(0.1)}


def test_nothing_is_charged_before_the_time_is_measured():
    stats = Stats()
    stats.record_read("train", Source.RAM, 1, JobContext("a", 0, 0))
    stats.charge_cpu()
    assert stats.snapshot()["jobs"]["a"]["cpu_s"] == 0


async def test_the_time_is_charged_every_second():
    stats, clock = Stats(), ManualClock(0.0)
    seen_s = list[float]()

    def used_s():
        seen_s.append(clock.monotonic_s())
        return 0.0

    stats.measure_cpu(used_s, cores=1)
    task = asyncio.create_task(keep_charging(stats, clock))
    while len(seen_s) < 5:
        await asyncio.sleep(0)
    task.cancel()
    assert seen_s[:5] == [0.0, 0.0, 1.0, 2.0, 3.0]


def spin(cpu_s):
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass


def test_the_time_of_this_process_counts():
    before_s = used_cpu_s()
    spin(0.05)
    assert 0.05 <= used_cpu_s() - before_s < 0.2


async def test_the_time_of_workers_counts_while_they_run_and_after():
    before_s = used_cpu_s()
    program = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    await worker.stdout.readline()
    alone_s = used_cpu_s()
    assert used_cpu_s([worker.pid]) - alone_s >= 0.29
    await worker.communicate(b"\n")
    assert used_cpu_s([worker.pid]) - before_s >= 0.29
