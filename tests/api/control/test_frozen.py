"""Frozen scores of an epoch, and the announced ids that the SDK draws from them."""

import asyncio
import tracemalloc

import numpy as np
import pytest

from shadeproxy.hints.changes import PutScores
from shadeproxy.hints.frozen import Frozen


async def column(client, job, epoch=None, **body):
    asked = (
        client.get(f"{job}/scores")
        if epoch is None
        else client.post(f"{job}/epochs/{epoch}/scores", json=body)
    )
    answer = await asked
    assert answer.status == 200, await answer.text()
    return np.frombuffer(await answer.read(), "<f4"), answer.headers.get("x-shade-mean-loss")


async def test_every_rank_gets_the_column_that_the_first_one_got(client, job):
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [1.5]})
    first, mean_loss = await column(client, job, 3, mean_loss=0.7)
    assert mean_loss == "0.7"
    await client.post(f"{job}/scores", json={"ids": [0, 1], "scores": [9, 9]})
    again, mean_loss = await column(client, job, 3, mean_loss=0.9)
    assert again.tobytes() == first.tobytes()
    assert mean_loss == "0.7"
    other, mean_loss = await column(client, job, 4)
    assert other[:2].tolist() == [9, 9]
    assert mean_loss is None
    now, _ = await column(client, job)
    assert now[0] == 9
    await column(client, job, 5)
    fresh, _ = await column(client, job, 3)  # Only two frozen columns are kept, so this is a new one.
    assert fresh[0] == 9


async def test_ranks_that_read_slowly_hold_no_column_each(client, job, context):
    column = np.arange(1 << 22, dtype=np.float32)  # 16 MiB
    context.hints.frozen.merge("resnet", 3, Frozen(column, None))
    head = f"POST {job}/epochs/3/scores HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    tracemalloc.start()
    try:
        readers = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection(client.host, client.port, limit=4096)
            writer.write(f"{head}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
            readers.append((reader, writer))
        for reader, _ in readers:
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: 16777216\r\n" in answer
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        assert await readers[0][0].read() == column.tobytes()
    finally:
        tracemalloc.stop()
        for _, writer in readers:
            writer.transport.abort()


async def test_a_column_without_scores_is_not_frozen(client, job):
    empty, _ = await column(client, job, 0)
    assert np.isnan(empty).all()
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [1.5]})
    assert (await column(client, job, 0))[0][0] == 1.5


async def test_a_starting_proxy_waits_for_its_cluster_before_it_freezes(client, job, context, monkeypatch):
    """The proxy may not know the latest scores, or even the job, before it has caught up with the log."""
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [1.5]})

    async def caught_up():
        PutScores("resnet", context.hints.check_by_ids("resnet", [0], [2.5])).apply(context.hints, 0.0)

    monkeypatch.setattr(context.changes, "caught_up", caught_up)
    assert (await column(client, job, 0))[0][0] == 2.5


@pytest.mark.parametrize("query", ["?epoch=3", "?epoch=3&mean_loss=0.7", "?mean_loss=1", "?epoch=x"])
async def test_a_get_freezes_nothing_and_tells_an_old_sdk_what_to_do(client, job, refused, context, query):
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [1.5]})
    text = await refused(await client.get(f"{job}/scores{query}"), 400, "invalid_request")
    assert "update shadeproxy-sdk" in text
    assert "POST /v1/jobs/resnet/epochs/EPOCH/scores" in text
    assert (await client.head(f"{job}/scores{query}")).status == 405
    assert context.hints.frozen._jobs == {}


@pytest.mark.parametrize(
    ("epoch", "body", "says"),
    [
        ("x", b"{}", "epoch 'x' is not a number from 0 on"),
        ("-1", b"{}", "epoch '-1' is not a number from 0 on"),
        ("1", b'{"mean_loss": NaN}', "NaN and Infinity are not JSON"),
        ("1", b'{"mean_loss": 1e999}', "out of range"),
        ("1", b'{"mean_loss": "1"}', "fields: mean_loss"),
        ("1", b'{"loss": 1}', "fields: mean_loss"),
        ("1", b"", "the body is JSON"),
    ],
)
async def test_a_wrong_call_freezes_nothing(client, job, epoch, body, says):
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [1.5]})
    headers = {"Content-Type": "application/json"}
    answer = await client.post(f"{job}/epochs/{epoch}/scores", data=body, headers=headers)
    error = (await answer.json())["error"]
    assert answer.status == 400
    assert says in f"{error['message']} {error['hint']}"
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [2.5]})
    assert (await column(client, job, 1))[0][0] == 2.5


async def test_an_unknown_job_has_no_column(client, refused):
    answer = await client.post("/v1/jobs/nobody/epochs/0/scores", json={})
    assert "nobody" in await refused(answer, 404, "unknown_name")


async def test_an_order_may_come_as_the_ids_that_the_sdk_sends(client, job, context):
    headers = {"Content-Type": "application/vnd.shadeproxy.ids"}
    body = np.array([4, 0, 4], dtype="<u4").tobytes()
    answer = await client.put(f"{job}/epochs/0/order?rank=0", data=body, headers=headers)
    assert answer.status == 200, await answer.text()
    assert context.hints.orders.coming("resnet", 1000).tolist() == [4, 0, 4]
