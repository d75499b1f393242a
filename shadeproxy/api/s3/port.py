"""A request on a client's connection, and the answer to it."""

import asyncio
import secrets
from collections.abc import Awaitable, Iterable
from typing import Protocol

from shadeproxy.api.s3.head import Head
from shadeproxy.api.s3.request_body import ClientBody
from shadeproxy.api.s3.response import (
    NO_BODY_STATUSES,
    WRITE_BYTES,
    break_off,
    connection_fields,
    render_head,
)

TURN_BYTES = 2 * WRITE_BYTES
"""Most bytes that a client is sent in one turn of the loop. With half as many, misses of 4 MiB cost a tenth
more.
"""

# The beginning of the name of a Unix socket over which a worker relays requests. The socket is abstract: it
# has a name but no file.
_RELAYED = b"\0shadeproxy-for/"
_SECURE, _PLAIN = b"s", b"p"


class HasPeer(Protocol):
    """A connection, or a request on a connection. Both know the address of the client."""

    @property
    def peer(self) -> str:
        """The client's address without its port; "" if it is unknown."""
        ...


class Outlet(HasPeer, Protocol):
    """The part of a client's connection through which answers are written."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """The client's transport; None after the connection has ended."""
        ...

    def drained(self, *, gives_way: bool) -> Awaitable[None] | None:
        """Return an awaitable if the caller must wait before it writes more: because the client is slow or,
        with ``gives_way``, because it is the turn of other clients. Return None if it need not wait. Raises
        ConnectionError if the client has gone.
        """
        ...


class Port:
    """The source of a request without a body, and the destination of its answer. ``keep_alive``: the client
    may send another request on this connection. ``is_http_11``: see ``Head``.
    """

    def __init__(self, outlet: Outlet, method: str, *, keep_alive: bool, is_http_11: bool = True) -> None:
        self.method = method
        self.body: ClientBody | None = None
        self._outlet = outlet
        self._keep_alive = keep_alive
        self._is_http_11 = is_http_11
        self._response: Response | None = None

    @property
    def unread(self) -> bool:
        """True if the request has a body whose end was not read."""
        return False

    @property
    def is_answering(self) -> bool:
        """True if bytes of the answer may have been sent already."""
        return self._response is not None and self._response.is_sending

    @property
    def peer(self) -> str:
        """The client's address; see ``HasPeer``."""
        return self._outlet.peer

    def respond(
        self, status: int, headers: Iterable[tuple[str, str]], *, body: bytes = b"", close: bool = False
    ) -> "Response":
        """Return an answer that has not begun. ``headers``: all fields except Connection and
        Transfer-Encoding. ``close``: end the connection after the answer.
        """
        sent = self.body
        if sent is not None and sent.expects_go and not sent.is_over:
            # The client may send its body now, or leave it out (RFC 9110 section 10.1.1). So nothing tells
            # where its next request begins.
            close = True
        self._response = Response(
            self._outlet,
            status,
            headers,
            body=body,
            head_only=self.method == "HEAD",
            keep_alive=self._keep_alive and not close,
            is_http_11=self._is_http_11,
        )
        return self._response


class RequestPort(Port):
    """The source of a request that may have a body. ``target`` and ``fields``: see ``Head``."""

    def __init__(self, outlet: Outlet, head: Head, body: ClientBody) -> None:
        super().__init__(outlet, head.method, keep_alive=head.keep_alive, is_http_11=head.is_http_11)
        self.target, self.fields = head.target, head.fields
        self.body: ClientBody = body

    @property
    def scheme(self) -> str:
        """The scheme by which the client sent the request: "https" or "http"."""
        return scheme_of(self._outlet.transport)

    @property
    def unread(self) -> bool:
        return not self.body.is_read


class Response:
    """One answer, written straight to the transport. Its head is sent together with the first piece of the
    body. Between two writes the connection could break, and some clients would take the head alone for an
    empty body.
    """

    def __init__(
        self,
        outlet: Outlet,
        status: int,
        headers: Iterable[tuple[str, str]],
        *,
        body: bytes = b"",
        head_only: bool,
        keep_alive: bool,
        is_http_11: bool = True,
    ) -> None:
        self.status = status
        self.bytes_sent = 0
        """Bytes of the body that were sent."""
        self.is_sending = False
        self._outlet = outlet
        self._fields = list(headers)
        self._whole_body = body
        self._has_body = not head_only and status not in NO_BODY_STATUSES
        self._wants_keep = keep_alive
        self._is_http_11 = is_http_11
        self.keep_alive = False
        """True if the connection serves another request after this answer. It is known once the answer has
        begun.
        """
        self._head = b""
        self._chunked = False
        self._aborted = False
        self._turn_ends = TURN_BYTES

    def begin(self) -> None:
        """Settle the head of the answer. Call it once. The head is sent with the first piece of the body."""
        fields, self._chunked, self.keep_alive = connection_fields(
            self._fields, has_body=self._has_body, keep=self._wants_keep, http_11=self._is_http_11
        )
        self._head = render_head(self.status, fields)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a piece of the body. Wait while the client is slow, or while it is the turn of others."""
        view = memoryview(data)
        for start in range(0, len(view), WRITE_BYTES):
            piece = view[start : start + WRITE_BYTES]
            transport = self._open()
            if self._chunked:
                transport.writelines((self._head, b"%x\r\n" % len(piece), piece, b"\r\n"))
                self._head = b""
            elif self._head:
                transport.writelines((self._head, piece))
                self._head = b""
            else:
                transport.write(piece)
            self.bytes_sent += len(piece)
            # Without this limit, a fast client would be sent megabytes in one turn of the loop, while other
            # clients wait.
            gives_way = self.bytes_sent >= self._turn_ends
            if gives_way:
                self._turn_ends = self.bytes_sent + TURN_BYTES
            if (drained := self._outlet.drained(gives_way=gives_way)) is not None:
                await drained

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the last bytes of the body, and end the answer. After ``abort``: ConnectionResetError."""
        transport = self._open()
        body = data or self._whole_body
        if body and self._has_body:
            await self.write(body)
        if self._head or self._chunked:
            transport.write(self._head + b"0\r\n\r\n" * self._chunked)
            self._head = b""

    def abort(self) -> None:
        """Reset the connection, so that the client sees that the answer broke off."""
        self._aborted = True
        self.keep_alive = False
        if self._outlet.transport is not None:
            break_off(self._outlet.transport)

    def _open(self) -> asyncio.Transport:
        transport = self._outlet.transport
        if self._aborted or transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone, or the answer was aborted")
        self.is_sending = True
        return transport


def relayed_name(peer: str, *, secure: bool) -> bytes:
    """Return a new name for a Unix socket that relays a request of the client at ``peer``. No name is used
    twice.

    ``secure``: the client's connection has TLS.
    """
    kind = _SECURE if secure else _PLAIN
    return b"%s%s/%s/%s" % (_RELAYED, peer.encode(), kind, secrets.token_hex(8).encode())


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of the client; see ``HasPeer.peer``. If a worker has relayed the request, the
    address is in the name of the Unix socket (``relayed_name``).
    """
    name = None if transport is None else transport.get_extra_info("peername")
    if isinstance(name, bytes) and name.startswith(_RELAYED):
        return name.removeprefix(_RELAYED).partition(b"/")[0].decode()
    return str(name[0]) if isinstance(name, tuple) and name else ""


def scheme_of(transport: asyncio.BaseTransport | None) -> str:
    """Return "https" or "http": the scheme by which the client sent the request, even if a worker has relayed
    it.
    """
    if transport is None:
        return "http"
    name = transport.get_extra_info("peername")
    if isinstance(name, bytes) and name.startswith(_RELAYED):
        return "https" if name.split(b"/")[2] == _SECURE else "http"
    return "http" if transport.get_extra_info("sslcontext") is None else "https"
