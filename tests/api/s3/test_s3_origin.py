"""Uploads through the product's S3 origin to servers that answer before they have the whole body."""

import asyncio
import base64
import random
import zlib
from contextlib import asynccontextmanager

import pytest

from shadeproxy.api.s3.forward import MAX_TRAILED_BYTES
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import SHARED
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.s3 import S3Origin
from shadeproxy_bench.reliability.fuzz.forms import aws_chunked
from shadeproxy_bench.reliability.fuzz.http import Request
from shadeproxy_bench.reliability.fuzz.target import FixedClock
from tests.support.s3.clients import ACCESS, SECRET

REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\nConnection: close\r\n\r\n<Error/>"


class Upstream:
    """A server that answers when it has the head of a request. It keeps the bytes of the body that it
    receives.
    """

    def __init__(self, answer):
        self.answer = answer
        self.heads = []
        self.bodies = []
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def serve(self, reader, writer):
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            self.began.set()
            if self.answer is not None:
                writer.write(self.answer)
                await writer.drain()
            self.bodies.append(await reader.read())
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.ended.set()


@asynccontextmanager
async def upstream_of(answer):
    upstream = Upstream(answer)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    try:
        yield upstream, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def origin_at(url):
    credentials = {SHARED: StaticCredentials(Credentials("ak", "sk"))}
    origin = S3Origin(url, credentials=credentials, region="us-east-1", addressing="path")
    try:
        yield origin
    finally:
        await origin.aclose()


@pytest.fixture
async def refusing(make_proxy):
    async with upstream_of(REFUSAL) as (upstream, url), origin_at(url) as origin:
        yield await make_proxy(origin=origin), upstream


@pytest.fixture
async def silent(make_proxy):
    async with upstream_of(None) as (upstream, url), origin_at(url) as origin:
        yield await make_proxy(origin=origin), upstream


async def test_a_refusal_before_the_body_has_come_reaches_the_client(refusing):
    proxy, _ = refusing
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
    answer = await reader.readuntil(b"<Error/>")
    assert answer.startswith(b"HTTP/1.1 403")
    writer.close()


async def test_a_body_that_breaks_its_promise_never_arrives_whole(silent):
    proxy, upstream = silent
    head = f"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\nx-amz-content-sha256: {'0' * 64}\r\n"
    answer = await proxy.raw(f"{head}Connection: close\r\n\r\n".encode() + b"x" * 300_000)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"<Code>XAmzContentSHA256Mismatch</Code>" in answer
    if upstream.began.is_set():
        await upstream.ended.wait()
    assert all(b"Content-Length: 300000" in head for head in upstream.heads)
    assert sum(map(len, upstream.bodies)) < 300_000


async def test_a_client_that_goes_away_ends_the_upload_at_the_origin(silent):
    proxy, upstream = silent
    ended = proxy.seen.wait_for(1)
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n" + b"x" * 200_000)
    await upstream.began.wait()
    writer.close()
    await ended
    await upstream.ended.wait()
    assert sum(map(len, upstream.bodies)) < 300_000


async def test_a_refusal_that_takes_its_connection_away_while_the_body_comes_reaches_the_client(make_proxy):
    # The origin answers while the task that sends the body waits for the client. The end of this task must
    # not become an error.
    async with upstream_of(REFUSAL) as (_, url), origin_at(url) as origin:
        proxy = await make_proxy(origin=origin)
        for _ in range(20):
            ended = proxy.seen.wait_for(len(proxy.seen.requests) + 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 10_000)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 403")
            await ended
            writer.close()
        assert [event for event, _ in proxy.log.events if event == "s3_request_failed"] == []
        assert {request["status"] for request in proxy.seen.requests} == {403}


async def test_a_client_that_goes_away_is_counted_as_gone_and_not_as_a_fault(silent):
    proxy, upstream = silent
    ended = proxy.seen.wait_for(1)
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n" + b"x" * 1000)
    await upstream.began.wait()
    writer.close()
    await ended
    assert [request["status"] for request in proxy.seen.requests] == [499]
    assert [event for event, _ in proxy.log.events if event == "s3_request_failed"] == []


@pytest.mark.parametrize("right", [True, False])
async def test_a_checksum_behind_more_than_is_held_reaches_the_origin_with_the_body_or_not_at_all(
    make_proxy, right
):
    keys = Credentials(ACCESS, SECRET)
    inner = await make_proxy(anonymous=False, clock=FixedClock())
    inner.origin.put("b", "seed", b"seed")
    origin = S3Origin(
        inner.url,
        credentials={SHARED: StaticCredentials(keys)},
        addressing="path",
        trailing_checksums="always",
        clock=FixedClock(),
    )
    proxy = await make_proxy(origin=origin, clock=FixedClock(), trailed_budget_bytes=1 << 30)
    body = random.Random(1).randbytes(MAX_TRAILED_BYTES + 1)
    request = Request(b"PUT", b"/b/k", fields=[(b"Host", b"h"), (b"Connection", b"close")])
    request.add("x-amz-decoded-content-length", str(len(body)))
    request.add("x-amz-trailer", "x-amz-checksum-crc32")
    request.add("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    request.wire = aws_chunked([body], None, "", trailing=True)
    if not right:
        request.wire = request.wire.replace(body[-9:], b"damaged!!")
    request.add("Content-Length", str(len(request.wire)))
    answer = await proxy.raw(request.render())
    await origin.aclose()
    if right:
        checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"\r\nx-amz-checksum-crc32: " + checksum in answer
        assert inner.origin.buckets["b"]["k"].body == body
    else:
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"x-amz-checksum-crc32 trailer is invalid" in answer
        assert set(inner.origin.buckets["b"]) == {"seed"}


async def test_a_204_has_no_length_although_the_origin_sends_one(make_proxy):
    answer = (
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nx-amz-version-id: 1\r\nConnection: close\r\n\r\n"
    )
    async with upstream_of(answer) as (_, url), origin_at(url) as origin:
        proxy = await make_proxy(origin=origin)
        got = (await proxy.get("/b/k", method="DELETE")).lower()
    assert got.startswith(b"http/1.1 204")
    assert b"x-amz-version-id: 1" in got
    assert b"content-length" not in got
