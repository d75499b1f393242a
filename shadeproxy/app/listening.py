"""Opens the listeners. If an address is taken, the error names the setting to change."""

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from shadeproxy.api.s3.server import BACKLOG, S3Server
from shadeproxy.config.fields import Address
from shadeproxy.core.errors import ShadeProxyError


async def listen_s3(
    key: str,
    server: S3Server,
    address: Address,
    tls: ssl.SSLContext | None,
    *,
    bound: socket.socket | None = None,
) -> str:
    """Open an S3 listener and return its address. ``key``: the setting of the address. ``bound``: a socket
    that is bound already. Raises ShadeProxyError if the address is taken.
    """
    if bound is not None:
        await server.accept(bound, tls)
        return str(Address(*bound.getsockname()[:2]))
    with _free(key, address):
        return str(Address(*await server.listen(address.host, address.port, tls)))


async def listen_control(key: str, runner: web.BaseRunner, address: Address) -> str:
    """Open the control listener as ``listen_s3`` does."""
    await runner.setup()
    site = web.TCPSite(runner, address.host, address.port, backlog=BACKLOG, reuse_address=True)
    with _free(key, address):
        await site.start()
    host, port = runner.addresses[0][:2]
    return str(Address(host, port))


def bind(key: str, address: Address) -> socket.socket:
    """Return a socket on which several processes can accept. Raises ShadeProxyError if the
    address is taken.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with _free(key, address):
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)


@contextmanager
def _free(key: str, address: Address) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ShadeProxyError(
            f"{key}: cannot listen on {address}: {_reason(error)}; stop what listens there"
            f" (another shadeproxy?), or set {key} to another address"
        ) from error


def _reason(error: OSError) -> str:
    # The text of asyncio's own error would repeat the address.
    return os.strerror(error.errno) if error.errno else str(error)
