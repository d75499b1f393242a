"""The threads for a disk's I/O tell how long the oldest work has been running."""

import threading

import pytest

from shadeproxy.app.io_pool import IoPool
from tests.support.clock import ManualClock


def test_it_tells_how_long_the_oldest_work_has_been_running():
    clock, ends = ManualClock(), [threading.Event(), threading.Event()]
    with IoPool(2, "disk", now_s=clock.monotonic_s) as pool:
        begun = threading.Barrier(2)

        def work(end: threading.Event) -> None:
            begun.wait(10)
            end.wait(10)

        assert pool.busy_s == 0.0
        works = []
        for end in ends:
            works.append(pool.submit(work, end))
            begun.wait(10)
            clock.advance(5.0)
        assert pool.busy_s == 10.0
        ends[0].set()
        works[0].result(10)
        assert pool.busy_s == 5.0
        ends[1].set()
        works[1].result(10)
        assert pool.busy_s == 0.0


def test_work_that_fails_is_over():
    with IoPool(1, "disk") as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(10)
        assert pool.busy_s == 0.0
