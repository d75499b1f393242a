"""Templates of header blocks that clients send again and again, with a few changed values.

A template is made of the block of an identified plain GET. It is fixed text, with holes for the values that
change (time of signing, signature, invocation id). Laws: the signature of every request is verified over the
request's own bytes, with the functions of core/sigv4.py. A hole accepts no character that can end a line. No
template is made of a block with an unusual field.
"""

import hmac
import re
from dataclasses import replace
from typing import NamedTuple

from shadeproxy.api.s3.auth import sigv4
from shadeproxy.api.s3.auth.clients import ALL_RIGHTS, Identity
from shadeproxy.api.s3.exchange import Call
from shadeproxy.api.s3.head import Head
from shadeproxy.api.s3.semantics import wants_checksums
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.sigv4 import ALGORITHM, EMPTY_SHA256, UNSIGNED_PAYLOAD, Signer, canonical_request
from shadeproxy.core.tracing import INSTANCE_FIELD, JOB_FIELD, ORIGIN_FIELD, PEER_FIELD
from shadeproxy.core.types import JobContext

# A template may have a session token, because the token is part of the fixed text: a block fits only if it
# has the token that ``identify`` accepted.
PLAIN_FIELDS = frozenset(
    {
        "accept",
        "accept-encoding",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "connection",
        "host",
        "if-match",
        "range",
        "user-agent",
        "x-amz-checksum-mode",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
        INSTANCE_FIELD,
        JOB_FIELD,
        ORIGIN_FIELD,
        PEER_FIELD,
    }
)
"""Fields that do not change the meaning of a GET, or change only what its plan records."""
CHANGING = frozenset({"authorization", "amz-sdk-invocation-id", ORIGIN_FIELD})
"""Fields that have a new value in every request."""
_MUST_BE_SIGNED = frozenset({"host", "x-amz-content-sha256", "x-amz-date"})
_PAYLOADS = frozenset({EMPTY_SHA256, UNSIGNED_PAYLOAD})
_TIME = re.compile(rb"(?:\r\n|^)x-amz-date: \d{8}(T\d{6}Z)\r\n", re.IGNORECASE)
_SIGNATURE = re.compile(rb"Signature=([0-9a-f]{64})\r\n")
# The id of this one request, made by the client or by a ShadeProxy between the client and this proxy.
_INVOCATION = re.compile(
    rb"(?:\r\n|^)(?:amz-sdk-invocation-id|x-shade-request-id): ([0-9A-Za-z-]{1,64})\r\n", re.IGNORECASE
)
_MOST_PER_LENGTH = 8
_MOST_LENGTHS = 256
# In a canonical request these marks stand for the real values. No client sends these characters.
_PATH_MARK, _TIME_MARK, _RANGE_MARK, _IF_MATCH_MARK = "\x01", "\x02", "\x03", "\x04"
_ANY_MARK = re.compile("[\x01-\x04]")
# Signed names are sorted, so "if-match" comes before "range", and "range" before "x-amz-date".
_RANGE_SIGNED, _IF_MATCH_SIGNED = 1, 2
_ORDERS = {
    _PATH_MARK + _TIME_MARK: 0,
    _PATH_MARK + _RANGE_MARK + _TIME_MARK: _RANGE_SIGNED,
    _PATH_MARK + _IF_MATCH_MARK + _TIME_MARK: _IF_MATCH_SIGNED,
    _PATH_MARK + _IF_MATCH_MARK + _RANGE_MARK + _TIME_MARK: _RANGE_SIGNED | _IF_MATCH_SIGNED,
}


class CutField(NamedTuple):
    """A header field that is cut out of a block. ``plain``: the field is cut out only if its value has this
    form.
    """

    names: tuple[bytes, bytes]
    plain: re.Pattern[str]


RANGE = CutField((b"Range: ", b"range: "), re.compile(r"bytes=[0-9-]{2,41}"))
# One strong ETag in quotes. A value with a comma, a space or a quote inside may mean something else.
IF_MATCH = CutField((b"If-Match: ", b"if-match: "), re.compile(r'"[!#-+\--~]{1,128}"'))


class Plan(NamedTuple):
    """The meaning of a header block: a plain GET for ``job`` by a client that may read everything.

    ``checksums``: True if the client asks for the checksums of whole objects (``wants_checksums``).
    """

    job: JobContext | None
    identity: Identity
    checksums: bool


class _Signing(NamedTuple):
    """Verifies the blocks that one client signs on one day. ``parts``: the fixed texts of the canonical
    request. Between them belong the path, then If-Match and Range if they are signed, then the time.
    ``signed``: the sum of ``_RANGE_SIGNED`` if Range is signed and ``_IF_MATCH_SIGNED`` if If-Match is.
    """

    signer: Signer
    parts: tuple[bytes, ...]
    signed: int


class _Template(NamedTuple):
    """A template. ``fixed``: the unchanging parts, each with its start. ``time``, ``signature``,
    ``invocation``: the start and end of these holes; (0, 0) if there is no such hole. ``date``: the day of
    the signature; empty for an unsigned block. ``signing``: verifies the signature; None if the signer counts
    as anonymous, so that only the form of the signature is checked.
    """

    fixed: tuple[tuple[int, bytes], ...]
    time: tuple[int, int]
    signature: tuple[int, int]
    invocation: tuple[int, int]
    date: bytes
    signing: _Signing | None
    plan: Plan


def cut_field(block: bytes, field: CutField) -> tuple[bytes, str] | None:
    """Return ``block`` without ``field``, and the field's value. Return None if it has no such field in plain
    form.
    """
    for name in field.names:
        # The field may also be the first of the block. The whole line is cut out, with its line break.
        start = 0 if block.startswith(name) else block.find(b"\r\n" + name) + 2
        if start != 1:
            stop = block.index(b"\r\n", start) + 2
            value = block[start + len(name) : stop - 2].decode("latin-1")
            return (block[:start] + block[stop:], value) if field.plain.fullmatch(value) else None
    return None


def plain_plan(head: Head, call: Call) -> Plan | None:
    """Return the plan of an identified read; None if the request is no plain GET."""
    # The target must be the path in path style and nothing else. A presigned URL has its signature in the
    # query, not in the header block, and a target in virtual-host style does not name the bucket.
    if head.method != "GET" or head.target != call.request.raw_path:
        return None
    names = [name.lower() for name, _ in head.fields]
    if not head.keep_alive or len(set(names)) < len(names) or not PLAIN_FIELDS.issuperset(names):
        return None
    if call.identity.rights != ALL_RIGHTS:
        return None
    if "if-match" in names and not IF_MATCH.plain.fullmatch(call.request.fields["if-match"]):
        return None
    identity = replace(call.identity, seed=None)
    return Plan(call.request.job, identity, wants_checksums(call.request.fields))


class Templates:
    """The templates of a listener's clients. ``by_length``: templates by the length of the blocks that they
    fit.
    """

    __slots__ = ("by_length",)

    def __init__(self) -> None:
        self.by_length: dict[int, list[_Template]] = {}

    def learn(self, block: bytes, call: Call, plan: Plan) -> None:
        """Make a template of a block of an identified plain GET. Range and If-Match must be cut out of the
        block.
        """
        template = _template(block, call, plan)
        if template is None:
            return
        if len(self.by_length) >= _MOST_LENGTHS:
            self.by_length.clear()
        alike = self.by_length.setdefault(len(block), [])
        alike.insert(0, template)
        del alike[_MOST_PER_LENGTH:]

    def plan(
        self, block: bytes, canonical_path: bytes, range_value: str, now_s: float, if_match: str = ""
    ) -> Plan | None:
        """Return the plan of a GET of ``canonical_path`` with the header block ``block``.

        ``block`` includes the empty line, but not Range and If-Match. Their values are ``range_value`` and
        ``if_match``, or "" if the request has none. Return None if the block is not plain, not known, or
        wrongly signed. ``identify`` then finds out the cause.
        """
        for template in self.by_length.get(len(block), ()):
            for start, text in template.fixed:
                if not block.startswith(text, start):
                    break
            else:
                values = (if_match.encode(), range_value.encode())
                return template.plan if _holds(template, block, canonical_path, values, now_s) else None
        return None


def _holds(template: _Template, block: bytes, path: bytes, values: tuple[bytes, bytes], now_s: float) -> bool:
    """Return True if ``block``, which has the template's fixed text, has valid holes and a valid signature.
    ``values``: the values of If-Match and Range.
    """
    _, (time_start, time_stop), (start, stop), invocation, date, signing, _ = template
    if invocation[1] and not block[slice(*invocation)].translate(None, b"-").isalnum():
        return False
    if not date:
        return True
    amz_date, signature = date + block[time_start:time_stop], block[start:stop]
    # Decoding as Latin-1 accepts every byte. Invalid times and signatures are refused later.
    if signing is None:
        return sigv4.well_formed(amz_date.decode("latin-1"), signature.decode("latin-1"))
    signer, parts, signed = signing
    given = [
        value
        for number, value in zip((_IF_MATCH_SIGNED, _RANGE_SIGNED), values, strict=True)
        if signed & number
    ]
    holes = (path, *given, amz_date, b"")
    canonical = b"".join([piece for pair in zip(parts, holes, strict=True) for piece in pair])
    # A signed field must be present in the request.
    if not all(given) or not hmac.compare_digest(signer.sign(amz_date, canonical).encode(), signature):
        return False
    try:
        sigv4.check_time(amz_date.decode("latin-1"), now_s)
    except ShadeProxyError:
        return False
    return True


def _template(block: bytes, call: Call, plan: Plan) -> _Template | None:
    """Return a template of the block of an identified GET; None if the block is signed in an unusual way."""
    invocation = _hole(_INVOCATION, block)
    if "authorization" not in call.request.fields:
        return _Template(_between(block, invocation), (0, 0), (0, 0), invocation, b"", None, plan)
    if not call.request.fields["authorization"].startswith(f"{ALGORITHM} "):
        return None
    claim = sigv4.parse_header(call.request)
    time, signature = _hole(_TIME, block), _hole(_SIGNATURE, block)
    usual = _MUST_BE_SIGNED.issubset(claim.signed) and claim.payload_hash in _PAYLOADS
    if not usual or not time[1] or not signature[1] or CHANGING & set(claim.signed):
        return None
    signing = None
    if call.identity.seed is not None:
        marks = {"x-amz-date": _TIME_MARK, "range": _RANGE_MARK, "if-match": _IF_MATCH_MARK}
        signed = [(name, marks.get(name, call.request.fields[name])) for name in claim.signed]
        canonical = canonical_request("GET", _PATH_MARK, "", signed, claim.payload_hash)
        which = _ORDERS.get("".join(_ANY_MARK.findall(canonical)))
        if which is None:
            return None
        parts = tuple(part.encode() for part in _ANY_MARK.split(canonical))
        signing = _Signing(Signer(call.identity.seed.signing_key, call.identity.seed.scope), parts, which)
    fixed = _between(block, invocation, time, signature)
    return _Template(fixed, time, signature, invocation, claim.scope.date.encode(), signing, plan)


def _hole(pattern: re.Pattern[bytes], block: bytes) -> tuple[int, int]:
    found = pattern.search(block)
    return (0, 0) if found is None else found.span(1)


def _between(block: bytes, *holes: tuple[int, int]) -> tuple[tuple[int, bytes], ...]:
    fixed, start = [], 0
    for first, stop in sorted(hole for hole in holes if hole[1]):
        fixed.append((start, block[start:first]))
        start = stop
    fixed.append((start, block[start:]))
    return tuple(fixed)
