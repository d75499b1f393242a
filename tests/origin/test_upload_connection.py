"""Requests with a body: how the body is sent, and what ends it early. test_s3transport.py tests connections
that end without an answer.
"""

import asyncio
from contextlib import aclosing

import pytest

from shadeproxy.core.errors import BodyIncomplete, BodyMismatch, OutcomeUnknown
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest
from tests.support.uploading import DENIED, LONG_BYTES, OK, PIECE, long_body, pieces, put, read_put

READ_S = 0.8


@pytest.mark.parametrize("count", [1, 2, 40], ids=["one piece", "two pieces", "40 pieces"])
async def test_a_body_arrives_as_it_was_given_and_the_connection_is_used_again(forwarding, count):
    bodies = []

    async def serve(reader, writer, _number):
        while True:
            bodies.append((await read_put(reader))[1])
            writer.write(OK)

    async with forwarding(serve) as (origin, connections):
        for _ in range(2):
            assert await put(origin, pieces(*[PIECE] * count), count * len(PIECE)) == (200, b"ok")
        assert len(connections) == 1
    assert bodies == [PIECE * count] * 2


async def test_a_body_without_a_length_is_sent_in_chunks(forwarding):
    found = []

    async def serve(reader, writer, _number):
        head = await reader.readuntil(b"\r\n\r\n")
        found.append((head, await reader.readuntil(b"0\r\n\r\n")))
        writer.write(OK)

    async with forwarding(serve) as (origin, _):
        assert await put(origin, pieces(b"one", b"", b"x" * 20), None) == (200, b"ok")
    (head, body) = found[0]
    assert b"\r\ntransfer-encoding: chunked\r\n" in head.lower()
    assert b"content-length" not in head.lower()
    assert body == b"3\r\none\r\n14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n"


async def test_an_answer_ends_the_wait_for_the_rest_of_the_body(forwarding):
    """A server may refuse an upload whose client is slow. The client need not send the rest."""
    closed = asyncio.Event()

    async def slow():
        try:
            yield PIECE
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def serve(reader, writer, number):
        if number == 0:
            await reader.readexactly(len(PIECE))
            writer.write(DENIED)
            assert await reader.read() is not None  # The connection is closed, although it could be kept.
            return
        await read_put(reader)
        writer.write(OK)

    async with forwarding(serve) as (origin, connections):
        async with aclosing(slow()) as body:
            assert await put(origin, body, LONG_BYTES) == (403, b"denied")
        assert closed.is_set()
        assert await put(origin, pieces(b"x"), 1) == (200, b"ok")
        assert len(connections) == 2


async def test_an_answer_ends_a_body_that_the_server_does_not_take(forwarding):
    async def serve(reader, writer, _number):
        await reader.readexactly(len(PIECE))
        writer.transport.pause_reading()
        await asyncio.sleep(READ_S / 4)
        writer.write(DENIED)
        await asyncio.Event().wait()

    async with forwarding(serve) as (origin, _):
        assert await put(origin, long_body(), LONG_BYTES) == (
            403,
            b"denied",
        )


@pytest.mark.parametrize("whole", [True, False])
async def test_success_is_passed_on_when_the_server_has_the_whole_body(forwarding, whole):
    """A server may send its head early. If the rest of the body does not come, nothing was written."""
    answered, received = asyncio.Event(), asyncio.Event()

    async def body():
        yield PIECE
        await answered.wait()
        await asyncio.sleep(0.05)
        if not whole:
            raise BodyMismatch("the client's")
        yield PIECE

    async def serve(reader, writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        answered.set()
        await reader.readexactly(2 * len(PIECE))
        received.set()
        await asyncio.Event().wait()

    async with forwarding(serve) as (origin, _):
        if whole:
            assert await put(origin, body(), 2 * len(PIECE)) == (200, b"ok")
            async with asyncio.timeout(5):
                await received.wait()
        else:
            with pytest.raises(BodyMismatch):
                await put(origin, body(), 2 * len(PIECE))


async def test_a_server_that_answers_success_and_ends_the_connection_has_not_the_body(forwarding):
    async def endless():
        yield PIECE
        await asyncio.Event().wait()

    async def serve(reader, writer, _number):
        await reader.readexactly(len(PIECE))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)

    async with forwarding(serve) as (origin, _):
        with pytest.raises(OutcomeUnknown, match="the connection failed"):
            await put(origin, endless(), LONG_BYTES)


async def test_no_more_is_taken_of_a_body_than_the_server_takes(forwarding):
    taken, go_on = 0, asyncio.Event()

    async def counted():
        nonlocal taken
        for _ in range(LONG_BYTES // len(PIECE)):
            taken += len(PIECE)
            yield PIECE

    async def serve(reader, writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await go_on.wait()
        writer.transport.resume_reading()
        await reader.readexactly(LONG_BYTES)
        writer.write(OK)

    async with forwarding(serve, read_s=10) as (origin, _):
        sending = asyncio.create_task(put(origin, counted(), LONG_BYTES))
        before = -1
        while not taken or taken != before:
            before = taken
            await asyncio.sleep(0.1)
        assert 0 < taken < LONG_BYTES // 2
        go_on.set()
        assert await sending == (200, b"ok")


async def test_a_server_that_takes_nothing_is_given_up_and_a_slow_client_is_not(forwarding):
    async def hangs(reader, writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await asyncio.Event().wait()

    async with forwarding(hangs) as (origin, _):
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await put(origin, long_body(), LONG_BYTES)

    async def slow():
        for _ in range(3):
            await asyncio.sleep(READ_S)
            yield b"x"

    async def serve(reader, writer, _number):
        await read_put(reader)
        writer.write(OK)

    async with forwarding(serve) as (origin, _):
        assert await put(origin, slow(), 3) == (200, b"ok")


@pytest.mark.parametrize("works_long", [True, False])
async def test_only_a_server_that_works_long_may_go_on_with_signs_of_life(forwarding, works_long):
    async def serve(reader, writer, _number):
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(4):
            await asyncio.sleep(READ_S / 3)
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            await asyncio.sleep(READ_S / 3)
            writer.write(b"1\r\n \r\n")
        writer.write(b"2\r\nok\r\n0\r\n\r\n")

    copied = (("x-amz-copy-source", "/b/k"),) if works_long else ()
    async with forwarding(serve) as (origin, _):
        if works_long:
            assert await put(origin, None, None, headers=copied) == (200, b"    ok")
        else:
            with pytest.raises(OutcomeUnknown, match="timed out"):
                await put(origin, None, None)


@pytest.mark.parametrize(
    ("method", "query", "headers", "works_long"),
    [
        ("POST", "uploadId=1", (), True),
        ("POST", "select&select-type=2", (), True),
        ("POST", "uploads", (), False),
        ("POST", "uploads=", (), False),
        ("POST", "delete", (), False),
        ("PUT", "", (("x-amz-copy-source", "/b/k"),), True),
        ("PUT", "partNumber=1&uploadId=1", (), False),
    ],
)
def test_the_operations_for_which_a_server_may_work_long(method, query, headers, works_long):
    request = ForwardRequest(method, ObjectRef("b", "k"), "/b/k", query, headers)
    assert request.works_long is works_long


@pytest.mark.parametrize(
    ("given", "error"), [((b"abc", b"d"), BodyIncomplete), ((b"abc", b"defg"), BodyMismatch)]
)
async def test_a_body_of_another_length_is_never_sent_whole(forwarding, given, error):
    received, ended = b"", asyncio.Event()

    async def serve(reader, _writer, _number):
        nonlocal received
        try:
            await reader.readuntil(b"\r\n\r\n")
            while piece := await reader.read(100):
                received += piece
        finally:
            ended.set()

    async with forwarding(serve) as (origin, _):
        with pytest.raises(error):
            await put(origin, pieces(*given), 5)
        async with asyncio.timeout(5):
            await ended.wait()
    assert len(received) < 5


async def test_a_body_that_is_wrong_at_once_costs_the_origin_nothing(forwarding):
    heads = []

    async def wrong():
        raise BodyMismatch("no")
        yield b""

    async def serve(reader, writer, _number):
        while True:
            heads.append((await read_put(reader))[0])
            writer.write(OK)

    async with forwarding(serve) as (origin, connections):
        await put(origin, pieces(b"x"), 1)
        with pytest.raises(BodyMismatch):
            await put(origin, wrong(), 1)
        await put(origin, pieces(b"x"), 1)
        assert len(connections) == 1
    assert len(heads) == 2


@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError, BodyMismatch])
async def test_an_error_of_the_body_is_not_taken_for_one_of_the_origin(forwarding, error):
    async def broken():
        yield PIECE
        raise error("the client")

    async def serve(reader, _writer, _number):
        await reader.read()

    async with forwarding(serve) as (origin, _):
        with pytest.raises(error, match="the client"):
            await put(origin, broken(), LONG_BYTES)


async def test_a_connection_that_closes_before_the_body_begins_is_replaced(forwarding):
    """Nothing was sent over it, so the request is sent over another one."""
    waits, closes, heads = asyncio.Event(), asyncio.Event(), []

    async def late():
        waits.set()
        await closes.wait()
        await asyncio.sleep(0.1)
        yield b"x"

    async def serve(reader, writer, number):
        heads.append((await read_put(reader))[0])
        writer.write(OK)
        if number == 0:
            await waits.wait()
            closes.set()
            return
        await reader.read()

    async with forwarding(serve) as (origin, connections):
        await put(origin, pieces(b"x"), 1)
        assert await put(origin, late(), 1) == (200, b"ok")
        assert len(connections) == 2
    assert len(heads) == 2


async def test_a_request_that_is_given_up_closes_its_connection(forwarding):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless():
        yield PIECE
        await asyncio.Event().wait()

    async def serve(reader, _writer, _number):
        try:
            await reader.readexactly(len(PIECE))
            begun.set()
            await reader.read()
        finally:
            ended.set()

    async with forwarding(serve) as (origin, _):
        sending = asyncio.create_task(put(origin, endless(), LONG_BYTES))
        await begun.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        async with asyncio.timeout(5):
            await ended.wait()
