"""Verifies AWS Signature Version 2.

boto3 still makes presigned URLs of this version for custom endpoints. Very old clients send a signature of
this version in the Authorization header (s3cmd --signature-v2, Hadoop's s3n). A request with a sub-resource
that version 2 does not sign is refused, because anyone with the URL could have added this sub-resource.
Source: "Signing and authenticating REST requests" in the S3 user guide.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field

from shadeproxy.api.s3.auth.sigv4 import MAX_SKEW_S
from shadeproxy.api.s3.operations import MARKERS, RESPONSE_OVERRIDES
from shadeproxy.api.s3.request import S3Request, parameter_name
from shadeproxy.core.dates import parse_http_date
from shadeproxy.core.errors import (
    AccessDenied,
    ClockSkew,
    MalformedAuth,
    NotSupported,
    RequestExpired,
    SignatureMismatch,
)

_SIGNED_PARAMETERS = RESPONSE_OVERRIDES | frozenset(
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
    """The signature data of a request, not verified yet.

    ``date``: the line with the date in the signed text. For a presigned URL it is the parameter Expires. For
    a signed header it is the field Date, or "" if x-amz-date replaces this field. ``expires_s``: Unix time at
    which a presigned URL expires. ``signed_s``: Unix time at which a header was signed.
    """

    access_key: str
    date: str
    expires_s: int | None = None
    signed_s: float | None = None
    signature: str = field(repr=False, kw_only=True)
    token: str | None = field(default=None, repr=False)


def parse_presigned(request: S3Request) -> Claim:
    """Parse the claim of ``?AWSAccessKeyId=&Expires=&Signature=``. Raises MalformedAuth."""
    query = request.query
    expires = query.get("Expires", "")
    if not expires.isdecimal() or len(expires) > 12 or not query.get("Signature"):
        raise MalformedAuth("A presigned URL needs AWSAccessKeyId, Expires (Unix time) and Signature")
    token = query.get("x-amz-security-token", request.fields.get("x-amz-security-token"))
    return Claim(
        query["AWSAccessKeyId"], expires, expires_s=int(expires), signature=query["Signature"], token=token
    )


def parse_header(request: S3Request) -> Claim:
    """Parse the claim of ``Authorization: AWS KEY:SIGNATURE``. Raises MalformedAuth, or AccessDenied if there
    is no valid date.
    """
    access_key, colon, signature = (
        request.fields["authorization"].removeprefix("AWS ").strip().rpartition(":")
    )
    if not colon or not access_key or not signature:
        raise MalformedAuth("The Authorization header of Signature Version 2 must be AWS KEY:SIGNATURE")
    amz_date, date = request.fields.get("x-amz-date"), request.fields.get("date", "")
    signed = parse_http_date(date if amz_date is None else amz_date)
    if signed is None or signed.timestamp() < 0:
        raise AccessDenied(
            "AWS authentication requires a valid Date or x-amz-date header",
            hint="write it as RFC 9110 has dates",
        )
    return Claim(
        access_key,
        date if amz_date is None else "",
        signed_s=signed.timestamp(),
        signature=signature,
        token=request.fields.get("x-amz-security-token"),
    )


def verify(claim: Claim, request: S3Request, secret_key: str, *, now_s: float) -> None:
    """Verify the signature in a URL or header. Raises SignatureMismatch, RequestExpired, ClockSkew,
    NotSupported.
    """
    if uncovered := [name for name in request.query if name in MARKERS - _SIGNED_PARAMETERS]:
        raise NotSupported(
            f"Signature Version 2 does not cover ?{uncovered[0]}", hint="sign it with Signature Version 4"
        )
    # Check the time before the signature, as S3 does, so that the error tells a client with a wrong clock
    # about its clock.
    if claim.signed_s is not None and abs(now_s - claim.signed_s) > MAX_SKEW_S:
        raise ClockSkew(
            "The difference between the request time and the current time is too large",
            hint="set the clock of the client",
        )
    digest = hmac.digest(secret_key.encode(), string_to_sign(claim, request).encode(), hashlib.sha1)
    computed = base64.b64encode(digest).decode()
    if not hmac.compare_digest(computed.encode(), claim.signature.encode()):
        raise SignatureMismatch(
            "The request signature we calculated does not match the signature you provided",
            hint="check the secret key and the signing method",
        )
    if claim.expires_s is not None and now_s > claim.expires_s:
        raise RequestExpired("Request has expired")


def string_to_sign(claim: Claim, request: S3Request) -> str:
    """Return the text that version 2 signs. Parameters of a presigned URL that stand for header fields
    (``x-amz-*``, Content-MD5, Content-Type) are signed as header fields.
    """
    moved = {
        name.lower(): value
        for name, value in request.query.items()
        if claim.expires_s is not None
        and (name.lower().startswith("x-amz-") or name.lower() in {"content-md5", "content-type"})
    }
    fields = {**moved, **request.fields}
    amz = "".join(f"{name}:{fields[name].strip()}\n" for name in sorted(fields) if name.startswith("x-amz-"))
    return (
        f"{request.method}\n{fields.get('content-md5', '')}\n{fields.get('content-type', '')}\n"
        f"{claim.date}\n{amz}{_canonical_resource(request)}"
    )


def _canonical_resource(request: S3Request) -> str:
    """Return the path and the signed sub-resources. Names are decoded before they are compared, because the
    origin reads another spelling of a name (``%61cl`` for ``acl``) as the same sub-resource.
    """
    named = [(parameter_name(part), part.partition("=")[1]) for part in request.raw_query.split("&")]
    signed = [
        (name, f"{name}{separator}{request.query[name]}")
        for name, separator in named
        if name in _SIGNED_PARAMETERS
    ]
    query = "&".join(text for _, text in sorted(signed, key=lambda pair: pair[0]))
    return f"{request.raw_path}?{query}" if query else request.raw_path
