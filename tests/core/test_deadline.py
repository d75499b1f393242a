"""The deadline of a request, and the minimum rate of a body. The tests move the clock."""

import asyncio

import pytest

from shadeproxy.core.deadline import Deadline, LeastRate, ReadBounds
from shadeproxy.core.errors import DeadlineExceeded
from tests.support.clock import ManualClock

BOUNDS = ReadBounds(first_byte_s=25.0, window_s=30.0, least_bytes_per_s=1024)


def test_a_deadline_runs_down_and_is_renewed():
    clock = ManualClock()
    deadline = Deadline(clock, BOUNDS)
    clock.advance(20)
    assert (deadline.left_s, deadline.arriving_left_s) == (5, 35)
    assert deadline.renewed().left_s == 25
    clock.advance(6)
    assert deadline.left_s == -1


def test_its_error_says_what_to_change():
    text = str(Deadline(ManualClock(), BOUNDS).exceeded())
    assert "no byte of the answer within 25 s" in text
    assert "raise origin.timeouts.first_byte" in text


async def test_work_that_takes_too_long_is_cancelled():
    clock, ended = ManualClock(), asyncio.Event()
    deadline = Deadline(clock, BOUNDS)
    clock.advance(25)

    async def work():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    with pytest.raises(DeadlineExceeded):
        await deadline.bound(work())
    assert ended.is_set()
    assert await deadline.bound(asyncio.sleep(0, "whole"), arriving=True) == "whole"


async def test_a_timeout_of_the_work_itself_is_no_deadline():
    async def work():
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await Deadline(ManualClock(), BOUNDS).bound(work())


def test_a_drip_ends_and_a_steady_body_does_not():
    drip, steady = LeastRate(BOUNDS), LeastRate(BOUNDS)
    waited_s = 0
    while drip.note(1.0, 10):
        waited_s += 1
    assert 29 <= waited_s <= 31
    assert all(steady.note(10.0, 10 * 1024) for _ in range(1000))


def test_a_burst_buys_no_more_than_a_window():
    pace = LeastRate(BOUNDS)
    assert pace.note(0.0, 1 << 30)
    assert pace.left_s == 30
    assert not pace.note(30.0, 0)
    pace.left_s = BOUNDS.window_s
    assert pace.patience_s == 30


def test_without_a_rate_nothing_is_too_slow():
    pace = LeastRate(BOUNDS._replace(least_bytes_per_s=0))
    assert pace.note(1e9, 0)
    assert pace.patience_s is None
