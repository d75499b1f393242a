"""Answers of the origin that identify no version, or that do not belong to the request."""

import asyncio
from contextlib import nullcontext

import pytest

from shadeproxy.core.errors import BodyCutShort, OriginUnavailable, Unidentified
from shadeproxy.core.types import MOST_BYTES, UNKNOWN_BYTES, ObjectRef, Span
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.retry import RetryingOrigin

REF = ObjectRef("bucket", "key")
CHUNKED = "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n"


@pytest.fixture
def against(new_s3_origin):
    """Return a function that runs a call on an origin. The server closes the connection after each answer."""

    async def run(call, *answers, wrap=lambda origin: origin):
        left = list(answers)

        async def serve(reader, writer):
            try:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(left.pop(0).encode("utf-8", "surrogateescape"))
                await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        origin = new_s3_origin(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            return await call(wrap(origin))
        finally:
            await origin.aclose()
            server.close()

    return run


async def read_all(origin):
    async with origin.open(REF) as reading:
        return b"".join([chunk async for chunk in reading.chunks])


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789", 10),
        ('HTTP/1.1 200 OK\r\nETag: W/"e"\r\nContent-Length: 10\r\n\r\n0123456789', 10),
        ('HTTP/1.1 200 OK\r\nETag: "e"\r\nETag: "f"\r\nContent-Length: 10\r\n\r\n0123456789', 10),
        ('HTTP/1.1 200 OK\r\nETag: "e"\r\n\r\n0123456789', UNKNOWN_BYTES),
        ('HTTP/1.0 200 OK\r\nETag: "e"\r\n\r\n0123456789', UNKNOWN_BYTES),
        (
            'HTTP/1.1 200 OK\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n',
            -1,
        ),
        ('HTTP/1.1 200 OK\r\nETag: "e"\r\nx-amz-meta-a: \x01\r\nContent-Length: 10\r\n\r\n0123456789', 10),
    ],
    ids=["no ETag", "weak", "two", "until the end", "HTTP/1.0", "chunked", "control character"],
)
async def test_an_answer_that_does_not_identify_its_object_is_to_be_passed_on(against, answer, size):
    async def check(origin):
        async with origin.open(REF) as reading:
            assert reading.pass_on is not None
            assert reading.meta.size == size
            assert reading.meta.header("x-amz-meta-a") is None
            assert b"".join([chunk async for chunk in reading.chunks]) == b"0123456789"

    await against(check, answer)


@pytest.mark.parametrize(
    "fields",
    ["", 'ETag: W/"e"\r\n', 'ETag: ""\r\n', 'ETag: e"\r\n', 'ETag: "e"\r\nx-amz-meta-a: \x7f\r\n'],
    ids=["no ETag", "weak", "empty", "malformed", "control character"],
)
async def test_a_head_that_does_not_identify_its_object(against, fields):
    with pytest.raises(Unidentified, match="s3://bucket/key cannot be cached: the origin sends no strong"):
        await against(
            lambda origin: origin.head(REF), f"HTTP/1.1 200 OK\r\n{fields}Content-Length: 9\r\n\r\n"
        )


@pytest.mark.parametrize("size", [MOST_BYTES, MOST_BYTES + 1, 10**17])
async def test_an_object_that_is_too_long_for_page_numbers_is_to_be_passed_on(against, size):
    is_too_long = size > MOST_BYTES

    async def check(origin):
        async with origin.open(REF, span=Span(0, 10)) as reading:
            assert (reading.pass_on is not None) is is_too_long
            assert b"".join([chunk async for chunk in reading.chunks]) == b"0123456789"

    fields = f"Content-Length: 10\r\nContent-Range: bytes 0-9/{size}"
    await against(check, f'HTTP/1.1 206 Partial Content\r\nETag: "e"\r\n{fields}\r\n\r\n0123456789')
    head = f'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: {size}\r\n\r\n'
    with pytest.raises(Unidentified) if is_too_long else nullcontext():
        await against(lambda origin: origin.head(REF), head)


@pytest.mark.parametrize("status", ["201", "204", "205", "206", "226", "302", "304"])
async def test_a_status_that_answers_nothing_that_was_asked(against, status):
    location = "Location: http://user:secret@elsewhere/x?token=1"
    answer = f"HTTP/1.1 {status} Odd\r\n{location}\r\nContent-Length: 0\r\n\r\n"
    for call in (read_all, lambda origin: origin.head(REF)):
        with pytest.raises(OriginUnavailable) as raised:
            await against(call, answer)
        assert "secret" not in str(raised.value)
        if status == "302":
            assert (
                "which is no answer to what was asked: it leads to 'elsewhere'; check origin.endpoint"
                in str(raised.value)
            )


@pytest.mark.parametrize("end", ["", "Connection: close\r\n"])
async def test_what_broke_off_does_not_go_on_with_another_answer(against, end):
    """A body without a strong ETag that breaks off is not completed. A second attempt could get another
    version.
    """
    cut = f'HTTP/1.1 200 OK\r\n{end}ETag: W/"e"\r\nContent-Length: 10\r\n\r\n01234'
    whole = 'HTTP/1.1 200 OK\r\nETag: W/"e"\r\nContent-Length: 10\r\n\r\nabcdefghij'
    with pytest.raises(BodyCutShort):
        await against(read_all, cut, whole, wrap=RetryingOrigin)


async def test_a_chunked_body_that_has_no_end_is_cut(against):
    with pytest.raises(BodyCutShort):
        await against(read_all, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n")


async def test_a_range_of_an_answer_in_chunks(against):
    async def check(origin):
        async with origin.open(REF, span=Span(10, 20)) as reading:
            assert (reading.meta.size, reading.span) == (99, Span(10, 20))
            assert reading.pass_on is not None
            assert b"".join([chunk async for chunk in reading.chunks]) == b"0123456789"

    await against(check, f'HTTP/1.1 206 OK\r\nETag: "e"\r\nContent-Range: bytes 10-19/99\r\n{CHUNKED}')
    with pytest.raises(BodyCutShort):
        await against(
            check,
            f"HTTP/1.1 206 OK\r\nContent-Range: bytes 10-19/99\r\n{CHUNKED}".replace("a\r\n01", "8\r\n"),
        )


async def test_a_range_beyond_its_object_is_refused(against):
    async def check(origin):
        async with origin.open(REF, span=Span(10, 20)):
            pass

    fields = 'ETag: "e"\r\nContent-Range: bytes 10-19/12\r\nContent-Length: 10'
    answer = f"HTTP/1.1 206 OK\r\n{fields}\r\n\r\n0123456789"
    with pytest.raises(OriginUnavailable):
        await against(check, answer)


async def test_a_reader_at_its_clients_pace_takes_a_slot_of_those(against):
    limited = []

    def wrap(origin):
        limited.append(LimitedOrigin(origin, max_open=4))
        return limited[0]

    async def check(origin):
        async with origin.open(REF) as reading:
            assert reading.pass_on.admit()
            assert (origin.open_now, origin.paced.taken) == (1, 1)
            for _ in range(2):
                origin.paced.take_now()
            assert not reading.pass_on.admit(), "one client never has all"

    await against(check, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789", wrap=wrap)
    assert limited[0].open_now == 0
