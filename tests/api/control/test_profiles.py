"""``GET /v1/jobs/{job}/profile``: measurements of epochs, from reads and reports."""

import pytest

from shadeproxy.core.types import JobContext, Source
from shadeproxy.telemetry.counters import TierGauges


async def test_epochs_have_reads_times_and_what_the_origin_sent(client, job, context):
    assert (await client.put(f"{job}/epochs/0/order?rank=0", json={"ids": [1, 0]})).status == 200
    now = iter([100.0, 101.0, 109.0, 110.0, 130.0])
    context.stats._now_s = lambda: next(now)
    for source in (Source.ORIGIN, Source.ORIGIN, Source.RAM):
        context.stats.record_read("train", source, 1000, JobContext("resnet", 0, 0))
    context.stats.record_read("train", Source.DISK, 1000, JobContext("resnet", 1, 0))
    context.stats.record_prefetched("resnet", 700)
    context.stats.record_origin("get", 1000, 0.25)
    context.stats.record_first_byte("get", 0.2)
    used = iter([1.0, 1.2, 1.2])
    context.stats.measure_cpu(lambda: next(used), cores=2)
    report = {"epoch": 1, "rank": 0, "position": 1, "stall_s": 1.5, "compute_s": 18.5}
    assert (await client.post(f"{job}/progress", json=report)).status == 204
    shown = await (await client.get(f"{job}/profile")).json()
    first, second = shown.pop("epochs")
    assert first == {
        "epoch": 0, "began": 100.0, "wall_s": 9.0, "samples": 3, "bytes": 3000, "hits": 1,
        "origin_bytes": 2000, "stall_s": 0.0, "compute_s": 0.0, "cpu_s": pytest.approx(0.15),
    }  # fmt: skip
    assert second == {
        "epoch": 1, "began": 110.0, "wall_s": 20.0, "samples": 1, "bytes": 1000, "hits": 1,
        "origin_bytes": 700, "stall_s": 1.5, "compute_s": 18.5, "cpu_s": pytest.approx(0.05),
    }  # fmt: skip
    assert shown == {
        "version": 1, "job": "resnet", "samples": 10, "world_size": 2, "announced": True,
        "policy": "default", "cache_bytes": 0, "origin_s": 0.25, "origin_spread": 0.0, "first_byte_s": 0.2,
        "page_bytes": None, "cores": 2, "loader": None,
    }  # fmt: skip


async def test_a_new_run_begins_with_no_epochs(client, job, context):
    spec = {"dataset": "train", "world_size": 2}

    async def begin(*ranks):
        for rank in ranks:
            assert (await client.put(f"{job}?begins={rank}", json=spec)).status == 200
        return [one["epoch"] for one in (await (await client.get(f"{job}/profile")).json())["epochs"]]

    assert await begin(0, 1) == []
    context.stats.record_reads("train", Source.ORIGIN, 3, 300, JobContext("resnet", 0, 0))
    assert (await client.put(job, json=spec)).status == 200  # This call names no rank that begins.
    assert await begin() == [0]
    assert await begin(0) == []
    context.stats.record_reads("train", Source.ORIGIN, 3, 300, JobContext("resnet", 1, 0))
    assert await begin(1) == [1]  # Rank 1 of the run that rank 0 began.
    for rank in range(2):
        await client.delete(f"{job}/ranks/{rank}")
    assert await begin(1) == []


async def test_a_job_has_announced_until_its_next_run_also_if_nothing_was_fetched(client, job):
    spec = {"dataset": "train", "world_size": 2}

    async def announced():
        return (await (await client.get(f"{job}/profile")).json())["announced"]

    assert (await client.put(f"{job}?begins=0", json=spec)).status == 200
    assert not await announced()
    assert (await client.put(f"{job}/epochs/0/order?rank=0", json={"ids": [1, 0]})).status == 200
    assert await announced()
    for rank in range(2):
        assert (await client.delete(f"{job}/ranks/{rank}")).status == 204
    assert await announced()
    assert (await client.put(f"{job}?begins=0", json=spec)).status == 200
    assert not await announced()


async def test_the_loader_and_the_cache_are_told(client, job, context):
    context.stats.watch_tier("ram", lambda: TierGauges(3000, 4096, 2))
    context.stats.watch_tier("disk", lambda: TierGauges(0, 100, 0))
    loader = {"workers": 8, "batch_size": 256, "prefetch_factor": 4, "reads_at_once": 32}
    answer = await client.post(
        f"{job}/progress", json={"epoch": 0, "rank": 1, "position": 1, "loader": loader}
    )
    assert answer.status == 204
    shown = await (await client.get(f"{job}/profile")).json()
    assert shown["loader"] == loader
    assert shown["cache_bytes"] == 4196
    assert shown["page_bytes"] == 1500.0
    assert shown["epochs"] == []
    assert shown["origin_s"] is None


async def test_processor_time_that_was_not_measured_is_null(client, job, context):
    context.stats.record_read("train", Source.RAM, 1000, JobContext("resnet", 0, 0))
    shown = await (await client.get(f"{job}/profile")).json()
    assert (shown["cores"], shown["epochs"][0]["cpu_s"]) == (1, None)


@pytest.mark.parametrize(
    "wrong", [{"loader": {"workers": -1}}, {"loader": {"workers": 1, "batch_size": 0}}, {"compute_s": -1}]
)
async def test_reports_that_cannot_be_meant_change_nothing(client, job, wrong):
    answer = await client.post(f"{job}/progress", json={"epoch": 0, "rank": 0, "position": 1} | wrong)
    assert answer.status == 400
    shown = await (await client.get(f"{job}/profile")).json()
    assert shown["loader"] is None
    assert shown["epochs"] == []


async def test_a_job_that_is_not_registered_has_no_profile(client):
    answer = await client.get("/v1/jobs/none/profile")
    assert answer.status == 404
    assert "job 'none' is not registered" in (await answer.json())["error"]["message"]
