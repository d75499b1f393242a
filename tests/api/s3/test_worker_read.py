"""Pages that a worker fetches, where a client leaves, comes late or asks for too much."""

import asyncio

import pytest

from tests.support.s3.cases import ok
from tests.support.s3.fetching import fetching
from tests.support.s3.scripted import PAUSE, WAIT, set_up

pytestmark = pytest.mark.timeout(30)
BODY = bytes(range(256)) * 200
HEAD = ok(BODY).removesuffix(BODY)


async def test_a_page_that_came_whole_is_stored_though_memory_is_short(tmp_path):
    """The client leaves before the end is known, and no page may be finished without a reader then."""
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        ledger = setup.engine._ledger
        taken = int(ledger.capacity_bytes * 0.6)
        assert ledger.try_take(taken)
        client = await worker.client()
        for _ in range(3):
            assert (await client.get("/b/k")).body == BODY
            await asyncio.sleep(0.05)
        ledger.give(taken)
        assert worker.begun == ["/b/k"]
        assert len(setup.server.asked) == 1
        await worker.settle()


@pytest.mark.parametrize("last", ["99999999999999999999", "18446744073709551616"])
async def test_a_range_that_no_message_holds_is_relayed(tmp_path, last):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        client = await worker.client()
        answer = await client.get("/b/k", f"Range: bytes=0-{last}")
        assert answer.body == BODY
        assert worker.begun == []
        await worker.settle()


async def test_readers_do_not_wait_for_a_worker_that_is_stuck(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True, origin__timeouts__first_byte="500ms") as setup,
        fetching(setup) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(BODY)]]
        stuck = await worker.client()
        stuck.ask("/b/k")
        await setup.server.reached.wait()
        await asyncio.sleep(0.25)
        other = await setup.client()
        other.ask("/b/k")  # joins the flight that the worker fills
        answer = await other.answer()
        assert (answer.status, answer.body) == (200, BODY)
        assert (await stuck.answer()).body == BODY
        setup.server.go_on.set()
        await worker.settle()


async def test_a_job_whose_pages_come_by_a_worker_gives_signs_of_life(tmp_path):
    seen = []
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        worker.fills._on_job = seen.append
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[HEAD, PAUSE, BODY]]
        client = await worker.client()
        assert (await client.get("/b/k", "x-shade-job: one;epoch=3")).body == BODY
        await worker.settle()
    assert [(job.job, job.epoch) for job in seen] == [("one", 3)]


async def test_an_error_of_the_engine_is_no_end_of_the_worker(tmp_path, monkeypatch):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        begin = setup.engine.begin

        def fail(request, meta, reads=None):
            if reads is not None:
                raise RuntimeError
            return begin(request, meta)

        monkeypatch.setattr(setup.engine, "begin", fail)
        client = await worker.client()
        assert (await client.get("/b/k")).body == BODY
        assert worker.begun == []
        assert setup.reads.limited.open_now == 0
        await worker.settle()
