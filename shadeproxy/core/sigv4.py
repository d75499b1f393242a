"""AWS Signature Version 4 as pure functions, used to check signatures (listener) and to sign requests
(origin).

Source: "Signature Version 4 signing process" and "Authenticating Requests: Using the Authorization Header" in
the S3 API reference. For S3 the path is encoded once and never normalised: dot segments, empty segments and
encoded slashes are signed as sent.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_UNRESERVED = "-_.~"
is_plain_path: Callable[[str], object] = re.compile(r"[A-Za-z0-9/._~-]*").fullmatch
"""Returns a true value for a path that needs neither decoding nor encoding, as most paths do not. ``quote``
would take three times as long to find that out.
"""
_SPACES = re.compile(r"[ \t]+")
_SHA256_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key with its secret. ``repr`` never shows the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a credential: the date as YYYYMMDD, the region, the service."""

    date: str
    region: str
    service: str = "s3"

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


@lru_cache(maxsize=256)
def signing_key(secret_key: str, scope: Scope) -> bytes:
    """Derive the signing key by four HMACs. A key is valid for a day, so keys are cached: a cached key takes
    2.7 us a request, a derived one 44 us.
    """
    key = ("AWS4" + secret_key).encode()
    for part in (scope.date, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def encode_path(raw_path: str) -> str:
    """Return the canonical URI of a path that was received: each octet is decoded once, then encoded once."""
    return raw_path if is_plain_path(raw_path) else _quote_path(unquote_to_bytes(raw_path))


def path_of_key(key: str) -> str:
    """Return a key as it stands in a canonical URI: each octet is encoded once, and slashes are kept."""
    return key if is_plain_path(key) else _quote_path(key)


def _quote_path(path: str | bytes) -> str:
    return quote(path, safe="/" + _UNRESERVED)


def encode_query(raw_query: str, *, without: frozenset[str] = frozenset()) -> str:
    """Return the canonical query string: its pairs are decoded, encoded once and sorted. Pairs whose name is
    in ``without`` are left out.
    """
    pairs = []
    for part in raw_query.split("&"):
        if not part:
            continue
        name, _, value = part.partition("=")
        decoded = unquote_to_bytes(name.replace("+", "%20"))
        if decoded.decode("latin-1") in without:
            continue
        value_bytes = unquote_to_bytes(value.replace("+", "%20"))
        pairs.append((quote(decoded, safe=_UNRESERVED), quote(value_bytes, safe=_UNRESERVED)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def canonical_request(
    method: str,
    canonical_path: str,
    canonical_query: str,
    headers: Iterable[tuple[str, str]],
    payload_hash: str,
) -> str:
    """Return the canonical request. ``headers``: only the signed fields, sorted, with names in lower case.

    The caller joins the values of a repeated name with ",". This function reduces runs of spaces to one.
    """
    fields = [(name, _folded(value)) for name, value in headers]
    lines = "".join(f"{name}:{value}\n" for name, value in fields)
    signed = ";".join(name for name, _ in fields)
    return f"{method}\n{canonical_path}\n{canonical_query}\n{lines}\n{signed}\n{payload_hash}"


def _folded(value: str) -> str:
    """Remove spaces and tabs at both ends, and reduce runs of them to one space. Other white space stays."""
    value = value.strip(" \t")
    return _SPACES.sub(" ", value) if "  " in value or "\t" in value else value


def signature(secret_key: str, scope: Scope, amz_date: str, canonical: str) -> str:
    """Return the signature of a canonical request, in hexadecimal. ``amz_date``: its time,
    YYYYMMDDTHHMMSSZ.
    """
    return sign_canonical(signing_key(secret_key, scope), str(scope), amz_date, canonical)


def sign_canonical(key: bytes, scope: str, amz_date: str, canonical: str) -> str:
    """Return the same as ``signature``, from a signing key and the text of its scope."""
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"{ALGORITHM}\n{amz_date}\n{scope}\n{digest}"
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


class Signer:
    """Signs many requests with the same derived key and scope. It takes bytes and returns text.

    The method is HMAC (RFC 2104). The part of the hash that depends only on the key is computed once, and the
    part that depends on the date once a second. So a signature takes half the time of ``hmac.digest``, which
    sets up an OpenSSL context in each call.
    """

    def __init__(self, key: bytes, scope: str) -> None:
        block = key.ljust(_SHA256_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self.outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
        """The outer hash, as far as it is the same for all requests. To sign, copy it and add the inner
        digest.
        """
        self._scope = scope.encode()
        self._amz_date = b""
        self._begun = self._inner

    def sign(self, amz_date: bytes, canonical: bytes) -> str:
        """Return the signature of a canonical request at ``amz_date``, in hexadecimal."""
        if amz_date != self._amz_date:
            self._amz_date, self._begun = amz_date, self.begin(amz_date)
        inner, outer = self._begun.copy(), self.outer.copy()
        inner.update(hashlib.sha256(canonical).hexdigest().encode())
        outer.update(inner.digest())
        return outer.hexdigest()

    def begin(self, amz_date: bytes) -> "hashlib._Hash":
        """Return the inner hash as far as it is the same for all requests at ``amz_date``."""
        begun = self._inner.copy()
        begun.update(b"%b\n%b\n%b\n" % (ALGORITHM.encode(), amz_date, self._scope))
        return begun


def format_amz_date(now_s: float) -> str:
    """Format a Unix time as YYYYMMDDTHHMMSSZ."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def sign_request(
    *,
    method: str,
    raw_path: str,
    raw_query: str,
    headers: Iterable[tuple[str, str]],
    payload_hash: str,
    credentials: Credentials,
    region: str,
    now_s: float,
) -> list[tuple[str, str]]:
    """Return the fields that sign the request: x-amz-date, x-amz-content-sha256, Authorization and, if the
    credentials have one, the session token.

    ``headers``: the fields to sign, among them ``host``. Leave out fields that a proxy on the way may change
    (user-agent, connection ...).
    """
    amz_date = format_amz_date(now_s)
    added = [("x-amz-date", amz_date), ("x-amz-content-sha256", payload_hash)]
    if credentials.session_token:
        added.append(("x-amz-security-token", credentials.session_token))
    joined: dict[str, str] = {}
    for name, value in [*headers, *added]:
        lowered = name.lower()
        joined[lowered] = f"{joined[lowered]},{value}" if lowered in joined else value
    signed = sorted(joined.items())
    scope = Scope(amz_date[:8], region)
    canonical = canonical_request(
        method, encode_path(raw_path), encode_query(raw_query), signed, payload_hash
    )
    value = signature(credentials.secret_key, scope, amz_date, canonical)
    names = ";".join(name for name, _ in signed)
    credential = f"{credentials.access_key}/{scope}"
    field_value = f"{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={value}"
    added.append(("Authorization", field_value))
    return added
