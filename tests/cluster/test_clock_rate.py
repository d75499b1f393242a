"""The rate of a clock is measured correctly in spite of slow answers and of steps of the server's clock."""

import numpy as np
import pytest

from shadeproxy.cluster.clock_rate import ClockRate, Reading, rate_of
from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts
from tests.support.cluster_log import FakeLog, Server

BEGAN_S = 1.8e9


def readings(rate=1.0, count=60, *, late_s=lambda: 0.0, step_s=lambda _second: 0.0):
    return [
        Reading(1000 + at * rate + late_s(), BEGAN_S + at + step_s(at)) for at in range(0, count * 10, 10)
    ]


@pytest.mark.parametrize("rate", [0.8, 0.9, 0.95, 1.0, 1.05, 1.2])
def test_the_rate_is_that_of_the_own_clock(rate):
    assert rate_of(readings(rate)) == pytest.approx(rate)


@pytest.mark.parametrize("rate", [0.9, 1.0, 1.1])
def test_slow_answers_change_it_little(rate):
    for seed in range(50):
        late_s = iter(np.random.default_rng(seed).exponential(0.5, 60).clip(max=1.0).tolist())
        assert rate_of(readings(rate, late_s=late_s.__next__)) == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 0.5])
def test_steps_of_the_servers_clock_change_nothing(step_s):
    """Steps of the server's clock do not change the measured rate. The clock was set, or another server with
    another clock has taken over.
    """
    stepped = readings(step_s=lambda at: step_s * (at >= 200) + step_s * (at >= 450))
    assert rate_of(stepped) == pytest.approx(1.0)


def test_a_pause_of_the_machine_changes_nothing():
    paused = [one._replace(server_s=one.server_s + 30 * (one.own_s > 1300)) for one in readings()]
    assert rate_of(paused) == pytest.approx(1.0)


def test_a_few_readings_tell_nothing():
    assert rate_of([]) is None
    assert rate_of(readings(count=17)) is None
    assert rate_of(readings(0.9, count=18)) == pytest.approx(0.9)


def test_readings_are_of_the_last_ten_minutes():
    clock = ClockRate()
    for at in range(1200):
        rate = 0.8 if at < 600 else 1.0
        clock.note(1000 + at * rate, 1000.5 + at * rate, BEGAN_S + at)
    assert clock.rate == pytest.approx(1.0)


async def test_beats_measure_it():
    now = [1000.0]
    server = Server(lambda: int((BEGAN_S + now[0] / 1.1) * 1000))
    member = Membership(NodeFacts(node="a", weight=1.0), "a1", Seals("c", ["secret"]), Timing())
    beats = Heartbeat(member, FakeLog(server), clock=lambda: now[0])
    for _ in range(200):
        await beats.beat()
        now[0] += 1.0
    assert beats.clock_rate.rate == pytest.approx(1.1, abs=0.001)
