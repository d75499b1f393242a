"""Opens the listeners. If an address is taken, the error names the setting to change."""

import os
import socket
import ssl

from aiohttp import web

from shadeproxy.config.fields import Address
from shadeproxy.core.errors import ShadeProxyError

BACKLOG = 1024


async def listen(
    key: str,
    runner: web.BaseRunner,
    address: Address,
    tls: ssl.SSLContext | None,
    *,
    bound: socket.socket | None = None,
) -> str:
    """Open a listener and return its address. ``key``: the setting of the address. ``bound``: a socket that
    is bound already. Raises ShadeProxyError if the address is taken.
    """
    await runner.setup()
    site: web.BaseSite
    if bound is None:
        site = web.TCPSite(
            runner, address.host, address.port, ssl_context=tls, backlog=BACKLOG, reuse_address=True
        )
    else:
        site = web.SockSite(runner, bound, ssl_context=tls, backlog=BACKLOG)
    try:
        await site.start()
    except OSError as error:
        raise _taken(key, address, error) from error
    host, port = runner.addresses[0][:2]
    return str(Address(host, port))


def bind(key: str, address: Address) -> socket.socket:
    """Return a socket on which several processes can accept. Raises ShadeProxyError if the
    address is taken.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise _taken(key, address, error) from error


def _taken(key: str, address: Address, error: OSError) -> ShadeProxyError:
    return ShadeProxyError(
        f"{key}: cannot listen on {address}: {_reason(error)}; stop what listens there"
        f" (another shadeproxy?), or set {key} to another address"
    )


def _reason(error: OSError) -> str:
    # The text of asyncio's own error would repeat the address.
    return os.strerror(error.errno) if error.errno else str(error)
