"""Forwarded requests whose connection ends without an answer: what may have been done is not repeated."""

from contextlib import aclosing

import pytest

from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest

from .conftest import answering

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
        with pytest.raises(OriginUnavailable, match="the connection failed"):
            await send(origin, method, body)
    assert methods(asked) == ["DELETE"] * len(before) + [method]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_only_reads_is_sent_again(new_s3_origin, method):
    async with answering(OK, None, OK) as (url, asked), aclosing(new_s3_origin(url)) as origin:
        assert await send(origin, method) == 200
        assert await send(origin, method) == 200
    assert methods(asked) == [method] * 3
