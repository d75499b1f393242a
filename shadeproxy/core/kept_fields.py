"""Header fields of an origin's answer that are not kept with the object, and so in no answer from the cache.

These fields concern one connection or one client, or have names that are the proxy's own.
"""

from functools import lru_cache

from shadeproxy.core.types import Headers

HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Fields that concern one connection (RFC 9110 section 7.6.1)."""

OWN_PREFIX = "x-shade-"
"""The beginning of the names of the proxy's own fields. An origin's fields with such names are never passed
on.
"""

_NOT_KEPT = HOP_BY_HOP | {"location", "refresh", "set-cookie", "www-authenticate"}
_OPTIONS = frozenset({"", "close", "keep-alive"})


@lru_cache(maxsize=64)
def kept_of(*names: str) -> tuple[bool, ...]:
    """Return, for each name of a field, whether the field is kept with the object."""
    lowered = map(str.lower, names)
    return tuple(name not in _NOT_KEPT and not name.startswith(OWN_PREFIX) for name in lowered)


@lru_cache(maxsize=64)
def named_by(*values: str) -> frozenset[str]:
    """Return the lower-case names of the fields that the ``values`` of the field Connection name. Such fields
    concern one connection.
    """
    tokens = (token.strip().lower() for value in values for token in value.split(","))
    return frozenset(tokens) - _OPTIONS


def end_to_end(headers: Headers) -> Headers:
    """Return ``headers`` without fields that concern one connection (RFC 9110 section 7.6.1): those of
    HOP_BY_HOP, and those that the field Connection names.
    """
    dropped = HOP_BY_HOP | named_by(*(value for name, value in headers if name.lower() == "connection"))
    return tuple(pair for pair in headers if pair[0].lower() not in dropped)
