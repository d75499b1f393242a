"""The settings of ``[telemetry.otel]``: if off, nothing is loaded; if on, a collector gets the otel spans."""

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack

import aiohttp
import pytest
import structlog

from shadeproxy.app.otel import open_tracer
from shadeproxy.app.reloadable import merge
from shadeproxy.config import Settings
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import ConfigError
from tests.support.otel import collecting, record_spans
from tests.support.s3.cases import SMALL, ok
from tests.support.s3.scripted import set_up

ON = {"telemetry__otel__enabled": "true"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# A program with a proxy that serves a miss, hits, an upload and a control call, and that imports nothing
# else.
_SERVES = """
import asyncio, json, sys, tempfile, urllib.request
from pathlib import Path
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings

def ask(url, method="GET", data=None):
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method)) as answer:
        return answer.headers.get("x-shade-cache")

async def main(root):
    (root / "buckets" / "b").mkdir(parents=True)
    (root / "buckets" / "b" / "k").write_bytes(b"body")
    proxy = Proxy(Settings.load(None, [
        "s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0", "origin.kind=file",
        f"origin.path={root}/buckets", f"cache.ram.path={root}/ram", "cache.ram.capacity=64 MiB",
        "cache.disk.capacity=0", f"state.path={root}/state", *sys.argv[1:]]))
    await proxy.start()
    s3, control = f"http://{proxy.s3_address}", f"http://{proxy.control_address}"
    seen = [await asyncio.to_thread(ask, f"{s3}/b/k") for _ in range(3)]
    seen.append(await asyncio.to_thread(ask, f"{s3}/b/new", "PUT", b"x"))
    await asyncio.to_thread(ask, f"{control}/v1/stats")
    await proxy.stop()
    return seen

with tempfile.TemporaryDirectory() as root:
    seen = asyncio.run(main(Path(root)))
loaded = [name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "google", "requests")]
print(json.dumps([seen, sorted(loaded), "shadeproxy.telemetry.otel_sdk" in sys.modules]))
"""


def test_nothing_is_loaded_when_it_is_off():
    ran = subprocess.run([sys.executable, "-c", _SERVES], capture_output=True, text=True, check=True)
    seen, loaded, has_sdk = json.loads(ran.stdout.splitlines()[-1])
    assert seen == ["origin", "ram", "ram", "bypass"]
    assert (loaded, has_sdk) == ([], False)


def settings(*changed):
    return Settings.load(None, [f"telemetry.otel.{one}" for one in changed])


async def opened(*changed):
    async with AsyncExitStack() as stack:
        return await open_tracer(settings(*changed), SystemClock(), stack)


async def test_it_is_off_by_default():
    assert await opened() is None
    assert await opened("endpoint=http://collector:4318") is None


async def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "shadeproxy.telemetry.otel_sdk", None)
    with pytest.raises(ConfigError, match=r"telemetry\.otel\.enabled .*pip install 'shadeproxy\[otel\]'"):
        await opened("enabled=true")


async def test_a_missing_secret_is_named(monkeypatch):
    monkeypatch.delenv("COLLECTOR_KEY", raising=False)
    with pytest.raises(
        ConfigError, match=r"telemetry\.otel\.headers: the environment variable COLLECTOR_KEY"
    ):
        await opened("enabled=true", "headers=env:COLLECTOR_KEY")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("endpoint=collector:4318", 'write "http://host:4318"'),
        ("endpoint=http://me:5ecret@collector", "use telemetry.otel.headers"),
        ("endpoint=https://collector?key=1", 'write "http://host:4318"'),
        ("headers=api-key=5ecret", 'write "env:NAME" or "file:PATH"'),
    ],
)
def test_a_wrong_setting_says_what_to_write(value, said):
    with pytest.raises(ConfigError) as refused:
        settings(value)
    assert said in str(refused.value)
    assert "5ecret" not in str(refused.value)


def test_an_endpoint_may_have_a_path():
    assert settings("endpoint=https://otlp.example.org/otlp/").telemetry.otel.endpoint.endswith("/otlp")


def test_the_configuration_shows_the_reference_and_not_the_secret(monkeypatch):
    monkeypatch.setenv("COLLECTOR_KEY", "api-key=5ecret")
    shown = settings("headers=env:COLLECTOR_KEY").masked()["telemetry"]["otel"]
    assert shown == {"enabled": False, "endpoint": "", "headers": "env:COLLECTOR_KEY"}


def test_a_change_waits_for_a_restart():
    merged, waiting = merge(settings(), settings("enabled=true", "endpoint=http://collector:4318"))
    assert not merged.telemetry.otel.enabled
    assert waiting == ["telemetry.otel.enabled", "telemetry.otel.endpoint"]


async def test_a_proxy_has_spans_of_misses_uploads_and_calls(tmp_path, monkeypatch):
    recorded = record_spans(monkeypatch)
    async with set_up(tmp_path, by_callbacks=True, **ON) as setup:
        await setup.warm()
        setup.server.scripts["/b/k"] = [[ok(SMALL)]]
        recorded.clear()
        client = await setup.client()
        client.ask("/b/k", f"traceparent: {PARENT}")
        await client.answer()
        for _ in range(3):
            assert (await client.get("/b/k")).field(b"x-shade-cache") == b"ram"
        client.ask("/b/k", method="PUT", body=b"new")
        await client.answer()
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://{setup.proxy.control_address}/v1/stats")
            await session.get(f"http://{setup.proxy.control_address}/healthz")
        await setup.settle()
    by_name = {span.name: span for span in recorded.all()}
    names = ("origin GET", "GetObject", "origin PUT", "PutObject", "GET /v1/stats")
    assert len(by_name) == len(recorded.all()) == len(names)
    get, miss, put, upload, call = (by_name[name] for name in names)
    assert get.parent.span_id == miss.context.span_id
    assert put.parent.span_id == upload.context.span_id
    assert f"{miss.context.trace_id:032x}" == f"{get.context.trace_id:032x}" == PARENT[3:35]
    assert f"{miss.parent.span_id:016x}" == PARENT[36:52]
    assert (upload.parent, call.parent) == (None, None)
    assert get.start_time >= miss.start_time


@pytest.fixture
def collector():
    with collecting() as collector:
        yield collector


async def test_a_collector_gets_the_spans_over_http_with_its_header(tmp_path, monkeypatch, collector):
    monkeypatch.setenv("COLLECTOR_KEY", "api-key=5ecret")
    on = ON | {"telemetry__otel__endpoint": collector.url, "telemetry__otel__headers": "env:COLLECTOR_KEY"}
    async with set_up(tmp_path, by_callbacks=True, **on) as setup:
        await setup.warm()
    assert {(batch.path, batch.fields["api-key"]) for batch in collector.batches} == {
        ("/v1/traces", "5ecret")
    }
    assert "GetObject" in {span.name for span in collector.spans}


async def test_the_standard_variables_name_collector_and_header(tmp_path, monkeypatch, collector):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=a")
    async with set_up(tmp_path, by_callbacks=True, **ON) as setup:
        await setup.warm()
    assert {(batch.path, batch.fields["tenant"]) for batch in collector.batches} == {("/v1/traces", "a")}


@pytest.mark.parametrize("status", [400, 503, None])
async def test_a_collector_that_fails_fails_no_request_and_warns_once(
    tmp_path, monkeypatch, collector, status
):
    from shadeproxy.telemetry import otel_sdk

    monkeypatch.setattr(otel_sdk, "_LAST_SPANS_S", 0.2)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    collector.status = status
    # Without a status no collector runs: no process listens on port 9 of this machine.
    on = ON | {"telemetry__otel__endpoint": collector.url if status else "http://127.0.0.1:9"}
    with structlog.testing.capture_logs() as lines:
        async with set_up(tmp_path, by_callbacks=True, **on) as setup:
            await setup.warm()
            setup.server.scripts |= {f"/b/{n}": [[ok(SMALL)]] for n in range(20)}
            client = await setup.client()
            for n in range(20):
                assert (await client.get(f"/b/{n}")).status == 200
                await asyncio.sleep(0.002)
            await setup.settle()
    assert len([line for line in lines if line["event"] == "otel warning"]) == 1
    assert bool(collector.batches) is (status is not None)
