"""Two proxies of a cluster, whose hints fill their memory: the called one decides, and both hold the same."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from shadeproxy.api.control.app import make_control_app
from shadeproxy.core.clock import SystemClock
from shadeproxy.hints.hint_memory import HintMemory, hint_bytes
from shadeproxy.telemetry.stats import Stats
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, until

LINES = {"Content-Type": "application/x-ndjson"}
COUNT = 2_000


class Node:
    """One proxy: ``sharing`` has its hints, ``client`` calls its control listener."""

    def __init__(self, sharing, context, client):
        self.sharing, self.client = sharing, client
        self.hints, self.memory = sharing.hints, context.hint_memory

    async def put_dataset(self, name, count=COUNT):
        data = b"".join(b'{"bucket": "b", "key": "%b%d"}\n' % (name.encode(), at) for at in range(count))
        return (await self.client.put(f"/v1/datasets/{name}", data=data, headers=LINES)).status

    async def put_job(self, name, dataset="d"):
        return (await self.client.put(f"/v1/jobs/{name}", json={"dataset": dataset})).status

    def known(self):
        return sorted(self.hints.datasets), sorted(self.hints.jobs.by_name), hint_bytes(self.hints)


@pytest.fixture
async def nodes(context):
    server, nodes = Server(), []
    async with AsyncExitStack() as stack:
        for name in ("a", "b"):
            sharing = await stack.enter_async_context(Sharing(FakeLog(server), name))
            own = replace(
                context,
                hints=sharing.hints,
                hint_memory=HintMemory(sharing.hints),
                changes=sharing.replication,
                order_builder=sharing.builder,
                clock=SystemClock(),
                stats=Stats(),
            )
            client = TestClient(TestServer(make_control_app(own)))
            nodes.append(Node(sharing, own, await stack.enter_async_context(client)))
        yield nodes


async def alike(nodes):
    a, b = nodes
    await until(lambda: a.known() == b.known())
    return a.known()[1]


async def test_one_proxy_forgets_what_the_other_registered_and_both_forget_the_same(nodes):
    a, b = nodes
    assert await a.put_dataset("d") == 200
    for name in ("ended", "used"):
        assert await a.put_job(name) == 200
    assert (await a.client.delete("/v1/jobs/ended/ranks/0")).status == 204
    await alike(nodes)
    await until(lambda: not b.hints.jobs.get("ended").in_use)
    for node in nodes:
        node.memory.limit_bytes = hint_bytes(a.hints)
    assert await b.put_job("new") == 200
    assert await alike(nodes) == ["new", "used"]
    for node in nodes:
        assert await node.put_job("newer") == 507
        assert await node.put_dataset("e") == 507
    assert await alike(nodes) == ["new", "used"]
    assert hint_bytes(a.hints) <= a.memory.limit_bytes


async def test_a_proxy_applies_what_another_one_accepted_even_beyond_its_own_limit(nodes):
    a, b = nodes
    b.memory.limit_bytes = 1000
    assert await a.put_dataset("d") == 200
    assert await a.put_job("job") == 200
    assert await alike(nodes) == ["job"]
    scores = {"ids": [1], "scores": [0.5]}
    for node in nodes:
        assert (await node.client.post("/v1/jobs/job/scores", json=scores)).status == 200
        assert await node.put_job("job") == 200
    assert await b.put_job("new") == 507
    assert b.sharing.counters.refused == {}


async def test_many_calls_to_both_proxies_at_once_stay_near_the_limit_and_agree(nodes):
    a, _ = nodes
    assert await a.put_dataset("d") == 200
    await alike(nodes)
    for node in nodes:
        node.memory.limit_bytes = hint_bytes(a.hints) + 500_000
    calls = [node.put_job(f"{at}{number}") for number in range(20) for at, node in enumerate(nodes)]
    statuses = await asyncio.gather(*calls)
    assert set(statuses) == {200, 507}
    jobs = await alike(nodes)
    assert len(jobs) == statuses.count(200)
    # Each proxy counts the hints that it knows. If both accept some at one moment, it may exceed the limit.
    assert hint_bytes(a.hints) <= a.memory.limit_bytes + 500_000
