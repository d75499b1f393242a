"""Control calls that announce and delete orders, and the orders that other calls show."""

import asyncio
import threading

import numpy as np
import pytest

from shadeproxy.api.control import orders
from shadeproxy.hints.order import announcements
from shadeproxy.hints.order.build import Build

OCTETS = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}


def packed(ids):
    return np.array(ids, dtype="<u4").tobytes()


async def put(client, job, ids, query="?rank=0", epoch=0):
    return await client.put(f"{job}/epochs/{epoch}/order{query}", data=packed(ids), headers=OCTETS)


def coming(context):
    return context.hints.orders.coming("resnet", 1000).tolist()


async def shown(client, job):
    return (await (await client.get(job)).json())["order"]


async def test_ranks_announce_in_pieces_and_the_job_shows_it(client, job, context):
    answer = await put(client, job, [0, 1, 2])
    assert (answer.status, await answer.json()) == (200, {"epoch": 0, "rank": 0, "offset": 0, "announced": 3})
    answer = await put(client, job, [3, 4], "?rank=0&offset=3")
    assert await answer.json() == {"epoch": 0, "rank": 0, "offset": 3, "announced": 2}
    await put(client, job, [9, 8, 7, 6, 5], "?rank=1")
    assert coming(context) == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    await put(client, job, [1, 1], epoch=1)
    assert await shown(client, job) == {
        "epochs": {"0": 10, "1": 2},
        "epoch": 0,
        "position": 0,
        "distinct": 10,
        "left": 12,
        "believed": True,
        "rate_per_s": None,
        "found": 0,
        "surprises": 0,
        "missed": 0,
        "silent_s": 0.0,
        "lapses_after_s": 300.0,
        "lapsed": False,
    }


async def test_json_says_the_same(client, job, context):
    answer = await client.put(f"{job}/epochs/3/order?rank=1", data='{"ids": [4, 0, 4]}', headers=JSON)
    assert await answer.json() == {"epoch": 3, "rank": 1, "offset": 0, "announced": 3}
    assert coming(context) == [4, 0, 4]


async def test_one_rank_or_all_of_an_epoch_are_withdrawn(client, job, context, refused):
    await put(client, job, [0, 1])
    await put(client, job, [2, 3], "?rank=1")
    await put(client, job, [4], epoch=1)
    assert (await client.delete(f"{job}/epochs/0/order?rank=0")).status == 204
    assert coming(context) == [2, 3, 4]
    assert (await client.delete(f"{job}/epochs/0/order")).status == 204
    assert coming(context) == [4]
    text = await refused(await client.delete(f"{job}/epochs/0/order"), 404, "unknown_name")
    assert "has announced no order of epoch 0" in text
    assert (await client.delete(job)).status == 204
    assert context.hints.orders.trackers == {}


@pytest.mark.parametrize(
    "wrong",
    [
        ("0/order?rank=2", packed([1]), OCTETS, "rank 2 of job 'resnet', whose world size is 2"),
        (
            "0/order?rank=0",
            packed([1])[:3],
            OCTETS,
            "3 bytes are no whole number of ids | the body is the ids",
        ),
        ("0/order?rank=0", packed([1, 10]), OCTETS, "ids[1] is 10, but dataset 'train' has 10 samples"),
        ("0/order?rank=0", packed([2**32 - 1]), OCTETS, "ids[0] is 4294967295"),
        ("0/order?rank=0&offset=3", packed([1]), OCTETS, "the next one begins at offset=2"),
        (
            "0/order?rank=0&offset=-1",
            packed([1]),
            OCTETS,
            "offset '-1' is not a number from 0 on | write offset=0",
        ),
        ("0/order?rank=0&at=1", packed([1]), OCTETS, "unknown parameter 'at' | known here: offset, rank"),
        ("0/order?rank=0&rank=1", packed([1]), OCTETS, "parameter 'rank' is there twice | send it once"),
        ("-1/order?rank=0", packed([1]), OCTETS, "epoch '-1' is not a number from 0 on | write epoch=0"),
        ("x/order?rank=0", packed([1]), OCTETS, "epoch 'x' is not a number from 0 on"),
        ("0/order?rank=0", '{"ids": [-1]}', JSON, "ids[0] is -1, but dataset 'train' has 10 samples"),
        ("0/order?rank=0", '{"ids": [1.5]}', JSON, "the JSON body is not right"),
        ("0/order?rank=0", '{"id": [1]}', JSON, "fields: ids"),
    ],
)
async def test_what_is_wrong_is_told_and_changes_nothing(client, job, context, refused, wrong):
    path, data, headers, text = wrong
    await put(client, job, [5, 6])
    answer = await client.put(f"{job}/epochs/{path}", data=data, headers=headers)
    assert text in await refused(answer, 400, "invalid_request")
    assert coming(context) == [5, 6]


async def test_what_is_no_json_is_told(client, job, refused):
    answer = await client.put(f"{job}/epochs/0/order?rank=0", data='{"ids": [NaN]}', headers=JSON)
    await refused(answer, 400, "malformed_body")
    answer = await client.put(
        f"{job}/epochs/0/order?rank=0", data="x", headers={"Content-Type": "text/plain"}
    )
    await refused(answer, 415, "unsupported_media_type")


async def test_a_job_without_a_data_set_has_no_ids_to_announce(client, refused):
    await client.put("/v1/jobs/free", json={})
    answer = await put(client, "/v1/jobs/free", [0], "")
    assert "name that dataset in PUT /v1/jobs" in await refused(answer, 400, "invalid_request")
    await refused(await put(client, "/v1/jobs/nobody", [0], ""), 404, "unknown_name")


async def test_announced_ids_are_bounded(client, job, context, refused):
    context.hints.orders.announced = announcements.Announcements(max_ids=5, max_job_ids=4)
    await put(client, job, [0, 1, 2])
    text = await refused(await put(client, job, [3, 4], "?rank=1"), 409, "conflict")
    assert "job 'resnet' has 5 announced ids with these; at most 4 are kept" in text
    await put(client, job, [3], "?rank=1")
    await client.put("/v1/jobs/other", json={"dataset": "train"})
    text = await refused(await put(client, "/v1/jobs/other", [0, 1], ""), 409, "conflict")
    assert "all jobs together have 6" in text
    await put(client, job, [])  # An empty order replaces the order of rank 0, so there is room again.
    assert (await put(client, "/v1/jobs/other", [0, 1], "")).status == 200
    assert coming(context) == [3]


async def test_epochs_are_bounded(client, job, refused, monkeypatch):
    monkeypatch.setattr(announcements, "MAX_EPOCHS", 2)
    for epoch in (0, 1):
        assert (await put(client, job, [0], epoch=epoch)).status == 200
    text = await refused(await put(client, job, [0], epoch=2), 409, "conflict")
    assert "has announced 2 epochs already | announce the next few epochs only" in text


async def test_a_big_order_is_checked_and_built_in_the_pool(client, job, context, monkeypatch):
    monkeypatch.setattr(orders, "_INLINE_BYTES", 0)
    answers = await asyncio.gather(
        put(client, job, [0, 1, 2]),
        put(client, job, [3, 4, 5], "?rank=1"),
        put(client, job, [6, 7], epoch=1),
    )
    assert [answer.status for answer in answers] == [200] * 3
    assert coming(context) == [0, 3, 1, 4, 2, 5, 6, 7]


async def test_a_job_is_deleted_while_its_order_is_built(client, job, context, monkeypatch):
    began, go_on, run = threading.Event(), threading.Event(), Build.run

    def wait(build):
        began.set()
        assert go_on.wait(60)
        return run(build)

    monkeypatch.setattr(Build, "run", wait)
    announcing = asyncio.create_task(put(client, job, [9]))
    assert await asyncio.to_thread(began.wait, 60)
    assert (await client.delete(job)).status == 204
    go_on.set()
    await announcing
    assert context.hints.orders.trackers == {}


async def test_an_order_that_cannot_be_built_leaves_the_one_before(client, job, context, monkeypatch):
    await put(client, job, [0, 1])

    def fail(_build):
        raise MemoryError

    monkeypatch.setattr(Build, "run", fail)
    assert (await put(client, job, [2, 3])).status == 500
    assert coming(context) == [0, 1]
    monkeypatch.undo()
    await put(client, job, [4, 5])
    assert coming(context) == [4, 5]


async def test_the_order_of_a_silent_job_lapses_and_that_is_shown(client, job, context, clock):
    await put(client, job, [*range(10)])
    clock.advance(299)
    context.hints.expire(clock.now_s())
    assert not (await shown(client, job))["lapsed"]
    clock.advance(2)
    context.hints.expire(clock.now_s())
    order = await shown(client, job)
    assert (order["silent_s"], order["lapses_after_s"], order["lapsed"]) == (301.0, 300.0, True)
    await client.post(f"{job}/progress", json={"epoch": 0, "rank": 0, "position": 1})
    order = await shown(client, job)
    assert (order["silent_s"], order["lapses_after_s"], order["lapsed"]) == (0.0, 20.0, False)
    assert (await (await client.get(job)).json())["silent_s"] == 0.0


async def test_an_ended_rank_takes_its_orders_with_it(client, job, context):
    await put(client, job, [0, 1, 2])
    await put(client, job, [9, 8, 7], "?rank=1")
    assert (await client.delete(f"{job}/ranks/0")).status == 204
    assert coming(context) == [9, 8, 7]
    assert (await client.delete(f"{job}/ranks/1")).status == 204
    order = await shown(client, job)
    assert (order["left"], order["lapsed"]) == (0, True)
