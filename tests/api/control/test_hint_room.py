"""Registered hints take only the memory that is configured. When it is full, jobs out of use make room, and
otherwise only new hints are refused.
"""

import asyncio
import gc
import gzip
import tracemalloc

import numpy as np
import pytest
from structlog.testing import capture_logs

import shadeproxy.hints.jobs as jobs_module
import shadeproxy.hints.registry as registry_module
from shadeproxy.hints.hint_memory import hint_bytes

LINES = {"Content-Type": "application/x-ndjson"}
OCTETS = {"Content-Type": "application/octet-stream"}
COUNT = 2_000
MIB = 1 << 20


def lines(key, count=COUNT):
    return b"".join(b'{"bucket": "b", "key": "%b%d"}\n' % (key.encode(), number) for number in range(count))


async def put_dataset(client, name, count=COUNT):
    return await client.put(f"/v1/datasets/{name}", data=lines(name, count), headers=LINES)


async def register(client, name, **job):
    assert (await put_dataset(client, name)).status == 200
    assert (await client.put(f"/v1/jobs/{name}", json={"dataset": name, **job})).status == 200


async def names(client, kind):
    answer = await (await client.get(f"/v1/{kind}s")).json()
    return {one[kind] for one in answer[f"{kind}s"]}


@pytest.fixture
def full(context):
    """Return a function that leaves the hints no more room than ``more_bytes``."""

    def fill(more_bytes=0):
        context.hint_memory.limit_bytes = hint_bytes(context.hints) + more_bytes

    return fill


async def test_a_new_dataset_and_a_new_job_are_refused_and_the_text_names_the_setting(client, full, refused):
    await register(client, "used")
    full()
    text = await refused(await put_dataset(client, "new"), 507, "hint_memory_full")
    assert "dataset 'new' would take" in text
    assert "raise control.hint_memory" in text
    answer = await client.put("/v1/jobs/new", json={"dataset": "used"})
    assert "job 'new' would take" in await refused(answer, 507, "hint_memory_full")
    assert await names(client, "dataset") == {"used"}
    assert await names(client, "job") == {"used"}


async def test_what_is_registered_already_is_accepted_again_even_beyond_the_limit(client, full):
    await register(client, "used")
    ids = np.arange(COUNT, dtype="<u4").tobytes()
    order = {"data": ids, "headers": OCTETS}
    assert (await client.put("/v1/jobs/used/epochs/0/order", **order)).status == 200
    full(-MIB)
    await register(client, "used")
    assert (await client.put("/v1/jobs/used/epochs/0/order", **order)).status == 200


async def test_a_job_in_use_can_report_all_of_its_scores_and_progress_however_full_it_is(client, full):
    await register(client, "used")
    full()
    scores = {"ids": list(range(COUNT)), "scores": [1.0] * COUNT}
    assert (await client.post("/v1/jobs/used/scores", json=scores)).status == 200
    assert (await client.post("/v1/jobs/used/epochs/0/scores", json={})).status == 200
    report = {"epoch": 0, "rank": 0, "position": 1}
    assert (await client.post("/v1/jobs/used/progress", json=report)).status == 204
    assert (await client.delete("/v1/jobs/used/ranks/0")).status == 204


async def test_an_order_without_room_is_refused_and_no_job_is_forgotten_for_it(client, full, refused):
    await register(client, "ended")
    await client.delete("/v1/jobs/ended/ranks/0")
    await register(client, "used")
    full()
    data = np.arange(COUNT, dtype="<u4").tobytes()
    answer = await client.put("/v1/jobs/used/epochs/0/order", data=data, headers=OCTETS)
    assert "announce fewer epochs ahead, or raise" in await refused(answer, 409, "conflict")
    answer = await client.put("/v1/jobs/used/epochs/0/order?offset=7", data=data, headers=OCTETS)
    await refused(answer, 400, "invalid_request")
    assert await names(client, "job") == {"ended", "used"}


async def test_jobs_that_ended_or_are_silent_make_room_the_longest_silent_first(client, clock, context, full):
    await register(client, "silent", expires_s=5.0)
    clock.advance(1.0)
    for name in ("first", "second"):
        await client.put(f"/v1/jobs/{name}", json={"dataset": "silent"})
        await client.delete(f"/v1/jobs/{name}/ranks/0")
        clock.advance(1.0)
    await client.put("/v1/jobs/used", json={"dataset": "silent"})
    clock.advance(5.0)
    context.hints.expire(clock.now_s())
    full()
    jobs = [{"first", "second"}, {"second"}, set()]
    for number, left in enumerate(jobs):
        assert (await client.put(f"/v1/jobs/new{number}", json={"dataset": "silent"})).status == 200
        assert await names(client, "job") - {"used"} == left | {f"new{at}" for at in range(number + 1)}
    assert (await client.put("/v1/jobs/new3", json={"dataset": "silent"})).status == 507
    assert await names(client, "dataset") == {"silent"}


async def test_nothing_is_forgotten_for_what_cannot_find_room_or_cannot_be(client, full, refused):
    await register(client, "ended")
    await client.delete("/v1/jobs/ended/ranks/0")
    await register(client, "used")
    full()
    await refused(await put_dataset(client, "new"), 507, "hint_memory_full")
    assert (await client.put("/v1/datasets/used", data=lines("other"), headers=LINES)).status == 409
    assert (await client.put("/v1/jobs/used", json={"dataset": "ended"})).status == 409
    assert await names(client, "job") == {"ended", "used"}


async def test_a_job_that_ended_begins_again_with_its_scores_and_another_one_makes_room(client, clock, full):
    await register(client, "again")
    await client.post("/v1/jobs/again/scores", json={"ids": [1], "scores": [0.5]})
    await client.put("/v1/jobs/later", json={"dataset": "again"})
    for name in ("again", "later"):
        await client.delete(f"/v1/jobs/{name}/ranks/0")
    clock.advance(1.0)
    await client.post("/v1/jobs/later/scores", json={"ids": [1], "scores": [0.5]})
    full()
    answer = await client.put("/v1/jobs/again?begins=0", json={"dataset": "again", "world_size": 2})
    assert answer.status == 200
    assert (await answer.json())["scores"]["known"] == 1
    assert await names(client, "job") == {"again"}


async def test_scored_objects_of_a_job_without_a_dataset_count(client, context, full, refused):
    assert (await client.put("/v1/jobs/keys", json={})).status == 200
    full(200 * 1000)
    for start in range(0, 1300, 100):
        keys = {f"b/k{number}": 1.0 for number in range(start, start + 100)}
        assert (await client.post("/v1/jobs/keys/scores", json={"keys": keys})).status == 200
    more = {f"b/x{number}": 1.0 for number in range(100)}
    text = await refused(
        await client.post("/v1/jobs/keys/scores", json={"keys": more}), 507, "hint_memory_full"
    )
    assert "scores of job 'keys'" in text
    known = {f"b/k{number}": 2.0 for number in range(100)}
    assert (await client.post("/v1/jobs/keys/scores", json={"keys": known})).status == 200
    assert hint_bytes(context.hints) <= context.hint_memory.limit_bytes


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
async def test_a_list_that_can_never_fit_is_refused_while_it_is_read(client, context, refused, pack):
    context.hint_memory.limit_bytes = 50_000
    answer = await client.put("/v1/datasets/new", data=pack(lines("new")), headers=LINES)
    assert "split the dataset, or raise" in await refused(answer, 507, "hint_memory_full")
    assert not context.ledgers.manifests.taken_bytes


async def test_a_listing_that_can_never_fit_is_refused_while_it_is_listed(client, context, backend, refused):
    context.hint_memory.limit_bytes = 50_000
    backend.listing = {"b": {f"k{number:05d}": 1 for number in range(COUNT)}}
    answer = await client.put("/v1/datasets/new", json={"bucket": "b"})
    assert "split the dataset, or raise" in await refused(answer, 507, "hint_memory_full")
    assert backend.list_calls < COUNT / 2


async def test_calls_under_way_find_no_room_for_all_of_them_at_once(client, context, full):
    """In a cluster, the other proxies must hear of a change before this one makes it. Meanwhile it counts."""
    changes, gate = context.changes.make, asyncio.Event()

    async def later(change):
        await gate.wait()
        return await changes(change)

    context.changes.make = later
    full(4 * MIB // 10)
    calls = [asyncio.create_task(put_dataset(client, f"d{number}")) for number in range(6)]
    done, _ = await asyncio.wait(calls, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
    gate.set()
    statuses = [(await call).status for call in calls]
    assert {call.result().status for call in done} == {507}
    assert 0 < statuses.count(200) < 6
    assert hint_bytes(context.hints) <= context.hint_memory.limit_bytes


async def test_a_client_that_registers_without_end_takes_no_more_than_the_limit(client, context):
    """It makes a thousand calls that register datasets, jobs with many ranks, orders and scored objects."""
    few, ids = 100, np.arange(100, dtype="<u4").tobytes()
    await put_dataset(client, "warm", few)
    await client.delete("/v1/datasets/warm")
    assert (await client.put("/v1/jobs/keys", json={})).status == 200
    limit_bytes = context.hint_memory.limit_bytes = 2 * MIB
    seen = {"dataset": set(), "job": set(), "order": set(), "keys": set()}
    tracemalloc.start()
    try:
        for number in range(250):
            seen["dataset"].add((await put_dataset(client, f"d{number}", few)).status)
            job = {"dataset": f"d{number % 20}", "world_size": 50}
            seen["job"].add((await client.put(f"/v1/jobs/j{number}", json=job)).status)
            path = f"/v1/jobs/j{number % 20}/epochs/{number}/order?rank={number % 50}"
            seen["order"].add((await client.put(path, data=ids, headers=OCTETS)).status)
            keys = {"keys": {f"b/{number}/{at}": 1.0 for at in range(30)}}
            seen["keys"].add((await client.post("/v1/jobs/keys/scores", json=keys)).status)
            assert hint_bytes(context.hints) <= limit_bytes
        gc.collect()
        made = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/shadeproxy/*")])
    finally:
        tracemalloc.stop()
    assert seen == {"dataset": {200, 507}, "job": {200, 507}, "order": {200, 409}, "keys": {200, 507}}
    assert sum(trace.size for trace in made.traces) < limit_bytes + MIB // 2
    assert context.hint_memory.refused > 500


async def test_statistics_show_the_limit_and_the_refusals(client, full, refused):
    await register(client, "used")
    full()
    await refused(await client.put("/v1/jobs/new", json={"dataset": "used"}), 507, "hint_memory_full")
    gauges = (await (await client.get("/v1/stats")).json())["gauges"]
    assert 0 < gauges["hint_bytes"] == gauges["hint_limit_bytes"]
    assert gauges["hints_refused"] == 1
    assert "shadeproxy_hints_refused 1" in await (await client.get("/metrics")).text()


# ------------------------------------------------------------------ places


@pytest.fixture
def few_places(monkeypatch):
    """Let there be at most 3 datasets and 3 jobs."""
    monkeypatch.setattr(registry_module, "MAX_DATASETS", 3)
    monkeypatch.setattr(jobs_module, "MAX_JOBS", 3)


async def end(client, job):
    assert (await client.delete(f"/v1/jobs/{job}/ranks/0")).status == 204


async def test_a_year_of_experiments_that_each_register_a_dataset_and_a_job_is_never_refused(
    client, clock, few_places
):
    for number in range(50):
        await register(client, f"e{number}")
        await end(client, f"e{number}")
        clock.advance(7 * 86400.0)
    assert await names(client, "dataset") == {"e47", "e48", "e49"}
    assert await names(client, "job") == {"e47", "e48", "e49"}


async def test_a_year_of_experiments_with_little_memory_is_never_refused(client, clock, context, full):
    await register(client, "e0")
    await end(client, "e0")
    full(2 * hint_bytes(context.hints))
    for number in range(1, 50):
        clock.advance(7 * 86400.0)
        await register(client, f"e{number}")
        await end(client, f"e{number}")
    assert await names(client, "dataset") == {"e47", "e48", "e49"}


async def test_the_dataset_that_had_no_use_for_longest_makes_its_place(client, clock, few_places):
    for name in ("read", "told", "old"):
        assert (await put_dataset(client, name)).status == 200
        clock.advance(1.0)
    clock.advance(3600.0)
    assert (await client.post("/v1/locate", json={"dataset": "read", "ids": []})).status == 200
    clock.advance(1.0)
    assert (await client.get("/v1/datasets/told")).status == 200
    clock.advance(3600.0)
    for name, left in (("new", {"read", "told"}), ("newer", {"told", "new"})):
        assert (await put_dataset(client, name)).status == 200
        assert await names(client, "dataset") == left | {name}


async def test_a_dataset_used_within_the_hour_keeps_its_place(client, clock, few_places, refused):
    for name in ("a", "b", "c"):
        assert (await put_dataset(client, name)).status == 200
    clock.advance(3599.0)
    text = await refused(await put_dataset(client, "new"), 409, "conflict")
    assert "3 datasets are registered already, and in use" in text
    assert (await put_dataset(client, "a")).status == 200
    clock.advance(1.0)
    assert (await put_dataset(client, "new")).status == 200
    assert "a" in await names(client, "dataset")


async def test_a_job_in_use_keeps_its_dataset_and_an_ended_one_goes_with_it(client, clock, few_places):
    await register(client, "used", expires_s=1e9)
    for name in ("ended", "alone"):
        await register(client, name)
        clock.advance(1.0)
        await end(client, name)
    clock.advance(86400.0)
    assert (await put_dataset(client, "new")).status == 200
    assert await names(client, "dataset") == {"used", "alone", "new"}
    assert await names(client, "job") == {"used", "alone"}
    assert (await client.put("/v1/jobs/more", json={"dataset": "alone"})).status == 200
    assert await names(client, "job") == {"used", "alone", "more"}


async def test_only_the_oldest_dataset_and_its_own_jobs_are_forgotten_for_a_place(client, clock, few_places):
    await register(client, "two")
    await end(client, "two")
    clock.advance(10.0)
    assert (await put_dataset(client, "old")).status == 200
    assert (await put_dataset(client, "other")).status == 200
    clock.advance(7200.0)
    await client.put("/v1/jobs/late", json={"dataset": "two"})
    await end(client, "late")
    clock.advance(7200.0)
    assert (await put_dataset(client, "new")).status == 200
    assert await names(client, "dataset") == {"two", "other", "new"}
    assert await names(client, "job") == {"two", "late"}


async def test_the_job_that_was_silent_for_longest_makes_its_place(client, clock, context, few_places):
    await register(client, "used", expires_s=1e9)
    for name in ("silent", "later"):
        assert (await client.put(f"/v1/jobs/{name}", json={"dataset": "used"})).status == 200
        clock.advance(1.0)
    assert (await client.put("/v1/jobs/new", json={"dataset": "used"})).status == 409
    clock.advance(3600.0)
    context.hints.expire(clock.now_s())
    assert (await client.put("/v1/jobs/new", json={"dataset": "no"})).status == 404
    assert await names(client, "job") == {"used", "silent", "later"}
    assert (await client.put("/v1/jobs/new", json={"dataset": "used"})).status == 200
    assert await names(client, "job") == {"used", "later", "new"}


async def test_a_new_job_never_costs_the_dataset_that_it_names(client, clock, context, full):
    for name in ("wanted", "other"):
        assert (await put_dataset(client, name)).status == 200
        clock.advance(1.0)
    clock.advance(7200.0)
    full()
    assert (await client.put("/v1/jobs/new", json={"dataset": "wanted"})).status == 200
    assert await names(client, "dataset") == {"wanted"}
    assert hint_bytes(context.hints) <= context.hint_memory.limit_bytes


async def test_the_log_names_what_was_forgotten_and_for_what(client, clock, few_places):
    for name in ("a", "b", "c"):
        await put_dataset(client, name)
    clock.advance(7200.0)
    with capture_logs() as logs:
        await put_dataset(client, "new")
    assert [one for one in logs if one["event"] == "dataset forgotten"] == [
        {
            "event": "dataset forgotten",
            "dataset": "a",
            "reason": "dataset 'new' needed its place",
            "log_level": "warning",
        }
    ]
