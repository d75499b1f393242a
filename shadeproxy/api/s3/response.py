"""The head of an answer, and how a connection ends.

Law: an answer that has begun and cannot be completed is broken off, so that a client never takes a short body
for a whole one.
"""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import cast

from shadeproxy.core.sockets import reset_on_close, unacknowledged_bytes
from shadeproxy.core.types import names_of

WRITE_BYTES = 256 * 1024
"""Largest piece that is passed to the transport before the sender waits until the client has taken bytes."""

KEEPALIVE_S = 75.0
"""Seconds for which a connection may be idle, and for which a client may take no byte of its answer."""

PEER_KEEPALIVE_S = 3 * KEEPALIVE_S
"""Like ``KEEPALIVE_S``, but for connections of other proxies. The proxy that the client called cuts off,
within twice ``KEEPALIVE_S``, a client that takes no bytes. If the owner cut off the relayed answer before
that, the owner would seem to have failed.
"""

LINGER_S = 1.0
"""Seconds for which bytes of a client are dropped after the last answer."""

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


def unsent_bytes(transport: asyncio.WriteTransport | None) -> int:
    """Return how many bytes of those given to ``transport`` the client has not acknowledged; 0 if the
    transport is None or closes. Over TLS, up to some 300 KiB are left out.
    """
    sock = None if transport is None or transport.is_closing() else transport.get_extra_info("socket")
    if transport is None or sock is None or sock.fileno() < 0:
        return 0
    return transport.get_write_buffer_size() + unacknowledged_bytes(sock)


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


def close_later(transport: asyncio.Transport) -> None:
    """End a connection after its answer, although the client may still send. It is closed a little later, and
    the caller must drop the bytes that come until then.

    If bytes are unread at the close, the kernel resets the connection, and the client may lose the answer
    (RFC 9112 section 9.6).
    """
    asyncio.get_running_loop().call_later(LINGER_S, transport.close)
    with suppress(OSError):  # The client may have reset the connection.
        if transport.can_write_eof():
            transport.write_eof()
