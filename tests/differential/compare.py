"""Comparison of two answers, and the required answer to a read if the origin differs from the standard."""

from dataclasses import replace

from defusedxml.ElementTree import ParseError, fromstring

from .corpus import Stored
from .differences import ERROR_FIELDS, IGNORED_FIELDS
from .oracle import CONDITIONAL, Outcome, outcome
from .wire import Answer, Peer, Request

_REPEATED_BY_304 = {"cache-control", "content-location", "etag", "expires", "last-modified", "vary"}
BYPASSING = ("response-", "versionId", "partNumber")

Comparable = tuple[int, list[tuple[str, str]], bytes | str]


def comparable(answer: Answer) -> Comparable:
    """Return the parts of an answer that are compared: status, fields in order, and body. For an error, the
    Code replaces the body.
    """
    hidden = IGNORED_FIELDS.keys() | (ERROR_FIELDS.keys() if answer.status >= 400 else set())
    fields = sorted((name, value) for name, value in answer.fields if name not in hidden)
    return answer.status, fields, answer.body if answer.status < 400 else error_code(answer.body)


def error_code(body: bytes) -> str:
    """Return the Code of an error document, or "" for an empty body."""
    if not body:
        return ""
    try:
        return fromstring(body).findtext("{*}Code") or ""
    except ParseError:
        return repr(body)


def expected_of_read(origin: Peer, request: Request, stored: Stored) -> Comparable:
    """Return the answer that the proxy must give to a GetObject or HeadObject of ``stored``."""
    query = request.target.partition("?")[2]
    if any(part.startswith(BYPASSING) for part in query.split("&")):
        return comparable(origin.send(request))
    due = outcome(request, stored)
    return _without_checksums(_expected(origin, request, stored, due))


def _without_checksums(expected: Comparable) -> Comparable:
    status, fields, body = expected
    if status != 206:
        return expected
    return status, [pair for pair in fields if not pair[0].startswith("x-amz-checksum-")], body


def _expected(origin: Peer, request: Request, stored: Stored, due: Outcome) -> Comparable:
    own = origin.send(request)
    # RGW sends Content-Range in a 200 if the requested range is invalid.
    ignored = due.range is None and any(name == "Range" for name, _ in request.fields)
    if due.status == own.status and due.status < 300 and not ignored:
        return comparable(own)
    plain = origin.send(_unconditional(request, due))
    if due.status < 300:
        return comparable(plain)
    return _without_body(request, due, plain, len(stored.body))


def _without_body(request: Request, due: Outcome, plain: Answer, size: int) -> Comparable:
    """Return the required 304, 412 or 416. ``plain`` is the answer to the same request without conditions and
    range.
    """
    assert plain.status == 200, plain
    if due.status == 304:
        repeated = [pair for pair in comparable(plain)[1] if pair[0] in _REPEATED_BY_304]
        return 304, repeated, b""
    fields = [("content-range", f"bytes */{size}")] if due.status == 416 else []
    code = {412: "PreconditionFailed", 416: "InvalidRange"}[due.status]
    return due.status, fields, code if request.method == "GET" else ""


def _unconditional(request: Request, due: Outcome) -> Request:
    kept = [pair for pair in request.fields if pair[0].lower() not in CONDITIONAL | {"range"}]
    if due.range is not None:
        kept.append(("Range", due.range))
    return replace(request, fields=tuple(kept))


def assert_same(request: Request, expected: Comparable, answer: Answer, when: str) -> None:
    """Raise AssertionError with both answers if they differ."""
    given = comparable(answer)
    if expected == given:
        return
    asked = "\n".join([f"{request.method} {request.target}", *(f"    {k}: {v}" for k, v in request.fields)])
    raise AssertionError(f"{when}: {asked}\n{_shown('expected', expected)}\n{_shown('proxy', given)}")


def _shown(name: str, one: Comparable) -> str:
    status, fields, body = one
    text = repr(body) if len(body) < 400 else f"{len(body)} bytes"
    return "\n".join([f"{name}: {status} {text}", *(f"    {key}: {value}" for key, value in fields)])
