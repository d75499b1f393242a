"""Recognises requests that a browser sends because a web page makes it do so.

A listener without authentication is protected only by its address. A browser on the same machine can reach
this address, and the page that it shows may come from anywhere. Requests of such a page have two marks. If
the page has pointed its own name at this machine (DNS rebinding), ``Host`` has this name, which the page
cannot change. And browsers send fields that name the page's site. This module knows no operation. Sources:
RFC 6761 section 6.3 (localhost), Fetch standard (Origin), Fetch Metadata (Sec-Fetch-Site).
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\s]+))(?::\d*)?")
_MOST_REMEMBERED = 64
_MOST_SHOWN = 100


def host_name(field: str) -> str:
    """Return the name or address in a ``Host`` field, in lower case, without port and brackets. Return "" if
    the field cannot be understood.
    """
    found = _HOST.fullmatch(field)
    if found is None:
        return ""
    return (found[1] or found[2]).lower().removesuffix(".")


def shown_host(field: str) -> str:
    """Return a ``Host`` field in a form that an error may quote."""
    return repr(field if len(field) <= _MOST_SHOWN else f"{field[:_MOST_SHOWN]}...")


def is_loopback(name: str) -> bool:
    """Return True if ``name``, from ``host_name``, means the local machine on every machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = address_of(name)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def address_of(name: str) -> IPv4Address | IPv6Address | None:
    """Return ``name`` as an IP address; None if it is none."""
    try:
        return ip_address(name)
    except ValueError:
        return None


def site_of(fields: Mapping[str, str], host: str) -> str | None:
    """Return the site of the foreign web page that sent a request; "" if the request's fields show that there
    was such a page, but do not name its site. Return None if no page sent the request, or a page of ``host``
    itself did. ``fields``: the request's header fields, with lower-case names.
    """
    origin = fields.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return origin
    return origin or "" if fields.get("sec-fetch-site") in {"cross-site", "same-site"} else None


class KnownHosts:
    """The host names that a listener accepts: those of this machine, ``domains``, and names below
    ``domains``.
    """

    def __init__(self, domains: Iterable[str] = ()) -> None:
        self._domains = tuple(name for domain in domains if (name := domain.lower().strip(".")))
        self._known: set[str] = set()

    def knows(self, field: str) -> bool:
        """Return True if a ``Host`` field names this machine, or a host in one of the domains."""
        if field in self._known:
            return True
        name = host_name(field)
        if not is_loopback(name) and not any(
            name == domain or name.endswith(f".{domain}") for domain in self._domains
        ):
            return False
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known.add(field)
        return True
