"""The start of a proxy, with its log line, and its stop.

The stop is logged, lets open requests end, and does not take too long.
"""

import asyncio
import gc
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from structlog.testing import capture_logs

from shadeproxy.app import draining
from shadeproxy.app import proxy as module
from shadeproxy.app.persistence import Persistence
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.core.workpool import raise_if_cancelled
from shadeproxy.engine.read import access_log
from shadeproxy.hints import manifest

BODY = bytes(range(256)) * (64 << 10)  # More than the sockets' buffers hold.


@pytest.fixture
def settings(tmp_path):
    return settings_in(tmp_path)


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def settings_in(tmp_path, *more):
    bucket = tmp_path / "buckets" / "data"
    bucket.mkdir(parents=True)
    (bucket / "big").write_bytes(BODY)
    (bucket / "small").write_bytes(b"small")
    return Settings.load(
        None,
        [
            "s3.listen=127.0.0.1:0",
            "control.listen=127.0.0.1:0",
            "origin.kind=file",
            f"origin.path={tmp_path}/buckets",
            f"cache.ram.path={tmp_path}/ram",
            "cache.ram.min_free=1 MiB",
            "cache.ram.capacity=64 MiB",
            "cache.disk.capacity=0",
            f"state.path={tmp_path}/state",
            *more,
        ],
    )


@pytest.fixture
async def proxy(settings):
    proxy = Proxy(settings)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_proxies_that_were_opened_and_closed_leave_no_descriptor(tmp_path):
    settings = settings_in(tmp_path, "s3.workers=2")
    opened = []
    for _ in range(5):
        proxy = Proxy(settings)
        await proxy.start()
        await proxy.stop()
        gc.collect()
        opened.append(descriptors())
    assert opened[1:] == opened[:1] * 4, opened


class Connection:
    """A client's connection. The client reads only when a test calls a method."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> "Connection":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 10))

    async def begin(self, path: str) -> bytes:
        """Send a request, and return the head of its answer."""
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return await self.reader.readuntil(b"\r\n\r\n")

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


@pytest.fixture
async def client(proxy):
    connection = await Connection.open(proxy.s3_address)
    yield connection
    await connection.close()


async def refused(address: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        await Connection.open(address)


async def readiness(proxy: Proxy) -> tuple[int, str]:
    url = f"http://{proxy.control_address}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, (await answer.json())["status"]


@pytest.mark.parametrize(("compiled", "lane"), [(True, "compiled"), (False, "interpreted")])
async def test_when_it_is_ready_it_says_whether_the_lane_is_compiled(settings, monkeypatch, compiled, lane):
    monkeypatch.setattr(module, "COMPILED", compiled)
    proxy = Proxy(settings)
    with capture_logs() as logs:
        await proxy.start()
    await proxy.stop()
    assert [line["lane"] for line in logs if line["event"] == "ready"] == [lane]


async def test_while_it_drains_it_says_so_and_finishes_what_is_under_way(proxy, client):
    assert await readiness(proxy) == (200, "ready")
    head = await client.begin("/data/big")
    assert head.startswith(b"HTTP/1.1 200")
    stopping = asyncio.create_task(proxy.stop())
    async with asyncio.timeout(10):
        # The stop first closes the listener, long before it ends any answer.
        await asyncio.sleep(0)
        assert await readiness(proxy) == (503, "draining")
        await refused(proxy.s3_address)
        assert not stopping.done()
        assert await client.reader.readexactly(len(BODY)) == BODY
        await stopping
        await refused(proxy.control_address)


async def test_idle_connections_do_not_delay_the_end(proxy, client):
    head = await client.begin("/data/missing")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    await client.reader.readexactly(int(length.split(b":")[1]))
    async with asyncio.timeout(10):  # Far less than the limit of a drain.
        await proxy.stop()
        assert await client.reader.read() == b""


async def test_a_stalled_client_is_cut_off_once_the_limit_is_over(proxy, client, monkeypatch):
    monkeypatch.setattr(draining, "DRAIN_S", 0.05)
    await client.begin("/data/big")
    async with asyncio.timeout(10):  # aiohttp would wait twice for its own limit.
        await proxy.stop()
    assert proxy.stats.gauges["readings"]() == 0


async def test_an_upload_that_is_still_arriving_ends_well_after_a_stop(proxy, settings):
    reader, writer = await asyncio.open_connection(*proxy.s3_address.split(":"))
    writer.write(b"PUT /data/new HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8\r\n\r\nhalf")
    await asyncio.sleep(0.1)
    async with asyncio.timeout(10):  # Far less than the limit of a drain.
        stopping = asyncio.create_task(proxy.stop())
        await asyncio.sleep(0.2)
        assert not stopping.done()
        writer.write(b"half")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await stopping
    assert (Path(settings.origin.path) / "data" / "new").read_bytes() == b"halfhalf"
    writer.close()


async def test_state_is_saved_before_the_drain_ends(proxy, client, monkeypatch):
    flushed = asyncio.Event()
    flush = Persistence.flush

    async def observed(*args):
        await flush(*args)
        flushed.set()

    monkeypatch.setattr(Persistence, "flush", observed)
    await client.begin("/data/big")
    stopping = asyncio.create_task(proxy.stop())
    async with asyncio.timeout(10):
        await flushed.wait()
        assert not stopping.done()
        await client.reader.readexactly(len(BODY))
        await stopping


async def test_the_control_listener_answers_bytes_that_are_no_http_as_any_mistake(proxy):
    connection = await Connection.open(proxy.control_address)
    connection.writer.write(b"BAD\r\n\r\n")
    head = await connection.reader.readuntil(b"\r\n\r\n")
    await connection.close()
    assert b"400 Bad Request" in head
    assert b"Content-Type: application/json" in head


async def test_work_for_a_client_does_not_outlive_the_drain(settings, monkeypatch):
    """The work for a client that waits for its answer, here a manifest that takes minutes, ends with the
    drain.
    """
    begun = threading.Event()

    def digest_of(*_arguments):
        begun.set()
        while True:
            raise_if_cancelled()

    monkeypatch.setattr(manifest, "digest_of", digest_of)
    monkeypatch.setattr(module, "_CONTROL_DRAIN_S", 0.1)
    proxy = Proxy(settings)
    await proxy.start()
    async with aiohttp.ClientSession() as session:
        sent = asyncio.create_task(
            session.put(
                f"http://{proxy.control_address}/v1/datasets/d",
                data=b'{"bucket": "b", "key": "k"}\n',
                headers={"Content-Type": "application/x-ndjson"},
            )
        )
        assert await asyncio.to_thread(begun.wait, 60)
        async with asyncio.timeout(60):
            await proxy.stop()
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("control")]


async def test_an_idle_proxy_gives_up_space_that_other_files_need(proxy, monkeypatch):
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{proxy.s3_address}/data/small") as answer:
            assert await answer.read() == b"small"
        monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
        evictions = {}
        while not evictions:
            await asyncio.sleep(0.05)
            async with session.get(f"http://{proxy.control_address}/v1/stats") as answer:
                evictions = (await answer.json())["tiers"]["ram"]["evictions"]
    assert evictions == {"medium full": 1}


async def test_reads_before_a_new_run_count_for_the_run_before(settings, monkeypatch):
    """Reads that are still in the access log when a new run begins count for the run before."""
    monkeypatch.setattr(access_log, "_FLUSH_AFTER_S", 3600.0)
    proxy = Proxy(settings)
    await proxy.start()
    control, job = f"http://{proxy.control_address}/v1", {"x-shade-job": "resnet;epoch=0"}
    async with aiohttp.ClientSession() as session:

        async def begin() -> None:
            async with session.put(f"{control}/jobs/resnet?begins=0", json={"dataset": "train"}) as answer:
                assert answer.status == 200

        async def read() -> None:
            async with session.get(f"http://{proxy.s3_address}/data/small", headers=job) as answer:
                assert await answer.read() == b"small"

        async with session.put(f"{control}/datasets/train", json={"bucket": "data", "prefix": ""}) as answer:
            assert answer.status == 200
        for _ in range(2):
            await begin()
            for _ in range(3):
                await read()
        async with session.get(f"{control}/stats") as answer:
            epochs = (await answer.json())["jobs"]["resnet"]["epochs"]
    assert {name: reads["requests"] for name, reads in epochs.items()} == {"other": 3, "0": 3}
    await proxy.stop()
