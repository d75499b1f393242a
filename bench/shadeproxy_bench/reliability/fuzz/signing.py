"""Signs the requests of the fuzz in each form that S3 knows, also with a wrong key or at a wrong time."""

import base64
import hashlib
import hmac
from random import Random
from urllib.parse import unquote

from shadeproxy.core.sigv4 import (
    UNSIGNED_PAYLOAD,
    Credentials,
    Scope,
    canonical_request,
    encode_path,
    encode_query,
    format_amz_date,
    sign_request,
    signature,
)
from shadeproxy_bench.reliability.fuzz.http import Request, quoted

NOW_S = 1_770_000_000.0
"""The time at which every run signs, so that a seed always makes the same bytes."""

REGION = "us-east-1"
GOOD = Credentials("fuzz-client", "fuzz/Secret+key=")
LIMITED = Credentials("fuzz-reader", "reader/secret")
TOKEN = Credentials("fuzz-temporary", "temporary/secret", "a/session+token==")
_WRONG = (Credentials("fuzz-client", "not the secret"), Credentials("nobody", "secret"))
_OFFSETS_S = (0,) * 30 + (-800, 800, -1000, 1000, -90_000)
AMZ_DATE = format_amz_date(NOW_S)


def choose(random: Random) -> Credentials:
    """Draw credentials. One draw in twenty returns wrong credentials."""
    if random.random() < 0.05:
        return random.choice(_WRONG)
    return random.choice((GOOD,) * 6 + (LIMITED, TOKEN))


def sign(request: Request, keys: Credentials, payload_hash: str, random: Random) -> None:
    """Sign the request in one of the forms that S3 knows. ``payload_hash``: the hash of the body that the
    request promises.
    """
    way = random.choice((_header, _header, _header, _presigned, _version_2, _version_2_presigned))
    if payload_hash.startswith("STREAMING-"):
        way = _header
    way(request, keys, payload_hash, random)


def seed_of(request: Request) -> str:
    """Return the signature in the Authorization header. The chain of a body's chunk signatures begins with
    it.
    """
    field = next((value for name, value in request.fields if name == b"Authorization"), b"")
    return field.rpartition(b"Signature=")[2].decode("latin-1")


def _text(request: Request) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in request.fields]


def _query(request: Request) -> str:
    return b"&".join(name + b"=" + value for name, value in request.query).decode("latin-1")


def _header(request: Request, keys: Credentials, payload_hash: str, random: Random) -> None:
    also = {"range", "content-type"} if random.random() < 0.3 else set()
    sign_header(request, keys, payload_hash, also=also, now_s=NOW_S + random.choice(_OFFSETS_S))


def sign_header(
    request: Request,
    keys: Credentials,
    payload_hash: str,
    *,
    also: set[str] | None = None,
    now_s: float = NOW_S,
) -> None:
    """Sign by version 4 in the Authorization header. ``also``: names of further fields to sign, in lower
    case.
    """
    names = {name.lower() for name, _ in _text(request)}
    must = {name for name in names if name.startswith(("host", "x-amz-", "content-md5"))} | (also or set())
    added = sign_request(
        method=request.method.decode("latin-1"),
        raw_path=request.path.decode("latin-1"),
        raw_query=_query(request),
        headers=[pair for pair in _text(request) if pair[0].lower() in must],
        payload_hash=payload_hash,
        credentials=keys,
        region=REGION,
        now_s=now_s,
    )
    for name, value in added:
        request.add(name, value)


def _presigned(request: Request, keys: Credentials, _: str, random: Random) -> None:
    amz_date = format_amz_date(NOW_S + random.choice(_OFFSETS_S))
    scope = Scope(amz_date[:8], REGION)
    names = sorted({name for name, _ in _lowered(request) if name == "host" or name.startswith("x-amz-")})
    request.parameter("X-Amz-Algorithm", "AWS4-HMAC-SHA256")
    request.parameter("X-Amz-Credential", f"{keys.access_key}/{scope}")
    request.parameter("X-Amz-Date", amz_date)
    request.parameter("X-Amz-Expires", str(random.choice((60, 900, 604_800))))
    request.parameter("X-Amz-SignedHeaders", ";".join(names))
    if keys.session_token:
        request.parameter("X-Amz-Security-Token", keys.session_token)
    fields = dict(_lowered(request))
    canonical = canonical_request(
        request.method.decode("latin-1"),
        encode_path(request.path.decode("latin-1")),
        encode_query(_query(request)),
        [(name, fields[name]) for name in names],
        fields.get("x-amz-content-sha256", UNSIGNED_PAYLOAD),
    )
    request.parameter("X-Amz-Signature", signature(keys.secret_key, scope, amz_date, canonical))


def _lowered(request: Request) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in _text(request)]


def _version_2(request: Request, keys: Credentials, _: str, random: Random) -> None:
    request.add("Date", "Mon, 02 Feb 2026 02:40:00 GMT" if random.random() < 0.9 else "yesterday")
    request.add("Authorization", f"AWS {keys.access_key}:{_version_2_digest(request, keys, 'Date')}")


def _version_2_presigned(request: Request, keys: Credentials, _: str, random: Random) -> None:
    expires = str(int(NOW_S) + random.choice((-100, 100, 10_000)))
    request.parameter("AWSAccessKeyId", keys.access_key)
    request.parameter("Expires", expires)
    request.query.append((b"Signature", quoted(_version_2_digest(request, keys, expires))))


def _version_2_digest(request: Request, keys: Credentials, date: str) -> str:
    fields = dict(_lowered(request))
    amz = "".join(f"{name}:{fields[name]}\n" for name in sorted(fields) if name.startswith("x-amz-"))
    kept = sorted(
        unquote(name.decode()) + (f"={unquote(value.decode())}" if value else "")
        for name, value in request.query
        if name in {b"acl", b"delete", b"partNumber", b"tagging", b"uploadId", b"uploads", b"versionId"}
    )
    resource = request.path.decode("latin-1") + (f"?{'&'.join(kept)}" if kept else "")
    text = (
        f"{request.method.decode('latin-1')}\n{fields.get('content-md5', '')}\n"
        f"{fields.get('content-type', '')}\n{fields.get('date', date)}\n{amz}{resource}"
    )
    return base64.b64encode(hmac.digest(keys.secret_key.encode(), text.encode(), hashlib.sha1)).decode()
