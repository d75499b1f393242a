"""Which header fields cross the proxy, in each direction.

Rules: fields of a request cross that S3 has (fields.py), with the values that were decided on; the client's
signature stops here, because the origin gets ours. aws-chunked is decoded here, so what describes it does not
cross either. Of an answer all cross but those of one connection (RFC 9110 section 7.6.1).
"""

from shadeproxy.api.s3.fields import FORWARDED, META
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.types import Headers

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def to_origin(request: S3Request) -> Headers:
    """The fields of ``request`` that the origin shall see."""
    kept = []
    for name, value in request.fields.items():
        if name == "content-encoding" and "aws-chunked" in value.lower():
            codings = [coding.strip() for coding in value.split(",")]
            value = ", ".join(coding for coding in codings if coding.lower() != "aws-chunked")  # noqa: PLW2901 - one field, rewritten
            if not value:
                continue
        if name in FORWARDED or name.startswith(META):
            kept.append((name, value))
    return tuple(kept)


def to_client(headers: Headers) -> list[tuple[str, str]]:
    """The fields of an origin's answer that the client shall see."""
    connection = ",".join(value for name, value in headers if name.lower() == "connection")
    # An origin that is a ShadeProxy itself has told where *it* read; the client asks about this one.
    hidden = _HOP_BY_HOP | _named_by_connection(connection) | {"x-shade-cache"}
    return [(name, value) for name, value in headers if name.lower() not in hidden]


def _named_by_connection(field: str) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in field.split(",") if name.strip())
