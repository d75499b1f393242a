"""Header fields that the proxy passes on: of requests to the origin, and of answers to the client.

Laws: request fields that S3 defines (fields.py) are passed on with the values that were checked. The client's
signature is not passed on, because the proxy signs the request to the origin itself. Fields that describe
aws-chunked framing are not passed on, because the proxy removes this framing. All fields of an answer are
passed on, except those that concern one connection only (RFC 9110 section 7.6.1), those whose names are the
proxy's own, and those that lead the client past the proxy or set a cookie (``_concerns_the_proxy``).
"""

from shadeproxy.api.s3.fields import FORWARDED, META
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.kept_fields import OWN_PREFIX, end_to_end
from shadeproxy.core.types import Headers

_OTHER_HOST = ("//", "/\\")
"""The beginnings of a Location that looks like a path and names a host. To browsers a backslash means a
slash.
"""


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
    # If the origin is a ShadeProxy too, its x-shade-cache tells where the origin found the bytes. The client
    # wants to know where this proxy found them.
    return [
        (name, value)
        for name, value in end_to_end(headers)
        if not (name.lower().startswith(OWN_PREFIX) or _concerns_the_proxy(name.lower(), value))
    ]


def _concerns_the_proxy(name: str, value: str) -> bool:
    """Return whether the field ``name``, in lower case, is meant for the proxy, as the origin's only client.

    A cookie would be set for the proxy's host, and would never come back to the origin, because no Cookie is
    passed on. A Location with a host, and a Refresh, lead past the proxy, and so past its cache and its
    rights. A Location that is a path, as in the answer to CreateBucket, is good at the proxy too.
    """
    if name == "location":
        return not value.startswith("/") or value.startswith(_OTHER_HOST)
    return name in {"set-cookie", "refresh"}
