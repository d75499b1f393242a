"""The history of the last hour: the content of a point, and the bound on its memory."""

import asyncio

import pytest

from shadeproxy.core.types import JobContext, Source
from shadeproxy.telemetry.history import INTERVAL_S, LEVELS, POINTS, RATES, History, keep_history
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock


class World:
    """A history with its statistics and its clock. ``waiting`` has calls that count something just before the
    next reading.
    """

    def __init__(self):
        self.clock = ManualClock()
        self.health = {"answering": True, "throttled": 0}
        self.stats = Stats(origin_health=lambda: self.health)
        self.waiting = []
        self.history = History(self.stats, self.clock, before=self.count)

    def count(self):
        while self.waiting:
            self.waiting.pop()()

    def pass_by(self, seconds=INTERVAL_S):
        self.clock.advance(seconds)
        self.history.tick()

    def last(self):
        answer = self.history.as_json()
        return {name: values[-1] for name, values in answer["series"].items()}


@pytest.fixture
def world():
    world = World()
    world.history.tick()
    return world


def test_before_the_first_interval_there_is_no_point(world):
    answer = world.history.as_json()
    assert answer["times"] == []
    assert answer["series"] == {name: [] for name in (*RATES, *LEVELS)}


def test_a_point_has_the_rates_of_its_interval(world):
    world.stats.record_reads("train", Source.RAM, 30, 3_000, JobContext("resnet", 0))
    world.stats.record_reads("train", Source.ORIGIN, 10, 1_000)
    world.stats.record_origin("get", 1_000, 0.25)
    world.stats.record_origin("get", 1_000, 0.75)
    world.stats.record_training("resnet", 0, stall_s=2.5, compute_s=5.0)
    world.stats.requests.group("GetObject", 503, Source.BYPASS).observe(25.0)
    world.stats.requests.group("GetObject", 404, Source.BYPASS).observe(0.1)
    world.health["throttled"] = 5
    world.pass_by()
    found = world.last()
    expected = {
        "hits_ram_per_s": 6.0, "origin_per_s": 2.0, "bytes_per_s": 800.0, "hit_ratio": 0.75,
        "origin_latency_s": 0.5, "origin_requests_per_s": 0.4, "origin_throttled_per_s": 1.0,
        "requests_per_s": 0.4, "server_errors_per_s": 0.2, "client_errors_per_s": 0.2,
        "stall_s_per_s": 0.5, "compute_s_per_s": 1.0, "origin_up": 1.0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    world.pass_by()
    quiet = world.last()
    assert {quiet[name] for name in RATES} == {0.0}
    assert quiet["hit_ratio"] is quiet["origin_latency_s"] is None


def test_a_rate_is_over_the_time_that_really_passed(world):
    world.stats.record_reads("train", Source.RAM, 30, 0)
    world.pass_by(30.0)
    assert world.last()["hits_ram_per_s"] == 1.0


def test_reads_that_wait_are_counted_first(world):
    world.waiting.append(lambda: world.stats.record_reads("train", Source.DISK, 5, 0))
    world.pass_by()
    assert world.last()["hits_disk_per_s"] == 1.0


def test_the_state_of_the_origin_is_kept(world):
    for answering, shown in ((False, 0.0), (None, None), (True, 1.0)):
        world.health["answering"] = answering
        world.pass_by()
        assert world.last()["origin_up"] == shown


def test_no_time_between_two_ticks_is_no_point(world):
    world.history.tick()
    world.history.tick()
    assert world.history.as_json()["times"] == []


def test_memory_is_bounded_to_an_hour(world):
    for _ in range(POINTS + 50):
        world.pass_by()
    times = world.history.as_json()["times"]
    assert len(times) == POINTS
    assert times[-1] - times[0] == pytest.approx(3600.0 - INTERVAL_S)


def test_only_points_after_a_time_are_returned(world):
    for _ in range(4):
        world.pass_by()
    times = world.history.as_json()["times"]
    answer = world.history.as_json(times[1])
    assert answer["times"] == times[2:]
    assert {len(values) for values in answer["series"].values()} == {2}


def test_a_reading_does_not_look_at_the_jobs(world):
    """A reading does not iterate over the jobs. There may be 64 jobs with 256 epochs each, and the event loop
    would have to wait.
    """
    world.stats.record_training("resnet", 0, stall_s=10.0, compute_s=0.0)
    world.stats.jobs = None
    world.pass_by()
    assert world.last()["stall_s_per_s"] == 2.0


async def test_a_point_is_added_every_interval(world):
    keeping = asyncio.create_task(keep_history(world.history, world.clock))
    while len(world.history.as_json()["times"]) < 3:
        await asyncio.sleep(0)
    keeping.cancel()
    times = world.history.as_json()["times"]
    assert times[1] - times[0] == INTERVAL_S


def test_reads_of_the_last_minutes(world):
    assert world.history.recent_reads(600.0) == 0
    for source in (Source.RAM, Source.DISK, Source.ORIGIN, Source.COALESCED, Source.BYPASS):
        world.stats.record_reads("train", source, 10, 0)
    world.pass_by()
    assert world.history.recent_reads(INTERVAL_S) == 50
    world.stats.record_reads("train", Source.RAM, 7, 0)
    world.pass_by()
    assert world.history.recent_reads(INTERVAL_S) == 7
    assert world.history.recent_reads(600.0) == 57


def test_a_clock_that_is_set_back_hides_no_point(world):
    """A page asks for the points after its last one. Later points with earlier times would be lost."""
    for _ in range(3):
        world.pass_by()
    last_s = world.history.as_json()["times"][-1]
    world.clock.now_s = lambda: world.clock.monotonic_s() - 3600.0
    world.pass_by()
    whole = world.history.as_json()
    assert whole["times"] == pytest.approx([world.clock.now_s() + 5.0 * place for place in (-3, -2, -1, 0)])
    assert world.history.as_json(last_s) == whole, "the page's last point lies in the future now"
    last_s = whole["times"][-1]
    assert world.history.as_json(last_s)["times"] == []
    world.pass_by()
    assert len(world.history.as_json(last_s)["times"]) == 1
