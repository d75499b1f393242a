"""Connections that a worker opens to the origin for its misses."""

import asyncio

import pytest

from shadeproxy.origin.pool import NotConnected
from tests.support.s3.cases import ok
from tests.support.s3.fetching import FetchingWorker, fetching
from tests.support.s3.scripted import Setup, set_up

pytestmark = pytest.mark.timeout(30)
BODY = bytes(range(256)) * 200


class Delayed:
    """Has the worker's connections to the origin wait for ``go_on`` before they open. ``begun``
    counts them.
    """

    def __init__(self, worker: FetchingWorker) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self._connect = worker.gets.pool._connect
        worker.gets.pool._connect = self.connect  # type: ignore[method-assign]

    async def connect(self, peer):
        self.begun += 1
        await self.go_on.wait()
        return await self._connect(peer)

    async def wait(self) -> None:
        """Wait until the worker opens a connection."""
        while not self.begun:
            await asyncio.sleep(0.001)


def scripted(setup: Setup, *keys: str) -> None:
    setup.server.scripts = {f"/b/{key}": [[ok(BODY)]] for key in keys}


async def test_a_worker_without_an_idle_connection_opens_one_for_each_miss(tmp_path):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        keys = [f"k{number}" for number in range(6)]
        scripted(setup, *keys)
        delayed = Delayed(worker)
        clients = [await worker.client() for _ in keys]
        for key, client in zip(keys, clients, strict=True):
            client.ask(f"/b/{key}")
        await delayed.wait()
        delayed.go_on.set()
        for client in clients:
            assert (await client.answer()).body == BODY
        assert sorted(worker.begun) == [f"/b/{key}" for key in keys]
        assert delayed.begun == len(keys)
        assert len(setup.server.asked) == len(keys)
        await worker.settle()
        scripted(setup, "next")
        assert (await clients[0].get("/b/next")).body == BODY
        assert delayed.begun == len(keys), "an idle connection is used again"
        await worker.settle()


async def test_all_processes_share_the_slots_of_the_origin(tmp_path):
    """A worker opens no more connections to the origin than the coordinator has slots.

    Each connection in ``begun`` is for a read to which the coordinator gave a slot.
    """
    async with (
        set_up(tmp_path, by_callbacks=True, origin__max_connections=3) as setup,
        fetching(setup) as worker,
    ):
        await setup.warm(1)
        keys = [f"k{number}" for number in range(8)]
        scripted(setup, *keys)
        delayed = Delayed(worker)
        clients = [await worker.client() for _ in keys]
        for key, client in zip(keys, clients, strict=True):
            client.ask(f"/b/{key}")
        await delayed.wait()
        await asyncio.sleep(0.05)
        assert delayed.begun <= 3
        delayed.go_on.set()
        for client in clients:
            assert (await client.answer()).body == BODY
        await worker.settle()


async def test_the_coordinator_fetches_the_page_if_the_worker_cannot_connect(tmp_path):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        scripted(setup, "k")

        async def refuse(_peer):
            raise NotConnected

        worker.gets.pool._connect = refuse  # type: ignore[method-assign]
        client = await worker.client()
        assert (await client.get("/b/k")).body == BODY
        assert worker.begun == []
        assert len(setup.server.asked) == 1
        await worker.settle()


async def test_another_reader_gets_the_page_if_the_client_leaves_while_its_worker_connects(tmp_path):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        scripted(setup, "k")
        delayed = Delayed(worker)
        leaving, other = await worker.client(), await setup.client()
        leaving.ask("/b/k")
        await delayed.wait()
        other.ask("/b/k")
        await asyncio.sleep(0.02)
        await leaving.close()
        await asyncio.sleep(0.02)
        delayed.go_on.set()
        assert (await other.answer()).body == BODY
        assert len(setup.server.asked) == 1
        await worker.settle()


async def test_the_page_of_a_client_that_left_alone_is_not_asked_for(tmp_path):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        scripted(setup, "k")
        delayed = Delayed(worker)
        leaving = await worker.client()
        leaving.ask("/b/k")
        await delayed.wait()
        await leaving.close()
        while len(worker.misses):
            await asyncio.sleep(0.001)
        delayed.go_on.set()
        await worker.settle()
        assert setup.server.asked == []


async def test_a_client_is_refused_in_time_though_no_connection_opens(tmp_path):
    impatient = {"origin__timeouts__first_byte": "200ms", "origin__timeouts__window": "200ms"}
    async with set_up(tmp_path, by_callbacks=True, **impatient) as setup, fetching(setup) as worker:
        await setup.warm(2)
        scripted(setup, "k")
        delayed = Delayed(worker)
        client = await worker.client()
        answer = await client.get("/b/k")
        assert (answer.status, answer.cut) == (503, False)
        assert b"<Code>SlowDown</Code>" in answer.body
        delayed.go_on.set()
        await worker.settle()
        assert setup.server.asked == []
        assert (await client.get("/b/k")).body == BODY
        await worker.settle()
