"""``shadeproxy doctor`` names jobs that are silent or hardly believed. The tests run a whole proxy."""

import asyncio

import aiohttp
import numpy as np
import pytest

from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings

COUNT, BODY = 200, bytes(20_000)


@pytest.fixture
async def proxy(tmp_path):
    (tmp_path / "buckets" / "data").mkdir(parents=True)
    for n in range(COUNT):
        (tmp_path / "buckets" / "data" / f"{n:03d}").write_bytes(BODY)
    (tmp_path / "buckets" / "other").mkdir()
    (tmp_path / "buckets" / "other" / "x").write_bytes(b"x")
    settings = [
        "s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", "origin.kind=file",
        f"origin.path={tmp_path}/buckets", f"cache.ram.path={tmp_path}/ram", "cache.ram.capacity=16 MiB",
        "cache.disk.capacity=0", f"state.path={tmp_path}/state", "prefetch.enabled=false",
    ]  # fmt: skip
    proxy = Proxy(Settings.load(None, settings))
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def call(proxy):
    async with aiohttp.ClientSession(f"http://{proxy.control_address}") as session:

        async def ask(method, path, **kwargs):
            async with session.request(method, path, **kwargs) as answer:
                assert answer.status < 300, await answer.text()
                return await answer.json() if answer.content_type == "application/json" else None

        yield ask


async def findings(call):
    return [one for one in (await call("GET", "/v1/doctor"))["findings"] if one["name"].endswith(" job")]


async def announce(call, order):
    await call("PUT", "/v1/datasets/d", json={"bucket": "data", "prefix": ""})
    await call("PUT", "/v1/jobs/j", json={"dataset": "d"})
    for epoch in range(2):
        await call("PUT", f"/v1/jobs/j/epochs/{epoch}/order", json={"ids": order.tolist()})


async def read(proxy, numbers):
    async with aiohttp.ClientSession(f"http://{proxy.s3_address}") as session:
        for n in numbers:
            async with session.get(f"/data/{n:03d}", headers={"x-shade-job": "j;epoch=0"}) as answer:
                assert await answer.read() == BODY


async def test_doctor_says_which_job_is_silent_and_what_it_holds(proxy, call):
    order = np.random.default_rng(1).permutation(COUNT)
    await announce(call, order)
    await read(proxy, order[:150].tolist())
    assert await findings(call) == []
    async with aiohttp.ClientSession(f"http://{proxy.s3_address}") as session:
        for _ in range(100):
            async with session.get("/other/x") as answer:
                assert await answer.read() == b"x"
    (job,) = (await call("GET", "/v1/jobs"))["jobs"]
    assert job["silent_reads"] == pytest.approx(100, abs=32)
    assert job["order_trust"] > 0.8
    (found,) = await findings(call)
    assert found["cause"].startswith("job 'j' is silent: ")
    assert f": {job['trust_reason']}" in found["cause"]
    assert "silent for 1" in job["trust_reason"]
    assert "DELETE /v1/jobs/j" in found["remedy"]
    await call("DELETE", "/v1/jobs/j/ranks/0")
    assert await findings(call) == [], "an ended job is not silent"


async def test_doctor_says_which_job_reads_other_things_than_it_announces(proxy, call):
    announced = np.arange(COUNT // 2)
    await announce(call, announced)
    for _ in range(2):
        await read(proxy, range(COUNT // 2, COUNT))
    # The access log passes reads on later, many at a time, and the trust sinks with them.
    async with asyncio.timeout(30):
        while (await call("GET", "/v1/jobs"))["jobs"][0]["order_trust"] > 0.5:
            await asyncio.sleep(0.01)
    (found,) = await findings(call)
    assert found["name"] == "doubtful job"
    assert "bytes (" in found["cause"]
    assert " % of its reads were announced" in found["cause"]
