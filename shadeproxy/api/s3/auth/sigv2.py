"""Verification of AWS Signature Version 2: presigned URLs, which boto3 still makes for custom endpoints.

Only what version 2 signs may decide what is done: a sub-resource that it does not cover is refused,
because anyone who holds the URL could add it.
Source: "Signing and authenticating REST requests" in the S3 user guide.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import unquote

from shadeproxy.api.s3.operations import MARKERS
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.errors import MalformedAuth, NotSupported, RequestExpired, SignatureMismatch

_SIGNED_PARAMETERS = frozenset(
    {
        "accelerate",
        "acl",
        "analytics",
        "cors",
        "delete",
        "inventory",
        "lifecycle",
        "location",
        "logging",
        "metrics",
        "notification",
        "object-lock",
        "partNumber",
        "policy",
        "replication",
        "requestPayment",
        "response-cache-control",
        "response-content-disposition",
        "response-content-encoding",
        "response-content-language",
        "response-content-type",
        "response-expires",
        "restore",
        "select",
        "select-type",
        "tagging",
        "torrent",
        "uploadId",
        "uploads",
        "versionId",
        "versioning",
        "versions",
        "website",
    }
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a presigned URL of version 2 says of itself. ``expires_s``: Unix time of its end."""

    access_key: str
    expires_s: int
    signature: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def parse_presigned(request: S3Request) -> Claim:
    """The claim of ``?AWSAccessKeyId=&Expires=&Signature=``. Raises MalformedAuth."""
    query = request.query
    expires = query.get("Expires", "")
    if not expires.isdecimal() or len(expires) > 12 or not query.get("Signature"):
        raise MalformedAuth("A presigned URL needs AWSAccessKeyId, Expires (Unix time) and Signature")
    token = query.get("x-amz-security-token", request.fields.get("x-amz-security-token"))
    return Claim(query["AWSAccessKeyId"], int(expires), query["Signature"], token)


def verify(claim: Claim, request: S3Request, secret_key: str, *, now_s: float) -> None:
    """Check the URL. Raises SignatureMismatch, RequestExpired, NotSupported."""
    if uncovered := [name for name in request.query if name in MARKERS - _SIGNED_PARAMETERS]:
        raise NotSupported(
            f"Signature Version 2 does not cover ?{uncovered[0]}", hint="sign it with Signature Version 4"
        )
    digest = hmac.digest(secret_key.encode(), string_to_sign(request).encode(), hashlib.sha1)
    computed = base64.b64encode(digest).decode()
    if not hmac.compare_digest(computed.encode(), claim.signature.encode()):
        raise SignatureMismatch(
            "The request signature we calculated does not match the signature you provided",
            hint="check the secret key and the signing method",
        )
    if now_s > claim.expires_s:
        raise RequestExpired("Request has expired")


def string_to_sign(request: S3Request) -> str:
    """What version 2 signs of a presigned request: fields that were moved into the query count as fields."""
    moved = {
        name.lower(): value
        for name, value in request.query.items()
        if name.lower().startswith("x-amz-") or name.lower() in {"content-md5", "content-type"}
    }
    fields = {**moved, **request.fields}
    amz = "".join(f"{name}:{fields[name].strip()}\n" for name in sorted(fields) if name.startswith("x-amz-"))
    return (
        f"{request.method}\n{fields.get('content-md5', '')}\n{fields.get('content-type', '')}\n"
        f"{request.query['Expires']}\n{amz}{_canonical_resource(request)}"
    )


def _canonical_resource(request: S3Request) -> str:
    signed = []
    for part in request.raw_query.split("&"):
        name, separator, value = part.partition("=")
        if name in _SIGNED_PARAMETERS:
            signed.append((name, f"{name}{separator}{unquote(value)}"))
    query = "&".join(text for _, text in sorted(signed, key=lambda pair: pair[0]))
    return f"{request.raw_path}?{query}" if query else request.raw_path
