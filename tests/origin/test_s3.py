"""S3Origin against servers that misbehave: no wrong bytes, clear errors, and no request with effects is sent
twice.
"""

import asyncio
import socket
from contextlib import suppress

import pytest

from shadeproxy.core.errors import (
    BodyCutShort,
    InvalidRequest,
    NotSupported,
    ObjectChanged,
    OriginAnswer,
    OriginThrottled,
    OriginUnavailable,
)
from shadeproxy.core.types import SHARED, ObjectRef, Span, Upstream
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.credentials import AnonymousCredentials, ChainCredentials
from shadeproxy.origin.pool import Timeouts
from shadeproxy.origin.s3 import S3Origin
from shadeproxy.origin.s3answers import retry_after
from tests.support.answering import error
from tests.support.clock import ManualClock

REF = ObjectRef("bucket", "key")
OK = 'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n0123456789'


class RawServer:
    """A server that answers each request with the next canned answer, and records the requests."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self._tasks: set[asyncio.Task] = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                answer = self.answers.pop(0)
                if "100-body" in head.decode("latin-1"):
                    await reader.readexactly(3)
                writer.write(answer.encode())
                await writer.drain()
                if "Content-Length" not in answer or answer.endswith("CUT"):
                    return
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@pytest.fixture
def against(new_s3_origin):
    """Return a function that runs ``check(origin)`` against canned answers. It returns the requests that the
    server got.
    """

    async def run(check, *answers, **options):
        async with RawServer(*answers) as server:
            origin = new_s3_origin(server.endpoint, **options)
            try:
                await check(origin)
            finally:
                await origin.aclose()
            return [request.decode("latin-1") for request in server.requests]

    return run


def read(span=None, *, if_match=None, ref=REF):
    async def check(origin):
        async with origin.open(ref, span=span, if_match=if_match) as reading:
            check.meta, check.span = reading.meta, reading.span
            check.body = b"".join([chunk async for chunk in reading.chunks])

    return check


async def test_an_origin_that_ignores_ranges_gives_the_slice(against):
    check = read(Span(3, 6))
    await against(check, OK)
    assert (check.body, check.span, check.meta.size) == (b"345", Span(3, 6), 10)


async def test_an_origin_that_ignores_ranges_still_says_416(against):
    with pytest.raises(OriginAnswer) as raised:
        await against(read(Span(10, 12)), OK)
    assert (raised.value.status, raised.value.code) == (416, "InvalidRange")


@pytest.mark.parametrize("content_range", ["bytes 0-2/10", "bytes 3-4/10", "bytes 3-5", "bytes */10", ""])
async def test_another_range_than_asked_is_an_error(against, content_range):
    answer = f'HTTP/1.1 206 P\r\nETag: "e"\r\nContent-Range: {content_range}\r\nContent-Length: 3\r\n\r\n345'
    with pytest.raises(OriginUnavailable, match=r"range|bytes"):
        await against(read(Span(3, 6)), answer)


@pytest.mark.parametrize("content_range", ["bytes 0-2/10", "bytes 7-8/10", "bytes 7-9/*", "bytes 7-9", ""])
async def test_another_range_than_the_last_bytes_is_a_final_answer(against, content_range):
    answer = f'HTTP/1.1 206 P\r\nETag: "e"\r\nContent-Range: {content_range}\r\nContent-Length: 3\r\n\r\n789'
    with pytest.raises(OriginAnswer) as raised:
        await against(read(Span(-3, 0)), answer)
    assert raised.value.status == 501


async def test_an_origin_that_ignores_ranges_gives_the_last_bytes(against):
    check = read(Span(-3, 0))
    await against(check, OK)
    assert (check.body, check.span, check.meta.size) == (b"789", Span(7, 10), 10)


async def test_a_ranged_answer_has_no_whole_object_checksum(against):
    check = read(Span(3, 6))
    await against(
        check,
        'HTTP/1.1 206 P\r\nETag: "e"\r\nContent-Range: bytes 3-5/10\r\nx-amz-checksum-crc32: AAAA\r\n'
        "x-amz-meta-a: 1\r\nContent-Length: 3\r\n\r\n345",
    )
    assert (check.body, check.meta.size, check.meta.headers) == (b"345", 10, (("x-amz-meta-a", "1"),))


async def test_whole_reads_ask_for_checksums_and_keep_them(against):
    check = read()
    (request,) = await against(check, OK.replace("ETag", "x-amz-checksum-crc32: AAAA\r\nETag"))
    assert "x-amz-checksum-mode: ENABLED" in request
    assert "Range" not in request
    assert check.meta.header("x-amz-checksum-crc32") == "AAAA"


async def test_an_origin_that_ignores_if_match_cannot_slip_in_another_version(against):
    with pytest.raises(ObjectChanged):
        await against(read(if_match='"other"'), OK)


async def test_an_answer_that_is_none_is_refused(against):
    with pytest.raises(OriginUnavailable, match="connection failed"):
        await against(read(), "garbage\r\n\r\n")


async def test_a_body_that_ends_early_raises_after_what_came(against):
    async def check(origin):
        received = b""
        with pytest.raises(BodyCutShort):
            async with origin.open(REF) as reading:
                async for chunk in reading.chunks:
                    received += chunk
        assert received == b"01CUT"

    await against(check, 'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n01CUT')


async def test_a_body_that_stalls_raises_after_the_read_timeout(against):
    answer = 'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n01'
    with pytest.raises(BodyCutShort, match="broke off: timed out"):
        await against(read(), answer, timeouts=Timeouts(read_s=0.05))


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (error(404, "NoSuchKey"), OriginAnswer, "404 NoSuchKey: text"),
        (error(403, "SignatureDoesNotMatch"), OriginAnswer, "403 SignatureDoesNotMatch"),
        (error(301, "PermanentRedirect", "Location: http://127.0.0.1:1/\r\n"), OriginAnswer, "301 Perm"),
        (error(501, "NotImplemented"), OriginAnswer, "501"),
        (error(500, "InternalError"), OriginUnavailable, "500 InternalError"),
        (error(502), OriginUnavailable, "502"),
        (error(503, "SlowDown"), OriginThrottled, "asks to slow down"),
        (error(429), OriginThrottled, "asks to slow down"),
    ],
)
async def test_error_answers_become_the_right_error(against, answer, kind, text):
    with pytest.raises(kind, match=text) as raised:
        await against(read(), answer)
    assert type(raised.value) is kind


async def test_retry_after_is_carried(against):
    with pytest.raises(OriginThrottled) as raised:
        await against(read(), error(503, "SlowDown", "Retry-After: 7\r\n"))
    assert raised.value.retry_after_s == 7
    assert retry_after([("Retry-After", "Thu, 01 Jan 1970 00:01:00 GMT")], now_s=20) == 40
    assert retry_after([("Retry-After", "soon")], now_s=20) is None


async def test_an_entity_bomb_is_not_expanded(against):
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]><Error><Code>&a;</Code></Error>'
    with pytest.raises(OriginAnswer, match=r"^403 $"):
        await against(read(), f"HTTP/1.1 403 X\r\nContent-Length: {len(bomb)}\r\n\r\n{bomb}")


async def test_what_is_sent_is_what_was_asked_byte_for_byte(against):
    async def check(origin):
        request = ForwardRequest(
            "GET",
            ObjectRef("bucket", "a/../b//c d"),
            "/bucket/a/../b%2F/c%20d+%e9",
            "b=%7e&a&response-content-type=x%2Fy",
            (
                ("X-Custom", "1"),
                ("x-amz-date", "old"),
                ("X-Amz-Security-Token", "client's"),
                ("Range", "bytes=0-"),
            ),
        )
        async with origin.forward(request) as response:
            assert response.headers == (("X-First", "1"), ("x-first", "2"), ("Content-Length", "0"))

    (request,) = await against(
        check, "HTTP/1.1 200 OK\r\nX-First: 1\r\nx-first: 2\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    assert request.startswith(
        "GET /bucket/a/../b%2F/c%20d+%e9?b=%7e&a&response-content-type=x%2Fy HTTP/1.1\r\n"
    )
    names = [line.partition(":")[0].lower() for line in request.splitlines()[1:] if line]
    assert sorted(names) == [
        "authorization", "host", "range", "x-amz-content-sha256", "x-amz-date", "x-custom",
    ]  # fmt: skip
    assert "client's" not in request


async def test_a_request_with_a_body_is_sent_at_most_once(against):
    async def check(origin):
        for _ in range(2):  # The second request uses a connection that the server has closed in the meantime.

            async def body():
                yield b"abc"

            request = ForwardRequest("PUT", REF, "/bucket/100-body", body=body(), content_length=3)
            try:
                async with origin.forward(request) as response:
                    assert response.status == 200
            except OriginUnavailable:
                check.failed = True

    requests = await against(
        check,
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nCUT",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    )
    assert all("Content-Length: 3" in request and "chunked" not in request for request in requests)
    assert len(requests) <= 2


@pytest.fixture
async def stalled_uploads(new_s3_origin):
    """Yield an origin with two connections for uploads and two for reads. Two uploads are under way and
    stalled.
    """

    async def answer(reader, writer):
        with suppress(asyncio.IncompleteReadError):
            if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
                writer.write(OK.encode())
            await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        timeouts = Timeouts(pool_s=0.1, connect_s=0.1)
        origin = new_s3_origin(endpoint, max_connections=2, timeouts=timeouts)
        sending = asyncio.Semaphore(0)

        async def body():
            yield b"x"
            sending.release()
            await asyncio.Event().wait()

        async def upload():
            request = ForwardRequest("PUT", REF, "/bucket/key", body=body(), content_length=100)
            async with origin.forward(request):
                pass

        uploads = [asyncio.create_task(upload()) for _ in range(2)]
        for _ in uploads:
            await sending.acquire()
        yield origin
        for task in uploads:
            task.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        await origin.aclose()


async def test_stalled_uploads_do_not_starve_reads(stalled_uploads):
    check = read()
    await check(stalled_uploads)
    assert check.body == b"0123456789"


async def test_the_wait_for_a_connection_ends(stalled_uploads):
    with pytest.raises(OriginUnavailable, match=r"no connection in time; .*raise origin\.max_connections"):
        async with stalled_uploads.forward(ForwardRequest("DELETE", REF, "/bucket/key")):
            pass


async def test_anonymous_requests_are_unsigned(against):
    async def check(origin):
        anonymous = S3Origin(origin._endpoint.url, credentials={SHARED: AnonymousCredentials()})
        async with anonymous.open(REF) as reading:
            assert [chunk async for chunk in reading.chunks] == [b"0123456789"]
        await anonymous.aclose()

    (request,) = await against(check, OK)
    assert "authorization" not in request.lower()


async def test_an_unknown_upstream_is_refused_without_a_request(against):
    async def check(origin):
        with pytest.raises(OriginAnswer, match=r"403 AccessDenied: no origin credentials .*'stranger'"):
            await origin.head(REF, upstream=Upstream("stranger"))

    assert await against(check) == []


async def test_a_header_that_is_no_text_is_the_clients_fault(against):
    async def check(origin):
        request = ForwardRequest("PUT", REF, "/bucket/key", headers=(("x-amz-meta-a", "\udcff"),))
        with pytest.raises(InvalidRequest, match="not UTF-8"):
            async with origin.forward(request):
                pass

    assert await against(check) == []


async def test_a_refused_connection_names_the_setting(new_s3_origin):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        origin = new_s3_origin(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(
            OriginUnavailable, match=r"http://127.* cannot be reached: .*; check origin\.endpoint"
        ):
            await origin.head(REF)
        await origin.aclose()


async def test_an_s3_server_of_our_own_cannot_do_everything():
    from shadeproxy.origin.memory import MemoryOrigin

    origin = MemoryOrigin(clock=ManualClock())
    origin.put("b", "k", b"")
    for query, text in (("acl=", "acl"), ("versionId=3", "no versions"), ("torrent=", "torrent")):
        with pytest.raises(NotSupported, match=text):
            async with origin.forward(ForwardRequest("GET", ObjectRef("b", "k"), "/b/k", query)):
                pass


async def test_probe_says_when_there_are_no_credentials_at_all(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    origin = S3Origin("http://127.0.0.1:9", credentials={SHARED: ChainCredentials()})
    with pytest.raises(OriginAnswer, match="no origin credentials were found in the environment"):
        await origin.probe()
    await origin.aclose()


async def test_the_servers_of_countless_buckets_are_not_all_remembered(new_s3_origin):
    """In virtual-host style, clients name the hosts."""
    origin = new_s3_origin("http://s3.example.org", addressing="virtual")
    peers = {origin.page_gets.peer_of(ObjectRef(f"bucket-{number}", "k")) for number in range(5000)}
    assert len(peers) == 5000
    assert len(origin.page_gets._peers) <= 1024
    await origin.aclose()
