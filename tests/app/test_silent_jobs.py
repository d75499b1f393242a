"""``shadeproxy doctor`` names a job that fell silent, on a whole proxy."""

import aiohttp
import numpy as np
import pytest

from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.core.clock import SystemClock

COUNT, BODY = 200, bytes(20_000)


class Shifted(SystemClock):
    """The machine's clock, ``ahead_s`` ahead."""

    ahead_s = 0.0

    def __init__(self):
        self.now_s = lambda: SystemClock.now_s() + self.ahead_s


@pytest.fixture
async def clock():
    return Shifted()


@pytest.fixture
async def proxy(tmp_path, clock):
    (tmp_path / "buckets" / "data").mkdir(parents=True)
    for n in range(COUNT):
        (tmp_path / "buckets" / "data" / f"{n:03d}").write_bytes(BODY)
    settings = [
        "s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", "origin.kind=file",
        f"origin.path={tmp_path}/buckets", f"cache.ram.path={tmp_path}/ram", "cache.ram.capacity=2 MiB",
        "cache.disk.capacity=0", f"state.path={tmp_path}/state", "prefetch.enabled=false",
    ]  # fmt: skip
    proxy = Proxy(Settings.load(None, settings), clock=clock)
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


async def silent(call):
    return [one for one in (await call("GET", "/v1/doctor"))["findings"] if one["name"] == "silent job"]


async def test_doctor_says_which_job_is_silent_and_what_it_holds(proxy, call, clock):
    await call("PUT", "/v1/datasets/d", json={"bucket": "data", "prefix": ""})
    await call("PUT", "/v1/jobs/j", json={"dataset": "d"})
    order = np.random.default_rng(1).permutation(COUNT)
    for epoch in range(2):
        await call("PUT", f"/v1/jobs/j/epochs/{epoch}/order", json={"ids": order.tolist()})
    async with aiohttp.ClientSession(f"http://{proxy.s3_address}") as session:
        for n in order[:150].tolist():
            async with session.get(f"/data/{n:03d}", headers={"x-shade-job": "j;epoch=0"}) as answer:
                assert await answer.read() == BODY
    clock.ahead_s = 10.0
    assert await silent(call) == []
    clock.ahead_s = 60.0
    (found,) = await silent(call)
    assert found["cause"].startswith("job 'j' is silent and holds 9")
    assert " % of the cache: it last read 6" in found["cause"]
    assert "DELETE /v1/jobs/j" in found["remedy"]
    (job,) = (await call("GET", "/v1/jobs"))["jobs"]
    assert job["order"]["lapsed"]
    assert job["silent_s"] >= 60
    await call("DELETE", "/v1/jobs/j/ranks/0")
    assert await silent(call) == [], "an ended job is not silent"
