"""The answer to a cached GetObject or HeadObject: one pure function for every lane that answers hits.

It checks first the preconditions, then If-Range, then the range, as RFC 9110 section 13.2.2 and the S3
GetObject page say. It uses no body, no clock and no socket, so all lanes answer with the same bytes.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

from shadeproxy.core.conditions import FAILED_TEXT, Conditions, Verdict
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.ranges import content_range, parse_range
from shadeproxy.core.types import ENDLESS, Headers, ObjectMeta, Span, names_of
from shadeproxy.engine.base import NO_CONDITIONS

NO_BODY = Span(0, 0)
# Fields that a 304 repeats (RFC 9110 section 15.4.5), and Last-Modified, which S3 repeats too.
_NOT_MODIFIED_FIELDS = frozenset(
    {"cache-control", "content-location", "expires", "last-modified", "vary", "x-amz-version-id"}
)
_CONDITIONAL_FIELDS = frozenset(
    {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"}
)
_FRAMING_FIELDS = frozenset({"accept-ranges", "content-length", "content-range", "etag"})


class Answer(NamedTuple):
    """An answer to a read. ``headers``: all fields except date, request ids and x-shade-cache. ``body``: the
    span of the object that is sent.
    """

    status: int
    headers: Headers
    body: Span


def conditions_of(fields: Mapping[str, str]) -> Conditions:
    """Return the conditions of a request with ``fields``, whose names are in lower case."""
    if _CONDITIONAL_FIELDS.isdisjoint(fields):
        return NO_CONDITIONS
    return Conditions(
        if_match=fields.get("if-match"),
        if_none_match=fields.get("if-none-match"),
        if_modified_since=fields.get("if-modified-since"),
        if_unmodified_since=fields.get("if-unmodified-since"),
        if_range=fields.get("if-range"),
    )


def wants_checksums(fields: Mapping[str, str]) -> bool:
    """Return True if the client asks for the object's checksums (``x-amz-checksum-mode: ENABLED``)."""
    return fields.get("x-amz-checksum-mode", "").upper() == "ENABLED"


def answer_read(
    meta: ObjectMeta,
    *,
    method: str,
    range_field: str | None,
    conditions: Conditions,
    checksums: bool = False,
) -> Answer:
    """Answer ``method`` (GET or HEAD) for the version that ``meta`` describes, with 200, 206 or 304.

    A HEAD with a range gets the head of the same GET, as in S3. An object of unknown length is answered
    whole, without Content-Length. A 206 has no checksum fields, because they are those of the whole object;
    other answers have them only if ``checksums``. Raises OriginAnswer (412) and RangeNotSatisfiable (416).
    """
    if conditions is not NO_CONDITIONS:
        verdict = conditions.evaluate(meta)
        if verdict is Verdict.FAILED:
            raise OriginAnswer(412, "PreconditionFailed", FAILED_TEXT)
        if verdict is Verdict.NOT_MODIFIED:
            kept = tuple(field for field in meta.headers if field[0].lower() in _NOT_MODIFIED_FIELDS)
            return Answer(304, (*_etag(meta), *kept), NO_BODY)
        if not conditions.range_applies(meta):
            range_field = None
    if meta.size < 0:
        fields = compress(meta.headers, _shown(checksums, *names_of(meta.headers)))
        body = Span(0, ENDLESS) if method == "GET" else NO_BODY
        return Answer(200, (*fields, *_etag(meta)), body)
    wanted = None if range_field is None else parse_range(range_field)
    span = Span(0, meta.size) if wanted is None else wanted.resolve(meta.size)
    shown = _shown(checksums and wanted is None, *names_of(meta.headers))
    headers = list(compress(meta.headers, shown))
    etag = (("ETag", meta.etag),) if meta.etag else ()
    headers += [("Accept-Ranges", "bytes"), *etag, ("Content-Length", str(span.stop - span.start))]
    if wanted is not None:
        headers.append(("Content-Range", content_range(span, meta.size)))
    body = span if method == "GET" else NO_BODY
    return Answer(200 if wanted is None else 206, tuple(headers), body)


def _etag(meta: ObjectMeta) -> Headers:
    return (("ETag", meta.etag),) if meta.etag else ()


@lru_cache(maxsize=64)
def _shown(checksums: bool, *names: str) -> tuple[bool, ...]:
    """Return, for each field of an object, whether it is sent. The result is cached, because most objects of
    an origin have the same fields.
    """
    return tuple(
        name not in _FRAMING_FIELDS and (checksums or not name.startswith("x-amz-checksum-"))
        for name in map(str.lower, names)
    )
