"""Uploads to a scripted server, with TLS and without."""

import asyncio

from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DENIED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied"
PIECE = bytes(range(256)) * 512
LONG_BYTES = 64 << 20


async def put(origin, body, size, *, key="k", query="", headers=()):
    request = ForwardRequest(
        "PUT", ObjectRef("b", key), f"/b/{key}", query, headers, body=body, content_length=size
    )
    return await send(origin, request)


async def send(origin, request):
    """Send a request. Return the status and the body of the answer."""
    async with asyncio.timeout(15), origin.forward(request) as answer:
        return answer.status, b"".join([chunk async for chunk in answer.chunks])


async def pieces(*given):
    for piece in given:
        yield piece


def long_body():
    return pieces(*[PIECE] * (LONG_BYTES // len(PIECE)))


async def read_put(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    return head, await reader.readexactly(size)
