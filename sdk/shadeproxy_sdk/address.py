"""Checks the addresses of servers that a user gives. A password in one is never shown."""

from typing import Any
from urllib.parse import SplitResult, urlsplit

from shadeproxy_sdk.errors import ConfigError


def check_url(url: Any, kind: str, example: str, instead: str) -> SplitResult:
    """Return the parts of ``url``. Raises ConfigError if it is no address, or has a user or password: no
    request would carry these. ``kind``: what the address is. ``instead``: where a secret belongs.
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
