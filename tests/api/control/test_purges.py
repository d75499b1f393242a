"""A purge that is soon done is answered with its counts. A longer purge becomes a long operation."""

import asyncio

import pytest

from shadeproxy.api.control import running
from shadeproxy.api.control.running import MOST_RUNNING
from shadeproxy.core.errors import WriteRefused
from shadeproxy.core.work_progress import WorkProgress
from tests.support.operating import Work


@pytest.fixture(autouse=True)
async def _ended(context, monkeypatch):
    monkeypatch.setattr(running, "_PURGED_S", 0.01)
    monkeypatch.setitem(MOST_RUNNING, "purge", 8)
    yield
    await context.operations.aclose()


@pytest.fixture
def long_purge(client, backend):
    """Return ``long_purge()``, which begins a purge that lasts until the test lets its work end.

    The function returns the summary of the operation, and the work.
    """

    async def long_purge(uri="s3://b/d/", **body):
        backend.purges_are_long = True
        answer = await client.post("/v1/purge", json={"uri": uri, **body})
        assert answer.status == 202, await answer.text()
        begun = await answer.json()
        assert answer.headers["Location"] == f"/v1/operations/{begun['id']}"
        return begun, backend.work[-1]

    return long_purge


@pytest.fixture
def told(client):
    """Return ``told(begun)``, which returns the present summary of an operation."""

    async def told(begun):
        return await (await client.get(f"/v1/operations/{begun['id']}")).json()

    return told


async def test_a_short_purge_is_answered_with_its_counts_and_is_not_kept(client, backend):
    answer = await client.post("/v1/purge", json={"uri": "s3://b/d/"})
    assert (answer.status, await answer.json()) == (200, {"objects": 2, "pages": 3, "bytes": 4096})
    assert (await (await client.get("/v1/operations")).json())["operations"] == []


async def test_a_long_purge_is_watched_to_its_end(client, told, long_purge):
    begun, work = await long_purge()
    assert (begun["kind"], begun["uri"], begun["state"]) == ("purge", "s3://b/d/", "running")
    work.progress = WorkProgress(listed=True, done=1, total=7, pages=2, bytes=30, total_bytes=90)
    now = {"done": 1, "total": 7, "pages": 2, "bytes": 30, "total_bytes": 90}
    assert await told(begun) == begun | now
    work.go_on.set()
    while (now := await told(begun))["state"] == "running":
        await asyncio.sleep(0)
    assert now["state"] == "done"
    listed = await (await client.get("/v1/operations")).json()
    assert [one["id"] for one in listed["operations"]] == [begun["id"]]


async def test_a_long_dry_run_says_that_it_is_one(long_purge):
    begun, _work = await long_purge(dry_run=True)
    assert begun["dry_run"]


async def test_a_cancelled_purge_tells_how_much_is_gone(client, told, long_purge):
    begun, work = await long_purge()
    work.progress = WorkProgress(listed=True, done=1, total=7, pages=2, bytes=30)
    now = await (await client.delete(f"/v1/operations/{begun['id']}")).json()
    assert (now["state"], now["done"], now["pages"], now["bytes"]) == ("cancelled", 1, 2, 30)
    assert await told(begun) == now


async def test_who_cancels_it_meanwhile_makes_no_complete_purge_of_it(client, backend, context, monkeypatch):
    """A purge that another call cancels is answered as cancelled, not as complete.

    The call that began the purge still waits for the answer at that time.
    """
    backend.purges_are_long = True
    waits = asyncio.Event()

    async def sleep(_seconds):
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(context.clock, "sleep", sleep)
    purging = asyncio.create_task(client.post("/v1/purge", json={"uri": "s3://b/d/"}))
    await waits.wait()
    (running,) = context.operations.all()
    await context.operations.cancel(running.id)
    answer = await purging
    assert (answer.status, (await answer.json())["state"]) == (202, "cancelled")


async def test_a_purge_that_fails_at_once_is_an_error(client, backend, refused):
    backend.refusal = WriteRefused("the disk neither erases nor notes")
    text = await refused(await client.post("/v1/purge", json={"uri": "s3://b"}), 503, "write_refused")
    assert "neither erases nor notes" in text
    assert (await (await client.get("/v1/operations")).json())["operations"] == []


async def test_purges_do_not_wait_for_warms_and_are_bounded(client, backend, refused, long_purge):
    for number in range(MOST_RUNNING["warm"]):
        assert (await client.post("/v1/warm", json={"uri": f"s3://b/{number}"})).status == 202
    for _ in range(MOST_RUNNING["purge"]):
        begun, _work = await long_purge()
    text = await refused(await client.post("/v1/purge", json={"uri": "s3://b"}), 409, "conflict")
    assert text.startswith("8 operations are running, which is as many as may at a time: ")
    assert text.count("(purge s3://b/d/)") == 4
    await client.delete(f"/v1/operations/{begun['id']}")
    await long_purge()


async def test_a_stop_waits_for_purges_and_cancels_warms(client, context, long_purge, monkeypatch):
    monkeypatch.setattr(running, "_PURGED_S", 60.0)
    await client.post("/v1/warm", json={"uri": "s3://b/d/"})
    _begun, work = await long_purge()
    stopping = asyncio.create_task(context.operations.aclose())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    work.go_on.set()
    await stopping
    states = {one.work.kind: one.state for one in context.operations.all()}
    assert states == {"warm": "cancelled", "purge": "done"}


async def test_a_second_cancel_does_not_disturb_what_the_first_one_ends(context):
    ended, finished = asyncio.Event(), []

    class Slow(Work):
        async def run(self):
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                await ended.wait()
                finished.append(self.uri)
                raise

    operation = context.operations.start(Slow("s3://b/d/", dry_run=False, kind="purge"))
    await asyncio.sleep(0)
    cancels = []
    for _ in range(2):
        cancels.append(asyncio.create_task(context.operations.cancel(operation.id)))
        for _ in range(5):
            await asyncio.sleep(0)
    assert operation.state == "running"
    ended.set()
    await asyncio.gather(*cancels)
    assert (operation.state, finished) == ("cancelled", ["s3://b/d/"])
