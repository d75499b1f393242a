import asyncio
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest

from shadeproxy.core.errors import ShuttingDown
from shadeproxy.core.workpool import WorkPool, raise_if_cancelled


class Loop:
    """Work that ends only when it is cancelled."""

    def __init__(self):
        self.begun = threading.Event()
        self.ended = threading.Event()

    def __call__(self):
        self.begun.set()
        try:
            while True:
                raise_if_cancelled()
                time.sleep(0)
        finally:
            self.ended.set()


@pytest.fixture
def pool():
    with WorkPool(1, "test") as pool:
        yield pool


async def test_work_ends_with_the_task_that_waits_for_it(pool):
    work, queued = Loop(), Loop()
    loop = asyncio.get_running_loop()

    async def wait(for_what):
        await loop.run_in_executor(pool, for_what)

    tasks = [asyncio.create_task(wait(one)) for one in (work, queued)]
    await asyncio.to_thread(work.begun.wait, 60)
    for task in tasks:
        task.cancel()
    assert await asyncio.to_thread(work.ended.wait, 60)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await loop.run_in_executor(pool, lambda: 5) == 5
    assert not queued.begun.is_set()


def test_shutdown_waits_for_no_more_than_the_next_check():
    pool, work, queued = WorkPool(1, "test"), Loop(), Loop()
    futures = pool.submit(work), pool.submit(queued)
    work.begun.wait(60)
    pool.shutdown()
    assert work.ended.is_set()
    with pytest.raises(ShuttingDown, match="the work was given up: its client is gone, or the proxy stops"):
        futures[0].result()
    with pytest.raises(CancelledError):
        futures[1].result()
    assert not queued.begun.is_set()


def test_work_of_others_goes_on():
    with WorkPool(2, "test") as pool:
        one, other = Loop(), Loop()
        futures = pool.submit(one), pool.submit(other)
        assert one.begun.wait(60)
        assert other.begun.wait(60)
        futures[0].cancel()
        assert one.ended.wait(60)
        assert not other.ended.is_set()
        futures[1].cancel()


def test_outside_a_pool_nothing_is_cancelled():
    raise_if_cancelled()


def test_threads_change_hands_sooner_while_work_is_under_way(pool):
    before_s = sys.getswitchinterval()
    assert pool.submit(sys.getswitchinterval).result() < before_s / 5
    pool.shutdown()
    assert sys.getswitchinterval() == before_s


async def test_a_result_is_freed_at_once_without_the_garbage_collector(pool):
    """The collector runs rarely, and does not know how large the arrays in a result are."""
    gone = []

    def work():
        result = np.zeros(8)
        weakref.finalize(result, gone.append, True)
        return result

    gc.disable()
    try:
        future = asyncio.get_running_loop().run_in_executor(pool, work)
        result = await future
        assert len(result) == 8
        del future, result
        for _ in range(10):
            await asyncio.sleep(0.01)
    finally:
        gc.enable()
    assert gone
