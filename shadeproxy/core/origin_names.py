"""Names of origins in canonical form. In that form, two names of the same origin are equal.

A cache directory records the name of its origin, ``s3 URL`` or ``file PATH``, because two origins may have
the same buckets and keys. Names are compared in canonical form, so that another spelling of the same endpoint
does not look like another origin.
"""

import ipaddress
import re
from urllib.parse import urlsplit

_LOOPBACK = "localhost"
_PORTS = {"http": 80, "https": 443}
# All regions of AWS share one namespace of buckets, except those of its other partitions (China, GovCloud).
_AWS = re.compile(r"s3(?:[.-](?:dualstack\.)?(?!us-gov-)[a-z]{2}(?:-[a-z]+)+-\d)?\.amazonaws\.com")
AWS = "aws"


def canonical_origin(name: str) -> str:
    """Return ``name`` with its endpoint in canonical form. Names that do not begin with ``s3`` are returned
    unchanged.
    """
    kind, space, endpoint = name.partition(" ")
    if kind != "s3" or not space or "://" not in endpoint:
        return name
    return f"s3 {canonical_endpoint(endpoint)}"


def canonical_endpoint(endpoint: str) -> str:
    """Return the URL of an endpoint in canonical form.

    Scheme and host become lower case; the default port and the final slash are dropped. Every name of this
    machine's loopback interface becomes ``localhost``, and every public endpoint of AWS becomes ``aws``.
    """
    parts = urlsplit(endpoint)
    scheme, host = parts.scheme.lower(), _canonical_host(parts.hostname or "")
    if _AWS.fullmatch(host):
        return AWS
    port = "" if parts.port in (None, _PORTS.get(scheme)) else f":{parts.port}"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}{port}"


def leads_to(endpoint: str, host: str, port: int) -> bool:
    """Return whether the URL ``endpoint`` leads to a listener at ``host`` and ``port``."""
    parts = urlsplit(endpoint)
    named = parts.port or _PORTS.get(parts.scheme.lower())
    return named == port and _canonical_host(parts.hostname or "") == _canonical_host(host)


def _canonical_host(host: str) -> str:
    host = host.lower().removesuffix(".")
    if host == _LOOPBACK or host.endswith(f".{_LOOPBACK}"):
        return _LOOPBACK
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    # A connection to an unspecified address (0.0.0.0 or ::) reaches this machine.
    if (mapped or address).is_loopback or address.is_unspecified:
        return _LOOPBACK
    return str(mapped or address)
