"""An answer on the wire: the head is rendered here, and the body written with back-pressure.

Laws: aiohttp adds, drops and re-encodes nothing (its own header writer would add Server and Content-Type and
lose bytes that are not UTF-8). A begun answer that cannot be completed is aborted, so a client never takes a
short body for a whole one.
"""

import asyncio
import socket
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from shadeproxy.core.sockets import reset_on_close
from shadeproxy.core.types import names_of

WRITE_BYTES = 256 * 1024
"""Largest piece passed to the transport before waiting for it to drain."""

_FIRST_BYTES = 16 * 1024
_NOTHING = memoryview(b"")

KEEPALIVE_S = 75.0
"""Seconds for which a connection may be idle, or a client may take nothing of its answer."""

PEER_KEEPALIVE_S = 3 * KEEPALIVE_S
"""The same for connections of other proxies. The proxy that the client called cuts off a client that takes
nothing, within twice ``KEEPALIVE_S``. If the owner did so first, the owner would seem to have failed.
"""

_REASONS = {int(status): status.phrase for status in HTTPStatus}
NO_BODY_STATUSES = frozenset({204, 304})


@lru_cache(maxsize=2)
def http_date(now_s: int) -> str:
    """Return the ``Date`` field for a Unix second. Cached, because formatting costs more than the look-up."""
    return formatdate(now_s, usegmt=True)


def render_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Render status line and fields of an HTTP/1.1 answer. Values are UTF-8 with surrogateescape.

    Raises ValueError for a line break in a field, which would start a second answer.
    """
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += map(": ".join, headers)
    ends = len(lines) + 1
    lines += ("", "")
    head = "\r\n".join(lines)
    if head.count("\n") != ends or head.count("\r") != ends or "\0" in head:
        raise ValueError("a header field holds a control character")
    return head.encode("utf-8", "surrogateescape")


def connection_fields(
    fields: list[tuple[str, str]], *, has_body: bool, keep: bool, http_11: bool
) -> tuple[list[tuple[str, str]], bool, bool]:
    """Add to ``fields`` those that tell how the body ends and whether the connection stays, and return all.

    Also return whether the body must be chunked, and whether the connection is kept.
    """
    chunked = False
    if has_body and "content-length" not in map(str.lower, names_of(fields)):
        chunked = http_11
        keep = keep and chunked
    own = [("Transfer-Encoding", "chunked")] if chunked else []
    if not keep:
        own.append(("Connection", "close"))
    elif not http_11:
        own.append(("Connection", "keep-alive"))
    return fields + own, chunked, keep


def break_off(transport: asyncio.BaseTransport) -> None:
    """End a connection in the middle of an answer, so that the receiver sees a failure.

    It is reset, unless its protocol has ``breaks_off_with_fin`` (handler.py).
    """
    # A cast, not an assertion: uvloop's transports are no instances of asyncio's classes.
    open_transport = cast(asyncio.WriteTransport, transport)
    sock = open_transport.get_extra_info("socket")
    if (
        sock is not None
        and sock.family in {socket.AF_INET, socket.AF_INET6}
        and not getattr(cast(asyncio.Transport, transport).get_protocol(), "breaks_off_with_fin", False)
    ):
        reset_on_close(sock)
    open_transport.abort()


class WireResponse(web.StreamResponse):
    """An answer sent through aiohttp. ``headers``: all fields except Connection and Transfer-Encoding, which
    depend on the request and on Content-Length. ``close``: end the connection afterwards.
    """

    def __init__(
        self,
        status: int,
        headers: Iterable[tuple[str, str]],
        *,
        http: web.BaseRequest,
        body: bytes = b"",
        close: bool = False,
    ) -> None:
        super().__init__(status=status)
        self._http = http
        self._wire_headers = list(headers)
        self._writer: AbstractStreamWriter | None = None
        self._whole_body = body
        self._closing = close
        self._head = b""
        self._chunked = False
        self._keep = False
        self._has_body = True
        self._finished = False
        self._aborted = False
        self.bytes_sent = 0

    @property
    def prepared(self) -> bool:
        return self._writer is not None

    @property
    def keep_alive(self) -> bool:
        """True if the connection serves another request after this answer. Known once prepared."""
        return self._keep

    def force_close(self) -> None:
        """End the connection after this answer. Call it before ``prepare``."""
        self._closing = True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:  # noqa: ARG002 - aiohttp's
        """Call ``begin``. Only aiohttp calls this method."""
        return self.begin()

    def begin(self) -> AbstractStreamWriter:
        """Commit to the head. Call it once. Raises ConnectionResetError after ``abort``."""
        if self._aborted:
            raise ConnectionResetError("answer aborted")
        if self._writer is not None:
            return self._writer
        request = self._http
        self._has_body = request.method != "HEAD" and self.status not in NO_BODY_STATUSES
        fields, chunked, self._keep = connection_fields(
            self._wire_headers,
            has_body=self._has_body,
            keep=bool(request.keep_alive) and not self._closing,
            http_11=request.version >= (1, 1),
        )
        writer = request.writer
        self._head, self._chunked = render_head(self.status, fields), chunked
        self._writer = writer
        return writer

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a piece of the body and wait while the client is slow."""
        assert self._writer is not None, "write before prepare"
        view = memoryview(data)
        if self._head and view:
            await self._send_head(self._writer, view[:_FIRST_BYTES])
            view = view[_FIRST_BYTES:]
        for start in range(0, len(view), WRITE_BYTES):
            piece = view[start : start + WRITE_BYTES]
            await self._writer.write(piece)
            self.bytes_sent += len(piece)

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the last bytes, and end the answer. Raises ConnectionResetError after ``abort``, which tells
        aiohttp that nothing follows.
        """
        if self._aborted:
            raise ConnectionResetError("answer aborted")
        if self._finished:
            return
        assert self._writer is not None, "write_eof before prepare"
        body = data or self._whole_body
        if body and self._has_body:
            await self.write(body)
        if self._head:
            await self._send_head(self._writer)
        await self._writer.write_eof()
        self._finished = True

    async def _send_head(self, writer: AbstractStreamWriter, first: memoryview = _NOTHING) -> None:
        """Send the head and the first bytes of the body in one write.

        The connection could break between two writes. botocore, unless it streams the body, then reports an
        empty body and no error.
        """
        body = bytes(first)
        if self._chunked and body:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        await writer.write(self._head + body)
        self._head = b""
        self.bytes_sent += len(first)
        if self._chunked:
            writer.enable_chunking()

    def abort(self) -> None:
        """Reset the connection, so that the client sees a failure instead of an end."""
        self._aborted = True
        if self._http.transport is not None:
            break_off(self._http.transport)
