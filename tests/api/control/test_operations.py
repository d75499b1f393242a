"""Long operations are started, watched, cancelled, and forgotten after their end."""

import asyncio

import pytest
from structlog.testing import capture_logs

from shadeproxy.api.control.running import KEPT_S, MOST_ENDED, MOST_RUNNING
from shadeproxy.core.errors import OriginAnswer, ShuttingDown
from shadeproxy.engine.placement.pins import Prefix


@pytest.fixture
def begin(client):
    """Return ``begin(uri)``, which begins to warm a prefix, and returns the answer."""

    async def begin(uri="s3://b/d/", **body):
        answer = await client.post("/v1/warm", json={"uri": uri, **body})
        assert answer.status == 202, await answer.text()
        return await answer.json()

    return begin


@pytest.fixture
def state(client):
    """Return ``state(begun)``, which returns the summary of an operation that has begun.

    With ``over``, the function waits until the operation is over.
    """

    async def state(begun, *, over=True):
        while True:
            told = await (await client.get(f"/v1/operations/{begun['id']}")).json()
            if not over or told["state"] != "running":
                return told
            await asyncio.sleep(0)

    return state


@pytest.fixture(autouse=True)
async def _ended(context):
    yield
    await context.operations.aclose()


async def test_it_is_begun_watched_and_done(client, backend, state):
    answer = await client.post("/v1/warm", json={"uri": "s3://b/d/"})
    begun = await answer.json()
    assert (answer.status, answer.headers["Location"]) == (202, f"/v1/operations/{begun['id']}")
    assert begun == {
        "id": begun["id"],
        "kind": "warm",
        "uri": "s3://b/d/",
        "dry_run": False,
        "state": "running",
        "listed": False,
        "done": 0,
        "total": 0,
        "pages": 0,
        "bytes": 0,
        "total_bytes": 0,
        "resident": 0,
        "not_stored": 0,
        "failed": 0,
        "error": "",
    }
    work = backend.work[0]
    work.progress.done, work.progress.total, work.progress.bytes = 3, 7, 4096
    assert (await state(begun, over=False)) == begun | {"done": 3, "total": 7, "bytes": 4096}
    work.go_on.set()
    assert (await state(begun))["state"] == "done"
    listed = await (await client.get("/v1/operations")).json()
    assert [one["id"] for one in listed["operations"]] == [begun["id"]]


async def test_a_dry_run_is_told_to_the_work(backend, begin):
    assert (await begin(dry_run=True))["dry_run"]
    assert backend.work[0].dry_run


async def test_it_is_cancelled_and_stays_so(client, backend, begin):
    begun = await begin()
    path = f"/v1/operations/{begun['id']}"
    for _ in range(2):
        told = await (await client.delete(path)).json()
        assert told["state"] == "cancelled"
    assert (await (await client.get(path)).json())["state"] == "cancelled"


async def test_what_is_over_is_not_cancelled(client, backend, begin, state):
    begun = await begin()
    backend.work[0].go_on.set()
    await state(begun)
    assert (await (await client.delete(f"/v1/operations/{begun['id']}")).json())["state"] == "done"


async def test_a_failure_is_told(backend, begin, state):
    begun = await begin()
    backend.work[0].error = OriginAnswer(404, "NoSuchBucket", "there is none")
    backend.work[0].go_on.set()
    told = await state(begun)
    assert (told["state"], told["error"]) == ("failed", "404 NoSuchBucket: there is none")


async def test_a_bug_is_told_without_its_words(backend, begin, state):
    begun = await begin()
    backend.work[0].error = RuntimeError("secret")
    backend.work[0].go_on.set()
    told = await state(begun)
    assert (told["state"], told["error"]) == ("failed", "the proxy failed; see its log")


async def test_the_first_object_that_failed_is_told(backend, begin, state):
    begun = await begin()
    backend.work[0].progress.error = "s3://b/d/1: 403 AccessDenied"
    backend.work[0].go_on.set()
    told = await state(begun)
    assert (told["state"], told["error"]) == ("done", "s3://b/d/1: 403 AccessDenied")


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ((None, ""), {"state": "done"}),
        ((None, "s3://b/d/1: 403"), {"state": "done", "error": "s3://b/d/1: 403"}),
        (
            (OriginAnswer(404, "NoSuchBucket", "none"), ""),
            {"state": "failed", "error": "404 NoSuchBucket: none"},
        ),
    ],
)
async def test_the_log_says_how_it_ended_and_an_error_only_where_there_was_one(
    backend, begin, state, errors, told
):
    with capture_logs() as logs:
        begun = await begin()
        backend.work[0].error, backend.work[0].progress.error = errors
        backend.work[0].go_on.set()
        await state(begun)
    fields = {"event": "operation ended", "log_level": "info", "kind": "warm", "uri": "s3://b/d/"}
    assert logs == [{**fields, "id": begun["id"], **told}]


@pytest.mark.parametrize("method", ["get", "delete"])
async def test_an_operation_that_is_not_known(client, refused, method):
    answer = await getattr(client, method)("/v1/operations/nope")
    assert await refused(answer, 404, "unknown_name") == (
        "no operation has the id 'nope' | GET /v1/operations lists them;"
        " one that ended is forgotten after an hour, all of them at a restart"
    )


async def test_few_run_at_a_time(client, backend, begin, state, refused):
    begun = [await begin(f"s3://b/{number}") for number in range(MOST_RUNNING["warm"])]
    text = await refused(await client.post("/v1/warm", json={"uri": "s3://b/d"}), 409, "conflict")
    assert text.startswith("4 operations are running, which is as many as may at a time: ")
    assert f"{begun[0]['id']} (warm s3://b/0)" in text
    assert text.endswith("wait for one to end, or end it with DELETE /v1/operations/{id}")
    backend.work[0].go_on.set()
    await state(begun[0])
    await begin()


async def test_what_ended_is_kept_for_an_hour_and_not_without_bound(client, backend, begin, clock, state):
    for _ in range(MOST_ENDED + 5):
        begun = await begin()
        backend.work[-1].go_on.set()
        await state(begun)
    kept = (await (await client.get("/v1/operations")).json())["operations"]
    assert len(kept) == MOST_ENDED
    assert kept[-1]["id"] == begun["id"]
    clock.advance(KEPT_S + 1)
    assert (await (await client.get("/v1/operations")).json())["operations"] == []


async def test_at_the_end_nothing_runs_and_nothing_begins(client, context, begin, refused, state):
    begun = await begin()
    await context.operations.aclose()
    assert (await state(begun))["state"] == "cancelled"
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("warm")]
    answer = await client.post("/v1/warm", json={"uri": "s3://b/d"})
    text = await refused(answer, 503, "shutting_down")
    assert text == "the proxy is shutting down; ask again after its restart | "
    with pytest.raises(ShuttingDown):
        context.operations.start(context.admin.warming(Prefix("b", ""), dry_run=False))
