"""Score columns that are frozen for an epoch, and the ids with which the SDK announces it."""

import numpy as np
import pytest


async def column(client, job, query):
    answer = await client.get(f"{job}/scores{query}")
    assert answer.status == 200, await answer.text()
    return np.frombuffer(await answer.read(), "<f4"), answer.headers.get("x-shade-mean-loss")


async def test_every_rank_gets_the_column_that_the_first_one_got(client, job):
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [1.5]})
    first, mean_loss = await column(client, job, "?epoch=3&mean_loss=0.7")
    assert mean_loss == "0.7"
    await client.post(f"{job}/scores", json={"ids": [0, 1], "scores": [9, 9]})
    again, mean_loss = await column(client, job, "?epoch=3&mean_loss=0.9")
    assert again.tobytes() == first.tobytes()
    assert mean_loss == "0.7"
    other, mean_loss = await column(client, job, "?epoch=4")
    assert other[:2].tolist() == [9, 9]
    assert mean_loss is None
    now, _ = await column(client, job, "")
    assert now[0] == 9
    await column(client, job, "?epoch=5")
    fresh, _ = await column(client, job, "?epoch=3")  # only the last two are kept
    assert fresh[0] == 9


async def test_a_column_without_scores_is_not_frozen(client, job):
    empty, _ = await column(client, job, "?epoch=0")
    assert np.isnan(empty).all()
    await client.post(f"{job}/scores", json={"ids": [0], "scores": [1.5]})
    assert (await column(client, job, "?epoch=0"))[0][0] == 1.5


@pytest.mark.parametrize("query", ["?epoch=x", "?epoch=-1", "?mean_loss=inf", "?mean_loss=nan", "?epochs=1"])
async def test_a_wrong_query_is_told(client, job, refused, query):
    text = await refused(await client.get(f"{job}/scores{query}"), 400, "invalid_request")
    assert "parameters: epoch, mean_loss" in text


async def test_an_order_may_come_as_the_ids_that_the_sdk_sends(client, job, context):
    headers = {"Content-Type": "application/vnd.shadeproxy.ids"}
    body = np.array([4, 0, 4], dtype="<u4").tobytes()
    answer = await client.put(f"{job}/epochs/0/order?rank=0", data=body, headers=headers)
    assert answer.status == 200, await answer.text()
    assert context.knowledge.orders.coming("resnet", 1000).tolist() == [4, 0, 4]
