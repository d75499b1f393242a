"""Bytes on sockets: requests that are not HTTP, requests that end early, and bytes behind a request."""

import asyncio
import gzip
from contextlib import asynccontextmanager
from dataclasses import replace
from xml.etree.ElementTree import fromstring

import pytest

from shadeproxy.api.s3 import CLIENT_CLOSED, pending_forward
from shadeproxy.core.errors import BodyCutShort, OriginThrottled, OriginUnavailable
from shadeproxy.origin.base import ForwardResponse, once
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from tests.support.s3.answer import split


def lines(*texts, body=b""):
    return "\r\n".join([*texts, "", ""]).encode() + body


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nHost: h\r\nBad Name: x\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 40000 + b"\r\n\r\n",
        b"GET /" + b"x" * 40000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        # Two parsers could disagree on where these requests end.
        b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\nabc",
        b"PUT /b/k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\nabc",
        b"GET /b/k HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nHost: h\r\nX-Shade-Job: ;\r\n\r\n",
        b"GET /b/%ff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /b/\xff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    ],
)
async def test_what_is_not_a_request_gets_an_s3_error(proxy, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    status, fields, _ = split(head)
    body = await reader.readexactly(int(fields["content-length"]))
    writer.close()
    assert status in {400, 501}
    assert fromstring(body).findtext("Code") in {"InvalidRequest", "NotImplemented"}
    assert fields["x-amz-request-id"]
    assert fields["x-shade-cache"] == "bypass"
    assert "k" not in proxy.origin.buckets["b"]


async def test_a_head_has_no_body_whatever_the_answer(proxy):
    for target, expected in (("/b/seed", 200), ("/b/none", 404), ("/none/k?acl", 501)):
        status, fields, body = split(await proxy.get(target, method="HEAD"))
        assert (status, body) == (expected, b"")
        assert fields["x-amz-request-id"]
    assert split(await proxy.get("/b/seed", method="HEAD"))[1]["content-length"] == "4"


async def test_pipelined_requests_are_answered_in_order(proxy):
    proxy.origin.put("b", "two", b"2" * 5000)
    get = "GET /b/{} HTTP/1.1\r\nHost: h\r\n{}\r\n"
    data = (
        get.format("seed", "")
        + get.format("seed", "If-None-Match: *\r\n")
        + get.format("none", "")
        + get.format("two", "Range: bytes=4990-\r\n")
        + get.format("seed", "Connection: close\r\n")
    )
    answer = await proxy.raw(data.encode())
    statuses = [int(part.split(b" ", 1)[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 304, 404, 206, 200]
    assert answer.endswith(b"\r\n\r\nseed")
    assert [one["status"] for one in proxy.seen.requests] == statuses


async def test_http_1_0_is_served_and_closed(proxy):
    status, fields, body = split(await proxy.raw(b"GET /b/seed HTTP/1.0\r\nHost: h\r\n\r\n"))
    assert (status, body, fields["connection"]) == (200, b"seed", "close")
    status, fields, body = split(await proxy.raw(b"GET /b HTTP/1.0\r\nHost: h\r\n\r\n"))
    assert status == 200
    assert body.endswith(b"</ListBucketResult>")
    assert "transfer-encoding" not in fields


async def test_headers_of_a_hit_are_those_of_the_origin_and_ours(proxy):
    headers = (("Content-Type", "text/x"), ("X-Amz-Meta-Name", "välue"), ("Content-Encoding", "gzip"))
    packed = gzip.compress(b"x")
    proxy.origin.put("b", "k", packed, headers)
    cold, warm = [split(await proxy.get("/b/k", "Accept-Encoding: identity")) for _ in range(2)]
    own = {"x-amz-request-id", "x-shade-cache", "date"}
    assert {n: v for n, v in cold[1].items() if n not in own} == {
        n: v for n, v in warm[1].items() if n not in own
    }
    assert (cold[1]["x-shade-cache"], warm[1]["x-shade-cache"]) == ("origin", "ram")
    assert cold[2] == warm[2] == packed
    assert warm[1].keys() == {
        *("connection", "content-type", "x-amz-meta-name", "content-encoding", "last-modified", "etag"),
        *("accept-ranges", "content-length", "x-amz-id-2", "x-amz-request-id", "date", "x-shade-cache"),
    }
    assert warm[1]["x-amz-meta-name"] == "välue"


async def test_100_continue_comes_after_the_signature_is_accepted(proxy, make_proxy):
    head = (
        "PUT /b/new HTTP/1.1",
        "Host: h",
        "Content-Length: 4",
        "Expect: 100-continue",
        "Connection: close",
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(lines(*head))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    assert split(await reader.read())[0] == 200
    writer.close()
    assert proxy.origin.buckets["b"]["new"].body == b"body"

    closed = await make_proxy(anonymous=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", closed.port)
    writer.write(lines(*head[:-1]))
    status, fields, _ = split(await reader.readuntil(b"\r\n\r\n"))
    writer.close()
    assert (status, fields["connection"]) == (403, "close")


@pytest.mark.parametrize("line", ["PUT /b/new", "DELETE /b/new", "GET /b/seed", "GET /b/none"])
async def test_an_answer_in_place_of_100_ends_the_connection(proxy, monkeypatch, line):
    """botocore then sends no body, and uses the connection for its next request."""

    @asynccontextmanager
    async def refuse(_request):
        yield ForwardResponse(404, (("Content-Length", "0"),), once(b""))

    monkeypatch.setattr(proxy.origin, "forward", refuse)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(lines(f"{line} HTTP/1.1", "Host: h", "Content-Length: 4", "Expect: 100-continue"))
    status, fields, _ = split(await reader.readuntil(b"\r\n\r\n"))
    assert (status, fields["connection"]) == (200 if line == "GET /b/seed" else 404, "close")
    writer.write(lines("GET /b/seed HTTP/1.1", "Host: h"))
    assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), 10)
    writer.close()


async def test_a_refused_empty_upload_that_awaits_100_leaves_the_connection_usable(make_proxy):
    closed = await make_proxy(anonymous=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", closed.port)
    for _ in range(3):
        writer.write(lines("PUT /b/new HTTP/1.1", "Host: h", "Content-Length: 0", "Expect: 100-continue"))
        status, fields, _ = split(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5))
        assert status == 403
        assert "connection" not in fields
        await reader.readexactly(int(fields["content-length"]))
    writer.close()
    assert not closed.origin.buckets


@pytest.mark.parametrize(
    "head",
    [
        ("Content-Length: 100",),
        ("Content-Length: 100", "Expect: 100-continue"),
        ("Transfer-Encoding: chunked", "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
         "x-amz-decoded-content-length: 100"),
    ],
)  # fmt: skip
async def test_an_upload_that_is_cut_stores_nothing(proxy, head):
    ended = proxy.seen.wait_for(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(lines("PUT /b/seed HTTP/1.1", "Host: h", *head, body=b"5\r\nhello\r\n"))
    if "Expect: 100-continue" in head:
        await reader.readuntil(b"\r\n\r\n")
    else:
        await writer.drain()
    writer.close()
    await ended
    assert proxy.origin.buckets["b"]["seed"].body == b"seed"
    assert proxy.seen.requests[0]["status"] == CLIENT_CLOSED


async def test_a_gzip_upload_is_stored_as_it_is(proxy):
    data = gzip.compress(b"x" * 1000)
    await proxy.raw(
        lines(
            *("PUT /b/z HTTP/1.1", "Host: h", "Content-Encoding: gzip", "Connection: close"),
            f"Content-Length: {len(data)}",
            body=data,
        )
    )
    stored = proxy.origin.buckets["b"]["z"]
    assert stored.body == data
    assert stored.meta.header("Content-Encoding") == "gzip"


class CuttingOrigin(MemoryOrigin):
    """Ends every body after half of its first piece, like a connection that breaks."""

    @asynccontextmanager
    async def open(self, ref, **kwargs):
        async with super().open(ref, **kwargs) as read:

            async def half():
                async for chunk in read.chunks:
                    yield chunk[: len(chunk) // 2]
                    raise BodyCutShort("cut")

            yield replace(read, chunks=half())


async def test_a_body_cut_by_the_origin_resets_the_client_and_is_not_cached(make_proxy):
    proxy = await make_proxy(origin=CuttingOrigin(chunk_bytes=3000))
    proxy.origin.put("b", "k", b"x" * 3000)
    for _ in range(2):
        answer = await proxy.get("/b/k")
        assert answer.endswith(b"<reset>")
        assert answer.count(b"x" * 1600) == 0
        assert b"content-length: 3000" in answer.lower() or answer == b"<reset>"
    assert proxy.origin.gets == 2


class FailingOrigin(MemoryOrigin):
    """Sends the metadata, and then no byte of the body."""

    @asynccontextmanager
    async def open(self, ref, **kwargs):
        async with super().open(ref, **kwargs) as read:

            async def nothing():
                raise BodyCutShort("cut")
                yield

            yield replace(read, chunks=nothing())


async def test_a_body_that_fails_before_its_first_byte_is_still_an_error_answer(make_proxy):
    proxy = await make_proxy(origin=FailingOrigin())
    proxy.origin.put("b", "k", b"x" * 3000)
    status, fields, body = split(await proxy.get("/b/k"))
    assert (status, fields["retry-after"]) == (503, "1")
    assert fromstring(body).findtext("Code") == "ServiceUnavailable"


class DownOrigin(MemoryOrigin):
    error: Exception = OriginUnavailable("the origin does not answer")

    @asynccontextmanager
    async def open(self, *_, **__):
        raise self.error
        yield


@pytest.mark.parametrize(
    ("error", "code"),
    [(OriginUnavailable("down"), "ServiceUnavailable"), (OriginThrottled("slow"), "SlowDown")],
)
async def test_an_origin_that_is_down_is_a_503_with_retry_after(make_proxy, error, code):
    proxy = await make_proxy(origin=DownOrigin())
    proxy.origin.error = error
    status, fields, body = split(await proxy.get("/b/k"))
    assert (status, fields["retry-after"]) == (503, "1")
    assert fromstring(body).findtext("Code") == code


async def test_a_client_that_hangs_up_leaves_nothing_behind(make_proxy):
    proxy = await make_proxy()
    proxy.origin.put("b", "k", b"x" * 3000)
    gate = proxy.origin.gate = Barrier()
    ended = proxy.seen.wait_for(1)
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(lines("GET /b/k HTTP/1.1", "Host: h"))
    await gate.reached.wait()
    writer.close()
    await ended
    assert proxy.seen.requests[0]["status"] == CLIENT_CLOSED
    gate.release()  # Let the read end: the fixture checks that the engine is quiescent.


async def test_an_unforeseen_exception_is_a_500_and_the_next_request_is_served(make_proxy):
    class Broken:
        def __init__(self, engine):
            self.engine = engine

        def __getattr__(self, name):
            return getattr(self.engine, name)

        def cacheable(self, ref):
            if ref.key == "bad":
                raise ZeroDivisionError("secret detail")
            return True

    proxy = await make_proxy(engine_of=Broken)
    proxy.origin.put("b", "k", b"body")
    data = b"GET /b/bad HTTP/1.1\r\nHost: h\r\n\r\nGET /b/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    answer = await proxy.raw(data)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"<Code>InternalError</Code>" in answer
    assert b"secret detail" not in answer
    assert answer.endswith(b"body")
    assert [event for event, _ in proxy.log.events if event == "s3_request_failed"]


async def test_the_observer_and_the_log_see_each_request_without_secrets(proxy):
    await proxy.get("/b/seed?X-Amz-Nothing=1", "x-shade-job: resnet;epoch=1;rank=2")
    seen = proxy.seen.requests[0]
    assert (seen["operation"], seen["status"], seen["source"], seen["bytes_sent"]) == (
        *("GetObject", 200, "origin", 4),
    )
    assert (seen["job"].job, seen["job"].epoch, seen["job"].rank) == ("resnet", 1, 2)
    assert seen["duration_s"] >= 0
    url = proxy.boto().generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "seed"})
    await proxy.get(url.removeprefix(proxy.url))
    secret = url.partition("Signature=")[2].partition("&")[0]
    assert len(secret) > 10
    assert secret not in repr(proxy.log.events)


class Taking(asyncio.Transport):
    """A transport that keeps the bytes written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data):
        self.written += bytes(data)

    def is_closing(self):
        return False

    def can_write_eof(self):
        return False

    def close(self):
        self.closed = True

    def get_write_buffer_size(self):
        return 0


async def test_the_body_of_an_upload_that_comes_while_the_proxy_ends_is_no_head(proxy):
    """The connection just ends, so that the client tries again. After the former 400 it did not."""
    connection, client = proxy.server(), Taking()
    connection.connection_made(client)
    ending = asyncio.create_task(connection.shutdown(1.0))
    while not connection._ending:
        await asyncio.sleep(0)
    connection.data_received(lines("PUT /b/k HTTP/1.1", "Host: h", "Content-Length: 200000") + b"x" * 1000)
    for _ in range(20):
        connection.data_received(b"x" * 10_000)
    assert client.written == b""
    await ending
    connection.connection_lost(None)


@pytest.mark.parametrize("steps", range(6))
async def test_an_upload_that_has_just_begun_is_completed_when_the_proxy_ends(proxy, steps):
    """The upload is completed, however many turns of the loop lie between its head and the end."""
    connection, client, size = proxy.server(), Taking(), 200_000
    connection.connection_made(client)
    await asyncio.sleep(0.01)
    connection.data_received(lines("PUT /b/k HTTP/1.1", "Host: h", f"Content-Length: {size}") + b"x" * 1000)
    for _ in range(steps):
        await asyncio.sleep(0)
    ending = asyncio.create_task(connection.shutdown(5.0))
    await asyncio.sleep(0.05)
    connection.data_received(b"x" * (size - 1000))
    await ending
    assert client.written.startswith(b"HTTP/1.1 200 ")
    assert len(proxy.origin.buckets["b"]["k"].body) == size
    connection.connection_lost(None)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_body_that_nobody_reads_and_that_does_not_come_ends_the_connection(
    proxy, method, monkeypatch
):
    monkeypatch.setattr(pending_forward, "LINGER_S", 0.05)
    connection, client = proxy.server(), Taking()
    connection.connection_made(client)
    await asyncio.sleep(0.01)
    connection.data_received(lines(f"{method} /b?location HTTP/1.1", "Host: h", "Content-Length: 9") + b"x")
    async with asyncio.timeout(5):
        while not client.closed:
            await asyncio.sleep(0.01)
    assert client.written.startswith(b"HTTP/1.1 ")
    connection.connection_lost(None)


async def test_an_http_1_0_client_may_keep_its_connection(proxy):
    get = b"GET /b/seed HTTP/1.0\r\nHost: h\r\n"
    answer = await proxy.raw(get + b"Connection: keep-alive\r\n\r\n" + get + b"\r\n")
    first, second = answer.split(b"HTTP/1.1 200 OK")[1:]
    assert b"\r\nConnection: keep-alive\r\n" in first
    assert first.endswith(b"\r\n\r\nseed")
    assert b"\r\nConnection: close\r\n" in second


async def test_bytes_behind_the_last_request_of_an_http_1_0_client_are_no_request(proxy):
    answer = await proxy.raw(
        b"GET /b/seed HTTP/1.0\r\nHost: h\r\n\r\nDELETE /b/seed HTTP/1.1\r\nHost: h\r\n\r\n"
    )
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"\r\n\r\nseed")
    assert "seed" in proxy.origin.buckets["b"]


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-OpenSSH_9.2\r\n"]
)
async def test_a_client_of_another_protocol_is_told_so_at_once(proxy, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    async with asyncio.timeout(5):
        answer = await reader.readuntil(b"</Error>")
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"<Message>The request is not HTTP/1.1: use HTTP/1.1</Message>" in answer


async def test_an_empty_line_before_a_request_is_skipped(proxy):
    get = b"GET /b/seed HTTP/1.1\r\nHost: h\r\n"
    put = b"PUT /b/new HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nnew\r\n"
    answer = await proxy.raw(put + get + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert proxy.origin.buckets["b"]["new"].body == b"new"


async def test_a_client_that_sends_on_behind_a_refused_upload_gets_the_refusal(proxy):
    """The kernel would reset the connection if it were closed with bytes unread."""
    put = lines(
        "PUT /b/new HTTP/1.1", "Host: h", "Content-Length: 5", "x-amz-content-sha256: no", body=b"hello"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    more = lines("PUT /b/other HTTP/1.1", "Host: h", "Content-Length: 1000000", body=bytes(1_000_000))
    writer.write(put + more)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"</Error>")
    assert not {"new", "other"} & proxy.origin.buckets["b"].keys()


async def test_a_connection_that_opens_while_the_proxy_ends_is_closed_at_once(proxy):
    """Its TLS handshake may have begun before."""
    connection, client = proxy.server(), Taking()
    await proxy.server.shutdown(1.0)
    connection.connection_made(client)
    connection.data_received(lines("GET /b/seed HTTP/1.1", "Host: h"))
    assert (client.closed, client.written) == (True, b"")
    connection.connection_lost(None)
