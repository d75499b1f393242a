"""Misses of a worker while jobs share the link: the coordinator decides when each job's read may begin."""

import asyncio

import pytest

from shadeproxy.core.tracing import READER
from shadeproxy.core.types import JobContext
from shadeproxy.origin.link import OTHERS, LinkQueue
from shadeproxy.origin.link_depth import LinkDepth
from tests.support.s3.cases import SMALL, ok
from tests.support.s3.fetching import fetching
from tests.support.s3.scripted import PAGE, WAIT, set_up

pytestmark = pytest.mark.timeout(30)


class OneAtATime(LinkDepth):
    """A link on which one read at a time has room."""

    def has_room(self, flying, _flying_bytes):
        return not flying


@pytest.fixture
async def world(tmp_path):
    """Yield a proxy, a worker of it, and the queue of the link, which the jobs a and b share."""
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        worker.begun.clear()
        queue = LinkQueue(
            lambda reader: reader.job if isinstance(reader, JobContext) else OTHERS,
            OneAtATime(lambda: 0.0),
            page_bytes=PAGE,
        )
        setup.reads.limited.share(queue, {"a": 1.0, "b": 1.0})
        setup.server.scripts |= {"/b/k": [[ok(SMALL)]]}
        yield setup, worker, queue


async def test_a_page_that_a_worker_fetches_is_charged_to_its_job(world):
    setup, worker, queue = world
    client = await worker.client()
    assert (await client.get("/b/k", "x-shade-job: a")).body == SMALL
    await worker.settle()
    assert worker.begun == ["/b/k"]
    assert {name: flow.served_bytes for name, flow in queue.flows.items()} == {"a": len(SMALL), "b": 0}
    assert (queue.flying, setup.reads.limited.open_now) == (0, 0)


async def test_a_page_for_which_the_link_has_no_room_waits_at_the_coordinator(world):
    setup, worker, queue = world
    READER.set(JobContext("b"))
    slot = setup.reads.limited.take_now()
    client = await worker.client()
    answer = asyncio.create_task(client.get("/b/k", "x-shade-job: a"))
    async with asyncio.timeout(10):
        while not queue.waiting:
            await asyncio.sleep(0.001)
    assert queue.flows["a"].queue.count == 1
    assert setup.server.asked == []
    setup.reads.limited.give(slot)
    assert (await answer).body == SMALL
    await worker.settle()
    assert worker.begun == []
    assert queue.flows["a"].served_bytes == len(SMALL)
    assert (queue.flying, queue.waiting, setup.reads.limited.open_now) == (0, 0, 0)


async def test_a_page_that_a_worker_need_not_fetch_is_not_charged_to_its_job(world):
    setup, worker, queue = world
    queue.depth = LinkDepth(lambda: 0.0)
    setup.server.scripts["/b/k"] = [[ok(SMALL)[:100], WAIT, ok(SMALL)[100:]]]
    first, second = await setup.client(), await worker.client()
    first.ask("/b/k", "x-shade-job: a")
    async with asyncio.timeout(10):
        await setup.server.reached.wait()
        second.ask("/b/k", "x-shade-job: b")
        while setup.engine.readings < 2:
            await asyncio.sleep(0.001)
    setup.server.go_on.set()
    assert [(await client.answer()).body for client in (first, second)] == [SMALL] * 2
    await worker.settle()
    assert {name: flow.served_bytes for name, flow in queue.flows.items()} == {"a": len(SMALL), "b": 0}
    assert (queue.flying, setup.reads.limited.open_now) == (0, 0)
