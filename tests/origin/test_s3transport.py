"""Forwarded requests whose connection ends without an answer. A request that the server may have carried out
is not sent again.
"""

import asyncio
import socket
from contextlib import aclosing, suppress

import pytest

from shadeproxy.core.errors import OriginUnavailable, OutcomeUnknown
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest
from tests.support.answering import answering

REF = ObjectRef("bucket", "key")
OK = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def send(origin, method, body=None):
    pieces = None if body is None else piece_by_piece(body)
    size = None if body is None else len(body)
    request = ForwardRequest(method, REF, "/bucket/key", "versionId=v1", body=pieces, content_length=size)
    async with origin.forward(request) as response:
        assert [chunk async for chunk in response.chunks] == []
        return response.status


def methods(asked):
    return [head.split()[0] for head, _ in asked]


async def piece_by_piece(body):
    for at in range(0, len(body), 10):
        yield body[at : at + 10]


@pytest.mark.parametrize("kept", [True, False], ids=["kept connection", "fresh connection"])
@pytest.mark.parametrize(
    ("method", "body"), [("DELETE", None), ("PUT", None), ("POST", None), ("PUT", b"x" * 1000)]
)
async def test_what_may_have_been_carried_out_is_sent_once(new_s3_origin, method, body, kept):
    before = [OK] if kept else []
    async with answering(*before, None, OK) as (url, asked), aclosing(new_s3_origin(url)) as origin:
        for _ in before:
            assert await send(origin, "DELETE") == 200
        with pytest.raises(OutcomeUnknown, match=r"carried out .* the origin ended it without an answer"):
            await send(origin, method, body)
    assert methods(asked) == ["DELETE"] * len(before) + [method]


@pytest.mark.parametrize("status", ["101", "000", "999"])
async def test_a_status_that_is_no_answer_leaves_the_outcome_unknown(new_s3_origin, status):
    odd = OK.replace("200", status)
    async with answering(odd, OK) as (url, asked), aclosing(new_s3_origin(url)) as origin:
        with pytest.raises(OutcomeUnknown, match=r"no HTTP/1\.1 status line|an upgrade"):
            await send(origin, "PUT", b"x" * 1000)
        assert await send(origin, "DELETE") == 200
    assert methods(asked) == ["PUT", "DELETE"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_what_was_never_sent_was_not_carried_out(new_s3_origin, method):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with aclosing(new_s3_origin(url)) as origin:
            with pytest.raises(OriginUnavailable, match=r"Connect call failed|refused") as refused:
                await send(origin, method)
    assert not isinstance(refused.value, OutcomeUnknown)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_only_reads_is_sent_again(new_s3_origin, method):
    async with answering(OK, None, OK) as (url, asked), aclosing(new_s3_origin(url)) as origin:
        assert await send(origin, method) == 200
        await asyncio.sleep(0.1)  # After a HEAD the connection rests for a moment.
        assert await send(origin, method) == 200
    assert methods(asked) == [method] * 3


@pytest.mark.parametrize(("method", "body"), [("PUT", b"x"), ("DELETE", None), ("HEAD", None), ("GET", None)])
async def test_what_comes_behind_an_answer_is_not_the_next_ones(new_s3_origin, method, body):
    """Bytes behind an answer are never the answer to the next request. Here an answer without a request
    arrives while the connection is idle.
    """
    came = asyncio.Event()

    serving = set()

    async def serve(reader, writer):
        serving.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(len(body or b""))
                writer.write(OK.encode())
                await writer.drain()
                if b"/bucket/key" in head and not came.is_set():
                    await asyncio.sleep(0.02)
                    writer.write(OK.replace("200 OK", "418 Forged").encode())
                    await writer.drain()
                    came.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with aclosing(new_s3_origin(url)) as origin:
        assert await send(origin, method, body) == 200
        await came.wait()
        await asyncio.sleep(0.02)
        assert await send(origin, method, body) == 200
    server.close()
    await asyncio.wait(serving)
