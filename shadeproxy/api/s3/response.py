"""An answer on the wire: its head is rendered here, and its body is written as fast as the client takes it.

Laws: aiohttp adds, drops and re-encodes nothing. (Its own header writer would add Server and Content-Type,
and lose bytes that are not UTF-8.) An answer that has begun and cannot be completed is broken off, so that a
client never takes a short body for a whole one.
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
"""Largest piece that is passed to the transport before the sender waits until the client has taken bytes."""

_FIRST_BYTES = 16 * 1024
_NOTHING = memoryview(b"")

KEEPALIVE_S = 75.0
"""Seconds for which a connection may be idle, and for which a client may take no byte of its answer."""

PEER_KEEPALIVE_S = 3 * KEEPALIVE_S
"""Like ``KEEPALIVE_S``, but for connections of other proxies. The proxy that the client called cuts off,
within twice ``KEEPALIVE_S``, a client that takes no bytes. If the owner cut off the relayed answer before
that, the owner would seem to have failed.
"""

_REASONS = {int(status): status.phrase for status in HTTPStatus}
NO_BODY_STATUSES = frozenset({204, 304})


@lru_cache(maxsize=2)
def http_date(now_s: int) -> str:
    """Return the value of ``Date`` for a Unix second. It is cached, because formatting costs more than a
    look-up.
    """
    return formatdate(now_s, usegmt=True)


@lru_cache(maxsize=64)
def status_line(status: int) -> str:
    """Return the first line of an answer, without its line break."""
    return f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"


def render_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Render the status line and the fields of an HTTP/1.1 answer. Values are encoded as UTF-8 with
    surrogateescape.

    Raises ValueError for a line break in a field, because a second answer would seem to begin there.
    """
    lines = [status_line(status)]
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
    """Return ``fields``, with the fields added that say how the body ends and whether the connection stays
    open. Also return whether the body must be chunked, and whether the connection stays open.

    ``keep``: the connection stays open if that is possible. ``http_11``: the client speaks HTTP/1.1.
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
    """End a connection in the middle of an answer, so that the receiver sees that the answer broke off.

    The connection is reset, unless its protocol has ``breaks_off_with_fin`` (handler.py).
    """
    # This is a cast and no assertion, because uvloop's transports are no instances of asyncio's classes.
    open_transport = cast(asyncio.WriteTransport, transport)
    sock = open_transport.get_extra_info("socket")
    if (
        sock is not None
        and sock.family in {socket.AF_INET, socket.AF_INET6}
        and not getattr(cast(asyncio.Transport, transport).get_protocol(), "breaks_off_with_fin", False)
    ):
        reset_on_close(sock)
    open_transport.abort()


def _misleads_parser(request: web.BaseRequest) -> bool:
    """Return True if aiohttp's parser may read the bytes behind ``request`` wrongly. So no request may follow
    on the connection.

    After an offer of another protocol, the parser drops bytes, or reads the body of a CONNECT as a request.
    After a chunked body, it takes the last trailing field for a field of the next request.
    """
    return (
        request.method == "CONNECT" or "Upgrade" in request.headers or "Transfer-Encoding" in request.headers
    )


class WireResponse(web.StreamResponse):
    """An answer that is sent through aiohttp. ``headers``: all fields except Connection and
    Transfer-Encoding, which depend on the request and on Content-Length. ``close``: end the connection after
    the answer.
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
        """True if the connection serves another request after this answer. It is known once the answer has
        begun.
        """
        return self._keep

    def force_close(self) -> None:
        """End the connection after this answer. Call it before ``prepare``."""
        self._closing = True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:  # noqa: ARG002 - aiohttp's
        """Begin the answer. Only aiohttp calls this method; see ``begin``."""
        return self.begin()

    def begin(self) -> AbstractStreamWriter:
        """Settle the head of the answer. Only the first call does something. Raises ConnectionResetError
        after ``abort``.
        """
        if self._aborted:
            raise ConnectionResetError("answer aborted")
        if self._writer is not None:
            return self._writer
        request = self._http
        self._has_body = request.method != "HEAD" and self.status not in NO_BODY_STATUSES
        fields, chunked, self._keep = connection_fields(
            self._wire_headers,
            has_body=self._has_body,
            keep=bool(request.keep_alive) and not self._closing and not _misleads_parser(request),
            http_11=request.version >= (1, 1),
        )
        writer = request.writer
        self._head, self._chunked = render_head(self.status, fields), chunked
        self._writer = writer
        return writer

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a piece of the body. Wait while the client takes bytes more slowly than they are written."""
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
        """Send the last bytes, and end the answer. Raises ConnectionResetError after ``abort``, so that
        aiohttp sends nothing more.
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

        Between two writes the connection could break. botocore would then, unless it streams the body, report
        an empty body and no error.
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
        """Reset the connection, so that the client sees that the answer broke off."""
        self._aborted = True
        if self._http.transport is not None:
            break_off(self._http.transport)
