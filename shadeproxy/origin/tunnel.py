"""Connections to an origin through an HTTP proxy: the method CONNECT (RFC 9110 section 9.3.6).

Many compute clusters let programs reach other networks only through such a proxy. Laws: nothing of a request
is sent before the HTTP proxy has opened the tunnel. To an origin with TLS, it learns host and port only. A
tunnel that fails leaves no socket open.
"""

import asyncio
import os
import re
import socket

from shadeproxy.origin.addressing import Peer

_MOST_HEAD_BYTES = 16 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([\x20-\x7e]{0,80}))?")


class TunnelFailed(OSError):
    """Raised if an HTTP proxy opens no tunnel. Its text is the reason."""


def too_slow(http_proxy: Peer | None) -> TunnelFailed | None:
    """Return the error for a connection that was not open in time; None if it needed no HTTP proxy."""
    if http_proxy is None:
        return None
    return TunnelFailed(f"no connection in time through {_name_of(http_proxy)}")


async def open_tunnel(http_proxy: Peer, peer: Peer) -> socket.socket:
    """Return a connected, non-blocking socket to ``peer`` through ``http_proxy``. Raises TunnelFailed."""
    where = _name_of(http_proxy)
    try:
        link = await _connected(http_proxy)
    except OSError as error:
        number = error.errno or 0
        # The text of the event loop's error would repeat the address. getaddrinfo has numbers below 0.
        reason = os.strerror(number) if number > 0 else error.strerror or error
        raise TunnelFailed(f"{where} cannot be reached: {reason}") from error
    try:
        await _ask(link, peer, where)
    except TunnelFailed:
        link.close()
        raise
    except OSError as error:
        link.close()
        raise TunnelFailed(f"{where} ended the connection: {error.strerror or error}") from error
    except BaseException:
        link.close()
        raise
    return link


def _name_of(http_proxy: Peer) -> str:
    return f"the HTTP proxy {http_proxy.host}:{http_proxy.port}"


async def _connected(peer: Peer) -> socket.socket:
    """Return a socket that is connected to one of the addresses of ``peer``. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure = OSError("no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        peer.host, peer.port, type=socket.SOCK_STREAM
    ):
        link = socket.socket(family, kind, protocol)
        link.setblocking(False)
        try:
            await loop.sock_connect(link, address)
        except OSError as error:
            link.close()
            failure = error
        except BaseException:
            link.close()
            raise
        else:
            return link
    raise failure


async def _ask(link: socket.socket, peer: Peer, where: str) -> None:
    """Ask for a tunnel to ``peer``, and return once it is open. Raises TunnelFailed, OSError."""
    loop = asyncio.get_running_loop()
    host = f"[{peer.host}]" if ":" in peer.host else peer.host
    request = f"CONNECT {host}:{peer.port} HTTP/1.1\r\nHost: {host}:{peer.port}\r\n\r\n"
    try:
        await loop.sock_sendall(link, request.encode("ascii"))
    except UnicodeEncodeError:
        raise TunnelFailed(f"{where} cannot be asked for {host}: write the name in its ASCII form") from None
    head = b""
    while b"\r\n\r\n" not in head:
        piece = await loop.sock_recv(link, 4096)
        if not piece:
            raise TunnelFailed(f"{where} ended the connection without an answer")
        head += piece
        if len(head) > _MOST_HEAD_BYTES:
            raise TunnelFailed(f"{where} sent an answer that is too long")
    status = _STATUS.match(head)
    if status is None:
        raise TunnelFailed(f"{where} is no HTTP proxy")
    if not status[1].startswith(b"2"):
        said = b" ".join(part for part in status.groups() if part).decode("ascii")
        raise TunnelFailed(f"{where} refused to connect to {host}:{peer.port}: {said}")
    # A server speaks after its client. These bytes would be taken for the beginning of its first answer.
    if not head.endswith(b"\r\n\r\n"):
        raise TunnelFailed(f"{where} sent more than the head of its answer")
