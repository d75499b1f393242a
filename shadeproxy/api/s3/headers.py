"""Header fields that the proxy passes on: of requests to the origin, and of answers to the client.

Laws: request fields that S3 defines (fields.py) are passed on with the values that were checked. The client's
signature is not passed on, because the proxy signs the request to the origin itself. Fields that describe
aws-chunked framing are not passed on, because the proxy removes this framing. All fields of an answer are
passed on, except those that concern one connection only (RFC 9110 section 7.6.1).
"""

from shadeproxy.api.s3.fields import FORWARDED, META
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.tracing import NODE_FIELD, REFUSED_FIELD
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

# If the origin is a ShadeProxy too, its x-shade-cache tells where the origin found the bytes. The client
# wants to know where this proxy found them.
_HIDDEN = _HOP_BY_HOP | {"x-shade-cache", NODE_FIELD, REFUSED_FIELD}


def to_origin(request: S3Request) -> Headers:
    """Return the fields of ``request`` that the origin gets."""
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
    """Return the fields of an origin's answer that the client gets."""
    connection = ",".join(value for name, value in headers if name.lower() == "connection")
    hidden = _HIDDEN | _named_by_connection(connection)
    return [(name, value) for name, value in headers if name.lower() not in hidden]


def _named_by_connection(field: str) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in field.split(",") if name.strip())
