"""Header blocks of plain GETs that stock clients send again and again, signed anew each time.

Laws: a signature is verified for every request, with the functions of core/sigv4.py, over the bytes of that
request. What is remembered is what a verified request showed of its client and its day: which key, scope
and fields its Authorization names. A block with anything beyond the plainest fields is not plain.
"""

import hmac
from typing import NamedTuple

from shadeproxy.api.s3.auth import sigv4
from shadeproxy.api.s3.auth.clients import ALL_RIGHTS, ChunkSeed
from shadeproxy.api.s3.exchange import Call
from shadeproxy.api.s3.head import Head
from shadeproxy.api.s3.memo import Memo
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.sigv4 import (
    EMPTY_SHA256,
    UNSIGNED_PAYLOAD,
    canonical_request,
    encode_path,
    sign_canonical,
)
from shadeproxy.core.types import JobContext

# Fields that change nothing of what a GET means, and their values that can be remembered.
_STABLE = frozenset(
    {
        "accept",
        "accept-encoding",
        "amz-sdk-request",
        "connection",
        "host",
        "user-agent",
        "x-amz-content-sha256",
        "x-amz-security-token",
    }
)
_CHANGING = frozenset({"amz-sdk-invocation-id", "authorization", "x-amz-date", "x-shade-job"})
_PLAIN = _STABLE | _CHANGING
_MUST_BE_SIGNED = frozenset({"host", "x-amz-content-sha256", "x-amz-date"})
_PAYLOADS = frozenset({EMPTY_SHA256, UNSIGNED_PAYLOAD})
_MOST_SCOPES = 1024
_MOST_LINES = 1024
_MOST_LINE_CHARS = 2048


class Plan(NamedTuple):
    """What a header block stands for: a plain GET by somebody who may read everything, for ``job``."""

    job: JobContext | None


class Scope(NamedTuple):
    """What an Authorization says before its signature, of a client that ``identify`` let in.

    ``seed`` None: its signature is not looked at, because it counts as anonymous.
    """

    seed: ChunkSeed | None
    names: tuple[str, ...]
    date: str
    token: str | None


def plain_plan(head: Head, call: Call) -> Plan | None:
    """The plan of an identified GET, or None when it is more than plain."""
    names = [name.lower() for name, _ in head.fields]
    if not head.keep_alive or len(set(names)) < len(names) or not _PLAIN.issuperset(names):
        return None
    if call.request.wire_path != call.request.raw_path:
        return None  # virtual-host style: the target alone does not name the object
    return Plan(call.request.job) if call.identity.rights == ALL_RIGHTS else None


_ANYBODY = Plan(None)


class SignedHeads:
    """Recognises blocks of clients that signed a plain GET before."""

    def __init__(self) -> None:
        self._scopes: Memo[str, Scope] = Memo(_MOST_SCOPES)
        self._lines: Memo[str, tuple[str, str]] = Memo(_MOST_LINES)

    def canonical_path(self, request: S3Request) -> str:
        """What the signature covers of the request's path."""
        return encode_path(request.wire_path)

    def learn(self, call: Call, plan: Plan) -> None:
        """Remember who signed a plain GET that was identified. Nothing of a job is remembered."""
        request = call.request
        claim = sigv4.parse_header(request)
        if plan.job is not None or not _MUST_BE_SIGNED.issubset(claim.signed):
            return
        prefix = request.fields["authorization"].rpartition("Signature=")[0]
        self._scopes.put(prefix, Scope(call.identity.seed, claim.signed, claim.scope.date, claim.token))
        for name, value in request.headers:
            if name.lower() in _STABLE and len(value) <= _MOST_LINE_CHARS:
                self._lines.put(f"{name}: {value}", (name.lower(), value))

    def plan(self, block: bytes, canonical_path: str, now_s: float) -> Plan | None:
        """The plan of a GET of ``canonical_path`` with the header block ``block``, its empty line included.

        None: not plain, not known, or not signed right, which is for ``identify`` to tell apart.
        """
        fields = self._fields(block)
        if fields is None:
            return None
        prefix, _, signature = fields.get("authorization", "").rpartition("Signature=")
        scope = self._scopes.get(prefix)
        amz_date = fields.get("x-amz-date", "")
        if (
            scope is None
            or not amz_date.startswith(scope.date)
            or fields.get("x-amz-content-sha256") not in _PAYLOADS
            or fields.get("x-amz-security-token") != scope.token
        ):
            return None
        if scope.seed is None:
            return _ANYBODY if sigv4.well_formed(amz_date, signature) else None
        return (
            _ANYBODY
            if _verifies(scope, scope.seed, fields, canonical_path, signature=signature, now_s=now_s)
            else None
        )

    def _fields(self, block: bytes) -> dict[str, str] | None:
        """The fields of a plain block, or None."""
        try:
            text = block.decode("ascii")
        except UnicodeDecodeError:
            return None
        lines = text.split("\r\n")
        fields: dict[str, str] = {}
        for line in lines[:-2]:
            field = self._lines.get(line)
            if field is None:
                name, _, value = line.partition(": ")
                lowered = name.lower()
                if lowered not in _CHANGING or lowered == "x-shade-job" or not line.isprintable():
                    return None
                field = (lowered, value)
            fields[field[0]] = field[1]
        return fields if len(fields) == len(lines) - 2 else None


def _verifies(
    scope: Scope,
    seed: ChunkSeed,
    fields: dict[str, str],
    canonical_path: str,
    *,
    signature: str,
    now_s: float,
) -> bool:
    amz_date, payload = fields["x-amz-date"], fields["x-amz-content-sha256"]
    try:
        signed = [(name, fields[name]) for name in scope.names]
        canonical = canonical_request("GET", canonical_path, "", signed, payload)
        computed = sign_canonical(seed.signing_key, seed.scope, amz_date, canonical)
        if not hmac.compare_digest(computed, signature):
            return False
        sigv4.check_time(amz_date, now_s)
    except (KeyError, ShadeProxyError):
        return False
    return True
