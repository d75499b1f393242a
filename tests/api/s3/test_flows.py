"""Hits and misses take the steps that docs/architecture.md lists."""

import asyncio
import re

from shadeproxy.app.proxy import Proxy
from tests.support.architecture import flow
from tests.support.calls import recorded, steps
from tests.support.frame_counts import Origin, get, settings


async def taken(proxy, wire, key):
    """Send one GET. Return the calls until the access log is flushed and the flight has ended."""
    reader, writer = wire
    with recorded() as calls:
        writer.write(f"GET /b/{key} HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
        proxy.engine.access_log.flush()
        while not proxy.engine.idle:
            await asyncio.sleep(0.01)
    return steps(calls)


def in_order(wanted, calls):
    """Return those steps of ``wanted`` that are missing from ``calls``, or come before an earlier step."""
    left, position = [], 0
    for step in wanted:
        found = [calls.index(call, position) if call in calls[position:] else None for call in step.calls]
        if None in found:
            left.append(step)
        else:
            position = min(found)
    return left


async def test_a_miss_and_its_hits_take_the_steps_of_the_page(make_proxy):
    proxy = await make_proxy()
    proxy.origin.put("b", "k", b"x" * 1000)
    wire = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        missed, first, again, known = [await taken(proxy, wire, "k") for _ in range(4)]
    finally:
        wire[1].close()
    (wanted,) = flow("A miss that has to wait")
    # The origin of this test is in memory, so steps of origin/ are left out. The other steps have no fixed
    # order, because the page is filled while its reader is served.
    assert [step for step in wanted if "/origin/" not in step.file and not step.calls <= {*missed}] == []
    by_the_page, by_the_first = flow("A hit")
    assert in_order(by_the_first, first) == []
    assert in_order(by_the_page, again) == []
    assert in_order(by_the_page, known) == []


async def test_a_miss_of_a_known_client_takes_no_task(tmp_path, monkeypatch):
    monkeypatch.setenv("ORIGIN_KEY", "key")
    monkeypatch.setenv("ORIGIN_SECRET", "secret")
    server = await asyncio.get_running_loop().create_server(Origin, "127.0.0.1", 0)
    proxy = Proxy(settings(tmp_path, server.sockets[0].getsockname()[1]))
    await proxy.start()
    host, _, port = proxy.s3_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for key in ("missed/0001", "missed/0002"):  # The first GET opens the connection.
            with recorded() as calls:
                writer.write(get(f"/b/{key}"))
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
                await asyncio.sleep(0.05)
    finally:
        writer.close()
        await proxy.stop()
        server.close()
    found = steps(calls)
    (wanted,) = flow("A miss")
    assert [step for step in wanted if not step.calls <= {*found}] == []
    assert ("shadeproxy/api/s3/handler.py", "S3Handler.serve_read") not in found
