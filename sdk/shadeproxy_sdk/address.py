"""Checks and writes the addresses of servers. No error text shows a password that stands in an address."""

from typing import Any
from urllib.parse import SplitResult, urlsplit

from shadeproxy_sdk.errors import ConfigError


def check_url(url: Any, kind: str, example: str, instead: str) -> SplitResult:
    """Return the parts of ``url``. Raises ConfigError if it is no address, or if it has a user or password,
    because no request would carry these. The other arguments are for the error text. ``kind``: what the
    address is for. ``example``: a right address. ``instead``: where the user and password belong.
    """
    try:
        parts: SplitResult = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):  # An invalid port, unclosed brackets, or no text.
        parts, is_address = urlsplit(""), False
    if "@" in (parts.netloc if is_address else str(url)):
        raise ConfigError(f"{kind} has a user or password: write {example} alone, and {instead}")
    if not is_address:
        raise ConfigError(f"{url!r} is not {kind}: write {example}")
    return parts


def in_url(host: str) -> str:
    """Return ``host`` as a URL and the header Host write it: an IPv6 address in brackets (RFC 3986 section
    3.2.2).
    """
    return f"[{host}]" if ":" in host else host
