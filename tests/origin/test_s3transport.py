"""Forwarded requests whose connection ends without an answer: what may have been done is not repeated."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest

REF = ObjectRef("bucket", "key")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def dropping(*answers):
    """(URL, methods asked): a server that gives the heads of requests these answers; None: it closes."""
    asked, left = [], list(answers)

    async def serve(reader, writer):
        while left:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            asked.append(head.split()[0].decode())
            answer = left.pop(0)
            if answer is None:
                break
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def send(origin, method, body=None):
    pieces = None if body is None else piece_by_piece(body)
    size = None if body is None else len(body)
    request = ForwardRequest(method, REF, "/bucket/key", "versionId=v1", body=pieces, content_length=size)
    async with origin.forward(request) as response:
        assert [chunk async for chunk in response.chunks] == []
        return response.status


async def piece_by_piece(body):
    for at in range(0, len(body), 10):
        yield body[at : at + 10]


@pytest.mark.parametrize("kept", [True, False], ids=["kept connection", "fresh connection"])
@pytest.mark.parametrize(
    ("method", "body"), [("DELETE", None), ("PUT", None), ("POST", None), ("PUT", b"x" * 1000)]
)
async def test_what_may_have_been_carried_out_is_sent_once(new_s3_origin, method, body, kept):
    before = [OK] if kept else []
    async with dropping(*before, None, OK) as (url, asked), aclosing(new_s3_origin(url)) as origin:
        for _ in before:
            assert await send(origin, "DELETE") == 200
        with pytest.raises(OriginUnavailable, match="the connection failed"):
            await send(origin, method, body)
    assert asked == ["DELETE"] * len(before) + [method]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_only_reads_is_sent_again(new_s3_origin, method):
    async with dropping(OK, None, OK) as (url, asked), aclosing(new_s3_origin(url)) as origin:
        assert await send(origin, method) == 200
        assert await send(origin, method) == 200
    assert asked == [method] * 3
