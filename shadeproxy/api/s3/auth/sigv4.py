"""Verifies AWS Signature Version 4, in an Authorization header or in a presigned URL.

`parse_header` and `parse_presigned` return a Claim, which may be false. `verify` checks it. Source:
"Authenticating Requests (AWS Signature Version 4)" in the S3 API reference.
"""

import hmac
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from shadeproxy.api.s3.auth.clients import ChunkSeed
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.dates import parse_http_date
from shadeproxy.core.errors import (
    AccessDenied,
    ClockSkew,
    InvalidRequest,
    MalformedAuth,
    MalformedQueryAuth,
    RequestExpired,
    SignatureMismatch,
)
from shadeproxy.core.sigv4 import (
    ALGORITHM,
    UNSIGNED_PAYLOAD,
    Scope,
    canonical_request,
    encode_path,
    encode_query,
    format_amz_date,
    signature,
    signing_key,
)

MAX_SKEW_S = 15 * 60
_MAX_EXPIRES_S = 7 * 24 * 3600
_CREDENTIAL = re.compile(r"(?P<key>.+)/(?P<date>[0-9]{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")
_EXPIRES = re.compile(r"[0-9]{1,6}")
_AMZ_DATE = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_PAYLOAD = re.compile(r"[0-9a-fA-F]{64}|UNSIGNED-PAYLOAD|STREAMING-[A-Z0-9-]{1,60}")
_WITHOUT_SIGNATURE = frozenset({"X-Amz-Signature"})
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Claim:
    """The signature data of a request, not verified yet. ``expires_s``: seconds for which a presigned URL is
    valid.
    """

    access_key: str
    scope: Scope
    amz_date: str
    signed: tuple[str, ...]
    signature: str = field(repr=False)
    payload_hash: str
    expires_s: int | None = None
    token: str | None = field(default=None, repr=False)


def parse_header(request: S3Request) -> Claim:
    """Parse the claim of ``Authorization: AWS4-HMAC-SHA256 ...``. Raises MalformedAuth, InvalidRequest."""
    parts: dict[str, str] = {}
    for part in request.fields["authorization"].removeprefix(ALGORITHM).split(","):
        name, separator, value = part.strip().partition("=")
        if not separator or name in parts:
            raise MalformedAuth("The Authorization header cannot be understood")
        parts[name] = value
    if parts.keys() != {"Credential", "SignedHeaders", "Signature"}:
        raise MalformedAuth("The Authorization header needs Credential, SignedHeaders and Signature")
    payload_hash = request.fields.get("x-amz-content-sha256")
    if payload_hash is None:
        raise InvalidRequest("Missing required header for this request: x-amz-content-sha256")
    return _claim(
        parts["Credential"],
        _header_date(request),
        parts["SignedHeaders"],
        parts["Signature"],
        payload_hash,
        token=request.fields.get("x-amz-security-token"),
    )


def parse_presigned(request: S3Request) -> Claim:
    """Parse the claim of a presigned URL. Raises MalformedQueryAuth."""
    query = request.query
    if query.get("X-Amz-Algorithm") != ALGORITHM:
        raise MalformedQueryAuth(f"X-Amz-Algorithm must be {ALGORITHM}")
    missing = {"X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders"} - query.keys()
    if missing:
        raise MalformedQueryAuth(f"The presigned URL lacks {', '.join(sorted(missing))}")
    expires = query["X-Amz-Expires"]
    if not _EXPIRES.fullmatch(expires) or not 0 < int(expires) <= _MAX_EXPIRES_S:
        raise MalformedQueryAuth(f"X-Amz-Expires must be between 1 and {_MAX_EXPIRES_S} seconds")
    payload_hash = request.fields.get("x-amz-content-sha256", query.get("X-Amz-Content-Sha256"))
    try:
        return _claim(
            query["X-Amz-Credential"],
            query["X-Amz-Date"],
            query["X-Amz-SignedHeaders"],
            query["X-Amz-Signature"],
            payload_hash or UNSIGNED_PAYLOAD,
            expires_s=int(expires),
            token=query.get("X-Amz-Security-Token"),
        )
    except MalformedAuth as error:
        raise MalformedQueryAuth(str(error), hint=error.hint) from None


def verify(claim: Claim, request: S3Request, secret_key: str, *, now_s: float) -> ChunkSeed:
    """Check that the holder of ``secret_key`` signed ``request``, and that the signature is valid now.

    Raises SignatureMismatch, the errors of ``check_time``, and AccessDenied if a field that must be signed is
    not. The signatures are compared in constant time, so that the time tells nothing about the right
    signature.
    """
    _check_signed_fields(claim, request)
    canonical = canonical_request(
        request.method,
        encode_path(request.wire_path),
        encode_query(request.raw_query, without=_NOTHING if claim.expires_s is None else _WITHOUT_SIGNATURE),
        [(name, request.fields[name]) for name in claim.signed],
        claim.payload_hash,
    )
    computed = signature(secret_key, claim.scope, claim.amz_date, canonical)
    if not hmac.compare_digest(computed, claim.signature):
        raise SignatureMismatch(
            "The request signature we calculated does not match the signature you provided",
            hint="check the secret key and the signing method",
        )
    check_time(claim.amz_date, now_s, expires_s=claim.expires_s)
    return ChunkSeed(signing_key(secret_key, claim.scope), claim.amz_date, str(claim.scope), claim.signature)


def _claim(
    credential: str,
    amz_date: str,
    signed: str,
    signature_hex: str,
    payload_hash: str,
    *,
    expires_s: int | None = None,
    token: str | None = None,
) -> Claim:
    match = _CREDENTIAL.fullmatch(credential)
    if match is None:
        raise MalformedAuth(
            "The credential cannot be understood", hint="it must be KEY/YYYYMMDD/REGION/s3/aws4_request"
        )
    if match["service"] != "s3":
        raise MalformedAuth(f"The credential is for the service {match['service']!r}, not 's3'")
    if not _AMZ_DATE.fullmatch(amz_date):
        raise MalformedAuth("The signing date is not of the form YYYYMMDDTHHMMSSZ")
    if match["date"] != amz_date[:8]:
        raise MalformedAuth("The date of the credential is not the date of the request")
    names = tuple(signed.split(";"))
    if list(names) != sorted({name.lower() for name in names}):
        raise MalformedAuth("SignedHeaders must be lower-case, sorted and without repetition")
    if not _SIGNATURE.fullmatch(signature_hex):
        raise SignatureMismatch("The signature is not 64 hexadecimal digits")
    if not _PAYLOAD.fullmatch(payload_hash):
        raise InvalidRequest(
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-... or a valid sha256 value"
        )
    scope = Scope(match["date"], match["region"])
    return Claim(
        match["key"], scope, amz_date, names, signature_hex, payload_hash, expires_s=expires_s, token=token
    )


def _check_signed_fields(claim: Claim, request: S3Request) -> None:
    required = {name for name in request.fields if name.startswith("x-amz-")} | {"host"}
    if unsigned := required - set(claim.signed):
        raise AccessDenied(
            f"There were headers present in the request which were not signed: {', '.join(sorted(unsigned))}"
        )
    if absent := [name for name in claim.signed if name not in request.fields]:
        raise SignatureMismatch(f"Signed headers are missing from the request: {', '.join(absent)}")


def well_formed(amz_date: str, signature_hex: str) -> bool:
    """Return True if the texts have the form of a signing date and of a signature."""
    return _AMZ_DATE.fullmatch(amz_date) is not None and _SIGNATURE.fullmatch(signature_hex) is not None


def check_time(amz_date: str, now_s: float, *, expires_s: int | None = None) -> None:
    """Raise ClockSkew, RequestExpired or AccessDenied unless a signature made at ``amz_date`` is valid now.
    Raise MalformedAuth if this date does not exist, or MalformedQueryAuth if it is that of a presigned URL.
    """
    try:
        signed_s = unix_time(amz_date)
    except MalformedAuth as error:
        raise error if expires_s is None else MalformedQueryAuth(str(error)) from None
    if expires_s is None:
        if abs(now_s - signed_s) > MAX_SKEW_S:
            raise ClockSkew(
                "The difference between the request time and the current time is too large",
                hint="set the clock of the client",
            )
    elif now_s > signed_s + expires_s:
        raise RequestExpired("Request has expired")
    elif signed_s > now_s + MAX_SKEW_S:
        raise AccessDenied("Request is not yet valid")


@lru_cache(maxsize=1024)
def unix_time(amz_date: str) -> float:
    """Return the Unix time of a value of x-amz-date, such as 20260131T235959Z. Raises MalformedAuth."""
    # The result is cached, because many requests are signed in the same second, and strptime takes longer
    # than the HMAC.
    try:
        return datetime.strptime(amz_date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise MalformedAuth("The signing date does not exist") from None


def _header_date(request: S3Request) -> str:
    if (amz_date := request.fields.get("x-amz-date")) is not None:
        return amz_date
    date = parse_http_date(request.fields.get("date"))
    if date is None:
        raise MalformedAuth("The request needs an x-amz-date or Date header")
    return format_amz_date(date.timestamp())
