"""``InPool``: work runs on a thread of a pool, and its result arrives on the event loop."""

import asyncio
import threading
import time

import pytest

from shadeproxy.core.off_loop import InPool, at_once
from shadeproxy.core.workpool import WorkPool, raise_if_cancelled


def never():
    raise AssertionError("nothing failed")


@pytest.fixture
def pool():
    with WorkPool(1, "test") as pool:
        yield pool


@pytest.fixture
async def reported():
    """Return a queue that receives the errors of the loop's exception handler."""
    errors = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.put_nowait(str(context["exception"])))
    return errors


async def test_another_thread_works_and_the_loop_gets_the_result(pool):
    results = asyncio.Queue()
    InPool(pool)(
        threading.get_ident, lambda worker: results.put_nowait((worker, threading.get_ident())), never
    )
    assert results.empty(), "the caller goes on first"
    worker, receiver = await results.get()
    assert receiver == threading.get_ident() != worker


async def test_a_failure_is_reported_and_no_result_comes(pool, reported):
    def fail():
        raise ValueError("no number")

    results, failures = [], []
    InPool(pool)(fail, results.append, lambda: failures.append(1))
    assert await reported.get() == "no number"
    assert (results, failures) == ([], [1])
    with pytest.raises(ValueError, match="no number"):
        at_once(fail, results.append, lambda: failures.append(2))
    assert (results, failures) == ([], [1, 2])


async def test_work_that_a_shutdown_ends_is_no_failure(pool, reported):
    begun, stop = threading.Event(), threading.Event()

    def go_on():
        begun.set()
        stop.wait()
        raise_if_cancelled()

    results = []
    run = InPool(pool)
    run(go_on, results.append, never)
    run(lambda: 2, results.append, never)  # This work waits, because the first work holds the only thread.
    await asyncio.to_thread(begun.wait)
    ending = asyncio.create_task(asyncio.to_thread(pool.shutdown))
    while not pool._shutdown:
        await asyncio.sleep(0)
    stop.set()
    await ending
    for _ in range(10):
        await asyncio.sleep(0)
    assert not results
    assert reported.empty()


async def test_a_pool_rests_in_proportion_to_its_work(pool):
    def work():
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.005:
            pass
        return time.monotonic()

    ended: asyncio.Queue[float] = asyncio.Queue()
    resting = InPool(pool, rests=20)
    assert not resting.is_resting
    resting(work, ended.put_nowait, never)
    first_s = await ended.get()
    while resting.is_resting:
        await asyncio.sleep(0.001)
    assert time.monotonic() >= first_s + 20 * 0.005
    assert not at_once.is_resting
