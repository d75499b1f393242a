"""GETs and HEADs that are no page GETs, over the project's own connections.

Answers are parsed as strictly as those of page GETs (http1.py): bytes after an answer never count as the next
answer, and a body that ends early raises. aiohttp's client is not used, because it is lenient in three cases.
It accepts transfer codings that it does not decode. It takes a reset for the end of a body without a length.
And it takes bytes that arrive on an idle connection for the answer to the next request.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.tracing import origin_fields
from shadeproxy.core.types import Headers
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.s3pages import FAILURES, PageGets, broken_off
from shadeproxy.origin.s3transport import Outgoing

Sign = Callable[[Outgoing], Awaitable[list[tuple[str, str]]]]


class Answered(NamedTuple):
    """The answer to a read. ``head.headers`` has only legal fields. ``head.flawed``: True if illegal fields
    were dropped.

    ``chunks``: yields the body as it arrives. Raises BodyCutShort, BodyDamaged.
    """

    head: Head
    chunks: AsyncIterator[bytes]


class Reads:
    """Sends GETs and HEADs. ``sign``: returns the fields that sign a request. ``own``: connections for the
    proxy's own requests. ``forwarded``: connections for clients' requests, which last as long as the client
    likes.
    """

    def __init__(self, sign: Sign, *, own: PageGets, forwarded: PageGets) -> None:
        self._sign = sign
        self._own = own
        self._forwarded = forwarded

    @asynccontextmanager
    async def exchange(self, outgoing: Outgoing) -> AsyncIterator[Answered]:
        """Send a GET or HEAD, and yield its answer. Leaving early closes the connection. Raises as
        ``S3Transport.exchange``.
        """
        gets = self._forwarded if outgoing.forwarded else self._own
        target, bodiless = outgoing.target, outgoing.method == "HEAD"
        fields: list[tuple[str, str]] = [
            ("Host", target.host),
            *outgoing.headers,
            *await self._sign(outgoing),
            *origin_fields(gets.instance),
        ]
        connection, head = await gets.ask(target.origin, _request(outgoing, tuple(fields)), bodiless=bodiless)
        try:
            async with aclosing(body_of(connection, bodiless=bodiless)) as chunks:
                yield Answered(head, chunks)
        finally:
            gets.pool.put_back(connection)

    async def aclose(self) -> None:
        await self._own.pool.aclose()
        await self._forwarded.pool.aclose()


def _request(outgoing: Outgoing, fields: Headers) -> bytes:
    query = f"?{outgoing.raw_query}" if outgoing.raw_query else ""
    lines = [f"{outgoing.method} {outgoing.target.raw_path}{query} HTTP/1.1", *map(": ".join, fields), "", ""]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
        raise InvalidRequest("A header field of the request holds a control character")
    return head.encode("utf-8", "surrogateescape")


async def body_of(connection: Connection, *, bodiless: bool = False) -> AsyncGenerator[bytes, None]:
    """Yield the body of an answer whose head has been read. Raises BodyCutShort, BodyDamaged."""
    if bodiless:
        return
    try:
        async with aclosing(connection.pieces()) as pieces:
            async for piece in pieces:
                yield piece
    except FAILURES as error:
        raise broken_off(error) from error
