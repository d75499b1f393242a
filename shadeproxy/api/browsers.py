"""Recognises requests that a web page makes its reader's browser send.

A listener without authentication is protected by its address alone. A browser on the same machine can reach
that address, and the page that it shows may come from anywhere. Two marks tell the requests of such a page
apart. A page that points its own name at this machine (DNS rebinding) cannot choose the name in ``Host``. And
browsers send fields that name the page's site. Nothing here knows an operation. Sources: RFC 6761 section 6.3
(localhost), Fetch standard (Origin), Fetch Metadata (Sec-Fetch-Site).
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\s]+))(?::\d*)?")
_MOST_REMEMBERED = 64
_MOST_SHOWN = 100


def host_name(field: str) -> str:
    """Return the lower-case name or address in a ``Host`` field, without port and brackets; "" for an empty
    field.
    """
    found = _HOST.fullmatch(field)
    if found is None:
        return ""
    return (found[1] or found[2]).lower().removesuffix(".")


def shown_host(field: str) -> str:
    """Return a ``Host`` field as an error may quote it."""
    return repr(field if len(field) <= _MOST_SHOWN else f"{field[:_MOST_SHOWN]}...")


def is_loopback(name: str) -> bool:
    """Return whether ``name``, from ``host_name``, is a loopback name or address on every machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = address_of(name)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def address_of(name: str) -> IPv4Address | IPv6Address | None:
    """Parse ``name`` as an IP address; None if it is not an IP address."""
    try:
        return ip_address(name)
    except ValueError:
        return None


def site_of(fields: Mapping[str, str], host: str) -> str | None:
    """Return the origin of the web page that sent a request with ``fields`` (lower-case names); "" if the
    fields do not name it. Return None if no page sent the request, or if a page of ``host`` itself did.
    """
    origin = fields.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return origin
    return origin or "" if fields.get("sec-fetch-site") in {"cross-site", "same-site"} else None


class KnownHosts:
    """Names that a listener accepts: names of this machine, ``domains``, and names below these."""

    def __init__(self, domains: Iterable[str] = ()) -> None:
        self._domains = tuple(name for domain in domains if (name := domain.lower().strip(".")))
        self._known: set[str] = set()

    def knows(self, field: str) -> bool:
        """Return whether a ``Host`` field names this machine or one of the domains."""
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
