"""More clients connect than the limit allows: the first are served, and the rest get an error.

When a client leaves, another one may connect.
"""

import asyncio
from xml.etree.ElementTree import fromstring

import pytest

from shadeproxy.api.s3 import S3Server
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.core.clock import SystemClock
from shadeproxy.telemetry.requests import RequestCounts
from tests.support.s3.answer import split, until

GET = b"GET /b/seed HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
async def counts():
    return RequestCounts()


@pytest.fixture
async def limiter(counts):
    return ConnectionLimiter(2, clock=SystemClock(), counts=counts)


@pytest.fixture
async def port(proxy, limiter):
    """Yield the port of a listener of ``proxy`` that accepts few connections."""
    listener = S3Server(proxy.handler, proxy.lane, limiter=limiter)
    server = await asyncio.get_running_loop().create_server(listener, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await listener.shutdown(1.0)
    await until(lambda: limiter.inside == 0)


async def ask(reader, writer, data=GET):
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    status, fields, _ = split(head)
    return status, fields, await reader.readexactly(int(fields["content-length"]))


async def test_the_ones_too_many_are_told_to_come_back_and_the_others_go_on(port, limiter, counts):
    inside = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    assert [(await ask(*one))[2] for one in inside] == [b"seed", b"seed"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    status, fields, body = await ask(reader, writer)
    assert (status, fields["retry-after"], fields["connection"]) == (503, "1", "close")
    assert fields["x-amz-request-id"]
    assert fields["x-shade-cache"] == "bypass"
    found = fromstring(body)
    assert (found.findtext("Code"), limiter.refused) == ("SlowDown", 1)
    assert counts.as_json()["by_operation"] == {"Invalid": {"statuses": {"503": 1}, "received_bytes": 0}}
    assert found.findtext("Message") == "all 2 connections that clients may have are open; retry later"
    assert await reader.read() == b"", "the connection ends after the answer"
    writer.close()
    assert [(await ask(*one))[2] for one in inside] == [b"seed", b"seed"]
    inside.pop()[1].close()
    await until(lambda: limiter.inside == 1)
    again = await asyncio.open_connection("127.0.0.1", port)
    assert (await ask(*again))[2] == b"seed"
    for _, open_writer in (*inside, again):
        open_writer.close()


async def test_nothing_that_was_refused_reaches_the_handler(port, proxy):
    inside = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    assert [(await ask(*one))[0] for one in inside] == [200, 200]
    before = len(proxy.seen.requests)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    status, _, _ = await ask(
        reader, writer, b"PUT /b/new HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
    )
    assert status == 503
    assert await reader.read() == b""
    assert len(proxy.seen.requests) == before
    assert "new" not in proxy.origin.buckets["b"]
    for _, open_writer in (*inside, (reader, writer)):
        open_writer.close()


async def test_a_flood_of_them_is_closed_without_waiting(port, limiter):
    """In a flood of refused connections, most are closed at once.

    A refused connection that lingers keeps a descriptor for a second, so only a few may linger.
    """
    inside = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    await until(lambda: limiter.inside == 2)
    flood = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
    answers = await asyncio.gather(*(reader.read() for reader, _ in flood))
    assert all(answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") for answer in answers)
    assert (limiter.inside, limiter.refused) == (2, 80)
    for _, writer in (*inside, *flood):
        writer.close()


FIELDS = b"".join(b"x-flood-%d: %s\r\n" % (number, b"x" * 200) for number in range(300))


@pytest.mark.parametrize(
    "before",
    [
        b"GET /b/seed HTTP/1.1\r\nHost: h\r\n",
        b"GET /b/seed HTTP/1.1\r\nHost: h\r\nX: \xc3\xa9\r\n\r\nGET / HTTP/1.1\r\n",
    ],
)
async def test_a_head_without_end_is_refused_and_nothing_more_is_taken(proxy, before):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(before)
    while proxy.seen.requests == [] and b"X: " in before:
        await asyncio.sleep(0.01)
    head = asyncio.create_task(reader.readuntil(b"HTTP/1.1 400 Bad Request\r\n"))
    (connection,) = proxy.server.connections
    async with asyncio.timeout(60):
        while not head.done():
            writer.write(FIELDS)
            await asyncio.sleep(0.01)
    await head
    answer = await reader.readuntil(b"</Error>")
    assert b"InvalidRequest" in answer
    assert not connection._held
    assert await pushed(writer, 64 << 20) < 64 << 20


async def pushed(writer, most_bytes):
    """Return how many of ``most_bytes`` bytes the proxy takes before it ends the connection."""
    sent, block = 0, FIELDS * 16
    try:
        async with asyncio.timeout(60):
            while sent < most_bytes:
                writer.write(block)
                await writer.drain()
                sent += len(block)
    except ConnectionError:
        pass
    writer.close()
    return sent
