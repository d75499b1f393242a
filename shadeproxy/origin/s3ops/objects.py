"""Operations on one object (get, head, put, delete, copy), and DeleteObjects.

Source: the API page of each operation. If metadata cannot be kept, the request is refused (NotSupported).
Metadata are never dropped silently.
"""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from shadeproxy.core.conditions import Conditions, Verdict
from shadeproxy.core.dates import parse_http_date
from shadeproxy.core.errors import NotSupported, OriginAnswer, RangeNotSatisfiable
from shadeproxy.core.ranges import RangeSpec, content_range, parse_range
from shadeproxy.core.types import Headers, ObjectMeta, ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest, ForwardResponse
from shadeproxy.origin.s3ops.answers import document, element, empty, iso_date, parse_xml, read_body, text
from shadeproxy.origin.s3ops.checksums import Promises
from shadeproxy.origin.s3ops.copy_source import parse_copy_source
from shadeproxy.origin.s3ops.metadata import kept_headers
from shadeproxy.origin.s3ops.query import bounded_int, header, parse_query
from shadeproxy.origin.s3ops.spans import invalid_range, without_checksums
from shadeproxy.origin.s3ops.store import (
    RESERVED,
    Draft,
    Store,
    Stored,
    WriteCondition,
    precondition_failed,
)

MAX_DELETED_KEYS = 1000
MAX_PARTS = 10_000
_OVERRIDES = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@asynccontextmanager
async def get_object(store: Store, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
    """Answer GetObject or HeadObject. Preconditions, and one range or one part number, are obeyed. The answer
    to a HEAD has an empty body.
    """
    async with store.read(request.ref) as stored:
        meta = stored.meta
        conditions = _conditions(request)
        verdict = conditions.evaluate(meta)
        if verdict is Verdict.FAILED:
            raise precondition_failed()
        if verdict is Verdict.NOT_MODIFIED:
            raise OriginAnswer(304, "NotModified", headers=(("ETag", meta.etag), *_dates(meta)))
        wanted = parse_range(header(request, "range")) if conditions.range_applies(meta) else None
        query = parse_query(request.raw_query)
        if "partNumber" in query:
            wanted = _part(query, wanted, meta.size)
        span = Span(0, meta.size) if wanted is None else _resolve(wanted, meta.size)
        shown = meta if wanted is None else without_checksums(meta)
        fields = [
            ("ETag", meta.etag),
            ("Content-Length", str(span.length)),
            ("Accept-Ranges", "bytes"),
            *_overridden(shown.headers, query),
        ]
        if wanted is not None:
            fields.append(("Content-Range", content_range(span, meta.size)))
        length = Span(0, 0) if request.method == "HEAD" else span
        async with aclosing(stored.chunks(length)) as chunks:
            yield ForwardResponse(200 if wanted is None else 206, tuple(fields), chunks)


async def put_object(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer PutObject. Its conditions may be If-Match, and If-None-Match with "*"."""
    headers = kept_headers(request.headers)
    condition = write_condition(request)
    async with store.draft(request.ref) as draft:
        promises = await receive(request, draft)
        meta = await draft.publish(headers, condition)
    return empty(200, ("ETag", meta.etag), *promises.echo)


async def receive(request: ForwardRequest, draft: Draft) -> Promises:
    """Write the request's body to ``draft``. Raises OriginAnswer 400 if the body breaks a promise of the
    request.
    """
    promises = Promises(request)
    if request.body is not None:
        async for chunk in request.body:
            promises.update(chunk)
            await draft.write(chunk)
    promises.check()
    return promises


async def delete_object(store: Store, request: ForwardRequest) -> ForwardResponse:
    if header(request, "if-match") is not None:
        raise NotSupported("Conditional DeleteObject is not an operation of this origin")
    await store.remove(request.ref)
    return empty(204)


async def delete_objects(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer DeleteObjects with a result for each key. With ``Quiet``, successes are left out."""
    promises = Promises(request)
    body = await read_body(request)
    promises.update(body)
    promises.check()
    root = await parse_xml(body)
    nodes = root.findall("Object")
    if root.tag != "Delete" or not 1 <= len(nodes) <= MAX_DELETED_KEYS:
        raise OriginAnswer(400, "MalformedXML", f"Delete must name 1 to {MAX_DELETED_KEYS} objects.")
    quiet = root.findtext("Quiet", "").strip().lower() == "true"
    results = []
    for node in nodes:
        key = node.findtext("Key", "")
        refused = await _delete_one(
            store, ObjectRef(request.ref.bucket, key), node.findtext("VersionId", "null")
        )
        if refused is not None:
            shown = text("Key", key), text("Code", refused.code), text("Message", refused.message)
            results.append(element("Error", *shown))
        elif not quiet:
            results.append(element("Deleted", text("Key", key)))
    return document("DeleteResult", results)


async def _delete_one(store: Store, ref: ObjectRef, version: str) -> OriginAnswer | None:
    if version != "null":
        return OriginAnswer(400, "NoSuchVersion", "This origin keeps no versions.")
    if not ref.key or ref.key.startswith(RESERVED):
        return OriginAnswer(400, "InvalidArgument", "The key cannot be deleted.")
    try:
        await store.remove(ref)
    except OriginAnswer as answer:
        if answer.code == "NoSuchBucket":
            raise
        return answer
    return None


async def copy_object(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer CopyObject. It obeys x-amz-metadata-directive and the conditions x-amz-copy-source-if-*."""
    source = parse_copy_source(request)
    replace = (header(request, "x-amz-metadata-directive") or "COPY").upper() == "REPLACE"
    if source == request.ref and not replace:
        raise OriginAnswer(
            400,
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself without"
            " changing the object's metadata.",
        )
    condition = write_condition(request)
    async with store.read(source) as stored, store.draft(request.ref) as draft:
        check_copy_conditions(request, stored.meta)
        await copy_span(stored, draft, Span(0, stored.meta.size))
        headers = kept_headers(request.headers if replace else stored.meta.headers)
        meta = await draft.publish(headers, condition)
    return document("CopyObjectResult", copy_result(meta))


async def copy_span(stored: Stored, draft: Draft, span: Span) -> None:
    """Append ``span`` of the opened version ``stored`` to ``draft``."""
    async with aclosing(stored.chunks(span)) as chunks:
        async for chunk in chunks:
            await draft.write(chunk)


def copy_result(meta: ObjectMeta) -> list[str]:
    """Return the elements LastModified and ETag of the answer to a copy."""
    modified = parse_http_date(meta.header("Last-Modified"))
    modified_s = 0.0 if modified is None else modified.timestamp()
    return [text("LastModified", iso_date(modified_s)), text("ETag", meta.etag)]


def check_copy_conditions(request: ForwardRequest, meta: ObjectMeta) -> None:
    """Raise OriginAnswer 412 if a condition on the source fails, even where a GET would get a 304 (CopyObject
    API page).
    """
    prefix = "x-amz-copy-source-if-"
    conditions = Conditions(
        if_match=header(request, prefix + "match"),
        if_none_match=header(request, prefix + "none-match"),
        if_modified_since=header(request, prefix + "modified-since"),
        if_unmodified_since=header(request, prefix + "unmodified-since"),
    )
    if conditions.evaluate(meta) is not Verdict.PROCEED:
        raise precondition_failed()


def write_condition(request: ForwardRequest) -> WriteCondition:
    """Return the condition of a write, from If-Match and If-None-Match. S3 allows only "*" in the latter."""
    if_none_match = header(request, "if-none-match")
    if if_none_match not in {None, "*"}:
        raise NotSupported('If-None-Match of a write must be "*"')
    return WriteCondition(header(request, "if-match"), if_absent=if_none_match == "*")


def _conditions(request: ForwardRequest) -> Conditions:
    return Conditions(
        if_match=header(request, "if-match"),
        if_none_match=header(request, "if-none-match"),
        if_modified_since=header(request, "if-modified-since"),
        if_unmodified_since=header(request, "if-unmodified-since"),
        if_range=header(request, "if-range"),
    )


def _resolve(wanted: RangeSpec, size_bytes: int) -> Span:
    try:
        return wanted.resolve(size_bytes)
    except RangeNotSatisfiable:
        raise invalid_range(size_bytes) from None


def _part(query: dict[str, str], wanted: RangeSpec | None, size_bytes: int) -> RangeSpec | None:
    """Return the range of a part number; None for an empty object.

    A store keeps no parts, so every object counts as one part, as in S3 an object that was put whole. Clients
    of the AWS Common Runtime ask even for an empty object by a part number, although no range fits it.
    """
    if wanted is not None:
        raise OriginAnswer(
            400, "InvalidRequest", "Cannot specify both Range header and partNumber query parameter"
        )
    number = bounded_int(query, "partNumber", 1, low=1, high=MAX_PARTS)
    if number != 1:
        unsatisfied = (("Content-Range", f"bytes */{size_bytes}"),)
        raise OriginAnswer(
            416, "InvalidPartNumber", "The requested partnumber is not satisfiable", headers=unsatisfied
        )
    return RangeSpec(0, None) if size_bytes else None


def _dates(meta: ObjectMeta) -> Headers:
    return tuple(pair for pair in meta.headers if pair[0].lower() in {"last-modified", "cache-control"})


def _overridden(headers: Headers, query: dict[str, str]) -> Headers:
    """Return ``headers`` with the fields that response-* parameters of ``query`` replace. Raises OriginAnswer
    400 for a value with a control character, which no header field may hold.
    """
    for name, value in query.items():
        if name in _OVERRIDES and _CONTROL.search(value):
            raise OriginAnswer(400, "InvalidArgument", f"{name} must hold no control character.")
    replaced = {_OVERRIDES[name]: value for name, value in query.items() if name in _OVERRIDES}
    if not replaced:
        return headers
    lowered = {name.lower() for name in replaced}
    return (*(pair for pair in headers if pair[0].lower() not in lowered), *replaced.items())
