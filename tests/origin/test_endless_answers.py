"""Answers to forwarded requests that would never end, or that hold the event loop."""

import asyncio
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from shadeproxy.core.errors import BodyCutShort, OutcomeUnknown
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.http1 import BadAnswer
from shadeproxy.origin.interim import MOST_INTERIM
from shadeproxy.origin.upload_connection import UploadConnection
from tests.support.answering import answering
from tests.support.decrypted import Decrypted
from tests.support.turns import counted_turns

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\n"
EMPTY = HEAD + b"Content-Length: 0\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FILLER = b"a" * 60_000


@asynccontextmanager
async def flooding(start, more):
    """Run a server that answers a request by ``start``, and then by ``more`` without end."""
    serving = set()

    async def serve(reader, writer):
        serving.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(start)
            while True:
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        if serving:
            await asyncio.wait(serving)


async def put(origin):
    async def body():
        yield b"x"

    request = ForwardRequest("PUT", ObjectRef("bucket", "key"), "/bucket/key", body=body(), content_length=1)
    async with asyncio.timeout(15), origin.forward(request) as response:
        return response.status, b"".join([chunk async for chunk in response.chunks])


@pytest.mark.parametrize(
    ("start", "more", "reason"),
    [
        (b"", INTERIM * 1000, "interim answers without end"),
        (b"", INTERIM.replace(b"\r\n\r\n", b"\r\nX: " + FILLER + b"\r\n\r\n"), "interim answers without end"),
        (HEAD, b"X: " + b"a" * 1000 + b"\r\n", "the head of the answer is too long"),
        (b"", b"\r\n" * 1000, "no HTTP/1.1 status line"),
        (HEAD + b"X: ", FILLER, "the head of the answer is too long"),
    ],
    ids=["interim", "interim with long fields", "fields", "empty lines", "line"],
)
async def test_a_head_without_end_ends_the_request(new_s3_origin, start, more, reason):
    async with flooding(start, more) as url, aclosing(new_s3_origin(url)) as origin:
        with pytest.raises(OutcomeUnknown, match=reason):
            await put(origin)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (CHUNKED + b"5;", FILLER),
        (CHUNKED, b"0" * 60_000),
        (CHUNKED + b"0\r\n", b"X: aaaa\r\n" * 1000),
        (CHUNKED + b"0\r\nX: ", FILLER),
        (CHUNKED + b"1\r\nx\r\n", b"no size\r\n"),
    ],
    ids=["chunk extension", "chunk size", "trailers", "trailer", "no chunks"],
)
async def test_framing_without_end_ends_the_body(new_s3_origin, start, more):
    async with flooding(start, more) as url, aclosing(new_s3_origin(url)) as origin:
        with pytest.raises((BodyCutShort, OutcomeUnknown)):
            await put(origin)


async def test_interim_answers_before_the_answer_are_skipped(new_s3_origin):
    answer = (INTERIM * MOST_INTERIM + EMPTY).decode()
    async with answering(answer) as (url, _), aclosing(new_s3_origin(url)) as origin:
        assert await put(origin) == (200, b"")


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_body_of_many_chunks_arrives_whole(new_s3_origin, size):
    chunks = [bytes([97 + place % 26]) * size for place in range(50_000 // size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (size, chunk) for chunk in chunks)
    answer = (CHUNKED + framed + b"0\r\n\r\n").decode()
    async with answering(answer) as (url, _), aclosing(new_s3_origin(url)) as origin:
        assert await put(origin) == (200, b"".join(chunks))


@pytest.mark.parametrize("start", [b"", EMPTY], ids=["before an answer", "after an answer"])
@pytest.mark.parametrize("more", [INTERIM, EMPTY], ids=["interim", "final"])
async def test_a_flood_in_one_read_ends_the_connection(start, more):
    """With TLS, many answers may arrive in one read."""
    connection, transport = UploadConnection(asyncio.get_running_loop(), lambda _: None), Decrypted(tls=True)
    connection.connection_made(transport)
    connection.start(b"PUT / HTTP/1.1\r\n\r\n")
    transport.hand((start + more * 5_000)[: 128 << 10], connection)
    assert isinstance(connection.failure, BadAnswer)
    assert not connection.reusable


async def test_a_body_that_is_mostly_framing_lets_other_tasks_run(new_s3_origin):
    framed = (b"1;" + b"a" * 3_000 + b"\r\nx\r\n") * 200
    async with (
        counted_turns() as turns,
        answering((CHUNKED + framed + b"0\r\n\r\n").decode()) as (url, _),
        aclosing(new_s3_origin(url)) as origin,
    ):
        assert await put(origin) == (200, b"x" * 200)
    assert turns.count > len(framed) // (64 << 10)
