"""Large calls share the memory for bodies and items. A call that does not fit waits, and is then refused."""

import asyncio
import gc
import tracemalloc
import weakref
from contextlib import suppress

import numpy as np
import pytest

from shadeproxy.api.control import jobs, ledgers, orders
from shadeproxy.api.control.decoding import decode
from shadeproxy.api.control.ledgers import (
    IDS_COST,
    JSON_ORDER_COST,
    JSON_SCORES_COST,
    READS_COST,
    SCORES_COST,
    SMALL_BYTES,
    CallLedgers,
)
from shadeproxy.api.control.reads import ReadsBody
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.order.announcements import check_order

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


async def test_a_short_body_without_a_length_takes_nothing_and_waits_for_nothing(client, job, narrow):
    async def pieces():
        yield b'{"ids": [1], '
        yield b'"scores": [2.0]}'

    slow, task = await begin_slow(client, job, narrow)
    taken = narrow.bodies.taken_bytes
    answer = await client.post(f"{job}/scores", data=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status == 200
    assert narrow.bodies.taken_bytes == taken
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


async def test_a_long_body_that_stops_gives_its_memory_back_soon(client, job, narrow, refused, monkeypatch):
    """The time that a client has depends on what has come, not on what it has announced."""
    monkeypatch.setattr(ledgers, "_GRACE_S", 0.1)
    monkeypatch.setattr(ledgers, "_LEAST_BYTES_PER_S", LARGE)
    narrow.bodies.capacity_bytes = 1 << 30
    slow = SlowBody(order(8))
    headers = OCTETS | {"Content-Length": str(600 * LARGE)}
    answer = await client.put(f"{job}/epochs/0/order", data=aiter(slow), headers=headers)
    assert "too slowly" in await refused(answer, 408, "too_slow")
    assert narrow.bodies.taken_bytes == 0
    slow.rest.set()


async def test_a_large_body_without_a_length_counts_as_the_longest_until_it_has_arrived(client, job, narrow):
    slow = SlowBody(order(2 * LARGE))
    task = asyncio.create_task(client.put(f"{job}/epochs/0/order", data=aiter(slow), headers=OCTETS))
    while not narrow.bodies.taken_bytes:
        await asyncio.sleep(0.01)
    assert narrow.bodies.taken_bytes == IDS_COST * orders.MAX_ORDER_BYTES
    slow.rest.set()
    assert (await (await task).json())["announced"] == 2 * LARGE
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


async def test_what_a_failed_function_of_the_pool_held_is_freed_without_the_collector(context):
    class Large:
        pass

    held = []

    def fail():
        large = Large()
        held.append(weakref.ref(large))
        raise InvalidRequest("refused")

    gc.disable()
    try:
        with suppress(InvalidRequest):
            await context.in_pool(fail)
        assert held[0]() is None
    finally:
        gc.enable()


COUNT = 20_000
KEYS = b",".join(b'"b/k%05d":0.1' % number for number in range(COUNT))
COSTS = {
    "binary order": (
        IDS_COST,
        lambda body, _: check_order(orders._ids(body), 10, dataset="d"),
        bytes(1 << 20),
    ),
    "order": (
        JSON_ORDER_COST,
        lambda body, _: check_order(orders._json_ids(body), 10, dataset="d"),
        b'{"ids":[' + b"1," * 500_000 + b"1]}",
    ),
    "order that is refused": (
        JSON_ORDER_COST,
        lambda body, _: check_order(orders._json_ids(body), 10, dataset="d"),
        b'{"ids":[' + b"300," * 200_000 + b"-1]}",
    ),
    "binary scores": (
        SCORES_COST,
        lambda body, context: jobs._check_binary(context.hints, "resnet", body),
        np.uint32(COUNT).tobytes() + bytes(8 * COUNT),
    ),
    "scores by id": (
        JSON_SCORES_COST,
        lambda body, context: jobs._check_json(context, "resnet", body),
        b'{"ids":[' + b"1," * 200_000 + b'1],"scores":[' + b"1," * 200_000 + b"1]}",
    ),
    "scores by key": (
        JSON_SCORES_COST,
        lambda body, context: jobs._check_json(context, "resnet", body),
        b'{"keys":{' + KEYS + b"}}",
    ),
    "items": (
        READS_COST,
        lambda body, _: decode(body, ReadsBody),
        b'{"items":[' + b",".join([b'{"bucket":"b","key":"k"}'] * 50_000) + b"]}",
    ),
    "ids": (
        READS_COST,
        lambda body, _: decode(body, ReadsBody),
        b'{"dataset":"d","ids":[' + b"300," * 200_000 + b"1]}",
    ),
}


@pytest.fixture
def hints(context):
    """The hints, with a job on a dataset of COUNT objects."""
    builder = ManifestBuilder("train")
    for number in range(COUNT):
        builder.add(ObjectRef("b", f"k{number:05d}"))
    context.hints.put_dataset(builder.finish())
    context.hints.put_job(Job("resnet", "train"), 0.0)
    return context.hints


@pytest.mark.parametrize("what", COSTS)
@pytest.mark.usefixtures("hints")
def test_no_body_takes_more_memory_than_it_counts(context, what):
    cost, decoded, body = COSTS[what]
    tracemalloc.start()
    try:
        with suppress(InvalidRequest):
            decoded(body, context)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes + len(body) < cost * len(body) + (1 << 18)


async def test_what_is_decoded_from_a_body_counts_too(client, job, narrow, refused):
    """Two bodies that would fit by their lengths do not fit with what is decoded from them."""
    body = b'{"ids":[' + b"1," * SMALL_BYTES + b"1]}"
    narrow.bodies.capacity_bytes = 3 * len(body)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    slow = SlowBody(np.frombuffer(body, np.uint8))
    task = asyncio.create_task(client.put(f"{job}/epochs/0/order", data=aiter(slow), headers=headers))
    while not narrow.bodies.taken_bytes:
        await asyncio.sleep(0.01)
    answer = await client.put(f"{job}/epochs/1/order", data=body, headers=headers)
    await refused(answer, 503, "overloaded")
    slow.rest.set()
    assert (await task).status == 200
    assert narrow.bodies.taken_bytes == 0


@pytest.mark.parametrize("end", ["", "\\", 'x"', '\\"'])
async def test_too_many_scores_by_key_are_refused_before_they_are_decoded(
    client, job, refused, monkeypatch, end
):
    monkeypatch.setattr(jobs, "MAX_SCORES", 1000)
    body = {"keys": {f"b/k{number}{end}": 1.0 for number in range(1000)}}
    assert "more than" not in await (await client.post(f"{job}/scores", json=body)).text()
    monkeypatch.setattr(jobs, "decode_columns", None)
    body = {"keys": {f"b/k{number}{end}": 1.0 for number in range(1009)}}
    answer = await client.post(f"{job}/scores", json=body)
    assert "more than 1000 scores" in await refused(answer, 400, "invalid_request")
