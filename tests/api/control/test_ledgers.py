"""Large calls share the memory for bodies and items. A call that does not fit waits, and is then refused."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from shadeproxy.api.control import ledgers
from shadeproxy.api.control.ledgers import SMALL_BYTES, CallLedgers

OCTETS = {"Content-Type": "application/octet-stream"}
LARGE = SMALL_BYTES // 4 + 1000


@pytest.fixture
def narrow(context):
    """Ledgers with room for one large body at a time; calls wait for it for a tenth of a second."""
    context.ledgers = CallLedgers(bodies_bytes=4 * LARGE + 100, max_wait_s=0.1)
    return context.ledgers


def order(count, seed=0):
    return (np.arange(count, dtype="<u4") + seed) % 10


class SlowBody:
    """A body of ids whose second half is sent when ``rest`` is set."""

    def __init__(self, ids) -> None:
        self.data = ids.tobytes()
        self.rest = asyncio.Event()

    async def __aiter__(self):
        half = len(self.data) // 2
        yield self.data[:half]
        await self.rest.wait()
        yield self.data[half:]


async def begin_slow(client, job, narrow):
    slow = SlowBody(order(LARGE))
    headers = OCTETS | {"Content-Length": str(len(slow.data))}
    task = asyncio.create_task(client.put(f"{job}/epochs/0/order", data=aiter(slow), headers=headers))
    while not narrow.bodies.taken_bytes:
        await asyncio.sleep(0.01)
    return slow, task


async def test_a_large_body_that_does_not_fit_is_refused_after_a_wait(client, job, narrow, refused):
    slow, task = await begin_slow(client, job, narrow)
    url = f"{job}/epochs/1/order"
    answer = await client.put(url, data=order(LARGE).tobytes(), headers=OCTETS)
    assert answer.headers["Retry-After"] == "5"
    assert "all of the memory for large bodies" in await refused(answer, 503, "overloaded")
    slow.rest.set()
    assert (await task).status == 200
    assert (await client.put(url, data=order(LARGE).tobytes(), headers=OCTETS)).status == 200
    assert narrow.bodies.taken_bytes == 0


async def test_small_calls_do_not_wait_for_large_bodies(client, job, narrow):
    slow, task = await begin_slow(client, job, narrow)
    assert (await client.put(f"{job}/epochs/1/order", data=order(9).tobytes(), headers=OCTETS)).status == 200
    scored = await client.post(f"{job}/scores", json={"ids": [1], "scores": [2.0]})
    assert scored.status == 200
    reported = await client.post(f"{job}/progress", json={"epoch": 0, "rank": 0, "position": 1})
    assert reported.status == 204
    slow.rest.set()
    assert (await task).status == 200


async def test_waiting_large_bodies_are_taken_in_turn(client, job, context, narrow):
    context.ledgers = narrow = CallLedgers(bodies_bytes=4 * LARGE + 100, max_wait_s=30.0)
    slow, task = await begin_slow(client, job, narrow)
    puts = [
        asyncio.create_task(
            client.put(f"{job}/epochs/{epoch}/order", data=order(LARGE).tobytes(), headers=OCTETS)
        )
        for epoch in range(1, 5)
    ]
    while narrow.bodies.waiting < len(puts):
        await asyncio.sleep(0.01)
    slow.rest.set()
    assert [answer.status for answer in await asyncio.gather(task, *puts)] == [200] * 5
    assert narrow.bodies.taken_bytes == 0


async def test_a_body_that_comes_too_slowly_gives_its_memory_back(client, job, narrow, refused, monkeypatch):
    monkeypatch.setattr(ledgers, "_GRACE_S", 0.1)
    monkeypatch.setattr(ledgers, "_LEAST_BYTES_PER_S", 1 << 40)
    slow, task = await begin_slow(client, job, narrow)
    assert "too slowly" in await refused(await task, 408, "too_slow")
    assert narrow.bodies.taken_bytes == 0
    slow.rest.set()


async def test_a_body_without_a_length_counts_as_the_longest_until_it_has_arrived(client, job, narrow):
    async def pieces():
        yield order(LARGE).tobytes()

    answer = await client.put(f"{job}/epochs/0/order", data=pieces(), headers=OCTETS)
    assert answer.status == 200
    assert narrow.bodies.taken_bytes == 0


async def test_a_result_of_the_pool_is_freed_without_the_collector(context):
    class Large:
        pass

    gc.disable()
    try:
        result = await context.in_pool(Large)
        left = weakref.ref(result)
        del result
        assert left() is None
    finally:
        gc.enable()
