"""Access to the control API.

If a token is configured, every call but the probes and the dashboard's empty page needs it. The token is sent
as ``Authorization: Bearer``, or as the password of ``Authorization: Basic``, so that a browser can show an
answer. Without a token the listener must be on loopback, which the configuration enforces. Then no web page
may reach it through the user's browser. So calls must name an IP address or a known host, which prevents DNS
rebinding. With or without a token, calls that change something are refused if a page of another origin sends
them. Web pages cannot reach a Unix socket, so the host is not checked there.
"""

import base64
import hmac
import socket

from aiohttp import web

from shadeproxy.api.browsers import address_of, host_name, is_loopback, shown_host, site_of
from shadeproxy.core.errors import AccessDenied, AuthError

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_caller(request: web.Request, *, token: str | None, allowed_hosts: frozenset[str]) -> None:
    """Raise AuthError if the token is missing or wrong, AccessDenied if a foreign web page makes the call."""
    # Do not use request.host: if the field Host is missing, it asks the resolver for this machine's name, and
    # blocks the event loop.
    host = request.headers.get("Host", "")
    if token is not None:
        _check_token(request, token)
    elif not _by_socket_file(request) and not _is_known(host, allowed_hosts):
        raise AccessDenied(
            f"the control listener is not known as {shown_host(host)}",
            hint="call it by IP address or localhost, or set a control token",
        )
    fields = {name.lower(): value for name, value in request.headers.items()}
    if request.method not in _SAFE_METHODS and site_of(fields, host) is not None:
        raise AccessDenied("a page of another origin may not change anything here")


def _check_token(request: web.Request, token: str) -> None:
    field = request.headers.get("Authorization")
    if field is None:
        raise AuthError("this call needs the control token", hint="send Authorization: Bearer TOKEN")
    scheme, _, value = field.partition(" ")
    sent = value.strip()
    if scheme.lower() == "basic":
        sent = _password(sent)
    elif scheme.lower() != "bearer":
        sent = ""
    if not hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), token.encode()):
        raise AuthError("the control token is wrong", hint="send the token that [control] token is set to")


def _password(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _by_socket_file(request: web.Request) -> bool:
    connection = request.get_extra_info("socket")
    return connection is not None and connection.family == socket.AF_UNIX


def _is_known(host: str, allowed_hosts: frozenset[str]) -> bool:
    name = host_name(host)
    # An IP address is safe. The owner of a web page can point a name at this machine (DNS rebinding), but not
    # an address.
    return is_loopback(name) or name in allowed_hosts or address_of(name) is not None
