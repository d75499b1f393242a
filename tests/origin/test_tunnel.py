"""An origin behind an HTTP proxy: all its connections are tunnels, and a tunnel that fails says why."""

import asyncio
import socket
import ssl

import pytest

from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.types import SHARED, ObjectRef
from shadeproxy.origin.addressing import Peer
from shadeproxy.origin.credentials import AnonymousCredentials
from shadeproxy.origin.pool import Timeouts
from shadeproxy.origin.s3 import S3Origin
from shadeproxy.origin.tunnel import TunnelFailed, open_tunnel
from tests.support.answering import answering
from tests.support.certificate import write_certificate
from tests.support.http_proxy import http_proxy

REF = ObjectRef("b", "k")
OK = 'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 2\r\n\r\nok'


async def body_from(url: str, proxy: str, *, connect_s: float = 2.0, **options: object) -> bytes:
    """Read an object at ``url`` through the HTTP proxy."""
    credentials = {SHARED: AnonymousCredentials()}
    timeouts = Timeouts(connect_s=connect_s)
    origin = S3Origin(url, credentials=credentials, http_proxy=proxy, timeouts=timeouts, **options)
    try:
        async with origin.open(REF) as reading:
            return b"".join([chunk async for chunk in reading.chunks])
    finally:
        await origin.aclose()


async def test_an_origin_is_read_through_a_tunnel_whose_end_the_http_proxy_resolves():
    async with answering(OK) as (url, asked):
        port = url.rpartition(":")[2]
        with http_proxy() as proxy:
            assert await body_from(f"http://s3.invalid:{port}", proxy.url) == b"ok"
    assert proxy.opened == [f"s3.invalid:{port}"]
    assert asked[0][0].startswith("GET /b/k HTTP/1.1\r\n")


@pytest.mark.parametrize("name", ["s3.example.org", "other.example.org"])
async def test_the_certificate_is_that_of_the_origin(tmp_path, name):
    made = write_certificate(tmp_path, hosts=["s3.example.org"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.cert, made.key)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    with http_proxy() as proxy:
        reading = body_from(f"https://{name}:{port}", proxy.url, ca_file=str(made.authority))
        if name == "s3.example.org":
            assert await reading == b"ok"
        else:
            with pytest.raises(OriginUnavailable, match="certificate was not accepted"):
                await reading
    server.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "refused to connect to s3.invalid:443: 403 Forbidden"),
        (b"HTTP/1.0 407\r\nContent-Length: 0\r\n\r\n", "refused to connect to s3.invalid:443: 407"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "is no HTTP proxy"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK", "sent more than the head of its answer"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 20_000, "sent an answer that is too long"),
        (b"HTTP/1.1 200 OK\r\n", "ended the connection without an answer"),
    ],
)
async def test_an_http_proxy_that_opens_no_tunnel_is_named_with_its_reason(answer, reason):
    with http_proxy(answer) as proxy, pytest.raises(OriginUnavailable) as raised:
        await body_from("http://s3.invalid:443", proxy.url)
    where = f"the HTTP proxy 127.0.0.1:{proxy.port}"
    assert str(raised.value).endswith(f"cannot be reached: {where} {reason}; check origin.http_proxy")


async def test_an_http_proxy_that_is_down_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TunnelFailed) as raised:
            await open_tunnel(Peer("127.0.0.1", port, False), Peer("h", 443, True))
    assert str(raised.value) == f"the HTTP proxy 127.0.0.1:{port} cannot be reached: Connection refused"


async def test_a_cancelled_tunnel_leaves_no_socket():
    """The HTTP proxy is silent. A warning about an open socket would fail this test."""
    arrived = asyncio.Event()

    async def silent(reader, writer):
        arrived.set()
        await reader.read()
        assert await reader.read() == b""
        writer.close()
        arrived.clear()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opening = asyncio.create_task(open_tunnel(Peer("127.0.0.1", port, False), Peer("h", 443, True)))
    await asyncio.wait_for(arrived.wait(), 5)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    while arrived.is_set():
        await asyncio.sleep(0.01)
    server.close()


async def test_an_http_proxy_that_is_silent_is_named():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(OriginUnavailable) as raised:
        await body_from("http://s3.invalid:443", f"http://127.0.0.1:{port}", connect_s=0.1)
    reason = f"no connection in time through the HTTP proxy 127.0.0.1:{port}; check origin.http_proxy"
    assert str(raised.value).endswith(reason)
    server.close()


async def test_a_name_that_is_not_ascii_is_refused_with_its_reason():
    with http_proxy() as proxy, pytest.raises(OriginUnavailable, match="write the name in its ASCII form"):
        await body_from("http://b\u00fccher.example:80", proxy.url)
