"""Which header fields cross the proxy, in each direction.

Rules: connection-level fields (RFC 9110 section 7.6.1) never cross; the client's signature stops here,
because the origin gets ours; every other field crosses unchanged, in order. aws-chunked is decoded here,
so what describes it does not cross either; a presigned URL is taken apart into what it stands for.
"""

from types import MappingProxyType

from shadeproxy.api.s3.request import S3Request, parameter_name
from shadeproxy.core.tracing import INSTANCE_FIELD, ORIGIN_FIELD
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
_NOT_TO_ORIGIN = _HOP_BY_HOP | {
    "authorization",
    "content-length",
    "date",
    "expect",
    "host",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-decoded-content-length",
    "x-amz-security-token",
    "x-amz-trailer",
    "x-shade-job",
    INSTANCE_FIELD,
    ORIGIN_FIELD,
}
_SIGNATURE_PARAMETERS = frozenset(
    {
        "awsaccesskeyid",
        "expires",
        "signature",
        "x-amz-algorithm",
        "x-amz-content-sha256",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-expires",
        "x-amz-security-token",
        "x-amz-signature",
        "x-amz-signedheaders",
    }
)


def to_origin(request: S3Request) -> Headers:
    """The fields of ``request`` that the origin shall see."""
    hidden = _NOT_TO_ORIGIN | _named_by_connection(request.fields.get("connection", ""))
    kept = []
    for name, value in request.headers:
        lowered = name.lower()
        if lowered == "content-encoding" and "aws-chunked" in value.lower():
            codings = [coding.strip() for coding in value.split(",")]
            value = ", ".join(coding for coding in codings if coding.lower() != "aws-chunked")  # noqa: PLW2901 - one field, rewritten
            if not value:
                continue
        if lowered not in hidden:
            kept.append((name, value))
    return tuple(kept)


def to_client(headers: Headers) -> list[tuple[str, str]]:
    """The fields of an origin's answer that the client shall see."""
    connection = ",".join(value for name, value in headers if name.lower() == "connection")
    # An origin that is a ShadeProxy itself has told where *it* read; the client asks about this one.
    hidden = _HOP_BY_HOP | _named_by_connection(connection) | {"x-shade-cache"}
    return [(name, value) for name, value in headers if name.lower() not in hidden]


def settle_presigned(request: S3Request) -> S3Request:
    """``request`` as it would be without its presigned URL; itself where there is none.

    Parameters of the signature leave the query, and fields that the signer moved into the query
    (``x-amz-*``; in version 2 also Content-Type and Content-MD5) become fields again: the origin gets a
    signature in a header, beside which S3 does not look for them in the query.
    """
    if not request.query.keys() & {"AWSAccessKeyId", "X-Amz-Signature"}:
        return request
    movable = {"content-md5", "content-type"} if "AWSAccessKeyId" in request.query else set()
    query, fields, headers, kept = {}, dict(request.fields), list(request.headers), set()
    for name, value in request.query.items():
        lowered = name.lower()
        if lowered in _SIGNATURE_PARAMETERS:
            continue
        if not lowered.startswith("x-amz-") and lowered not in movable:
            query[name] = value
            kept.add(name)
        elif lowered not in fields:
            fields[lowered] = value
            headers.append((name, value))
    raw_query = "&".join(part for part in request.raw_query.split("&") if parameter_name(part) in kept)
    return request._replace(
        raw_query=raw_query, query=query, headers=tuple(headers), fields=MappingProxyType(fields)
    )


def _named_by_connection(field: str) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in field.split(",") if name.strip())
