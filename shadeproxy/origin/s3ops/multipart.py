"""Multipart uploads. They are kept in the store itself, under RESERVED, and survive a restart of the proxy.

.shadeproxy/uploads/<id>/upload   JSON: key, headers, start time
.shadeproxy/uploads/<id>/00001    part 1 (its ETag is the store's)

Completing an upload writes its parts to one draft, which is then published. Until then readers see nothing.
"""

import json
import uuid
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import Headers, ListEntry, ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest, ForwardResponse
from shadeproxy.origin.s3ops.answers import document, element, empty, iso_date, parse_xml, read_body, text
from shadeproxy.origin.s3ops.buckets import require_bucket
from shadeproxy.origin.s3ops.copy_source import parse_copy_range, parse_copy_source
from shadeproxy.origin.s3ops.metadata import kept_headers
from shadeproxy.origin.s3ops.objects import (
    MAX_PARTS,
    check_copy_conditions,
    copy_result,
    copy_span,
    receive,
    write_condition,
)
from shadeproxy.origin.s3ops.query import bounded_int, encode_key, parse_query, url_encoder
from shadeproxy.origin.s3ops.store import UPLOADS, Draft, Store

_NO_SUCH_UPLOAD = (404, "NoSuchUpload", "The specified upload does not exist.")
MAX_UPLOADS = 1000
_INVALID_PART = (400, "InvalidPart", "One or more of the specified parts could not be found.")


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload that was begun and not yet completed or aborted."""

    upload_id: str
    ref: ObjectRef
    headers: Headers
    started_s: float

    def part(self, number: int) -> ObjectRef:
        return ObjectRef(self.ref.bucket, f"{_folder(self.upload_id)}{number:05d}")

    @property
    def record(self) -> ObjectRef:
        return _record(self.ref.bucket, self.upload_id)


async def create_upload(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer CreateMultipartUpload."""
    headers = kept_headers(request.headers)
    upload_id = uuid.uuid4().hex
    record = {"key": request.ref.key, "headers": headers, "started_s": SystemClock().now_s()}
    async with store.draft(_record(request.ref.bucket, upload_id)) as draft:
        await draft.write(json.dumps(record).encode())
        await draft.publish(())
    return document("InitiateMultipartUploadResult", [*_names(request.ref), text("UploadId", upload_id)])


async def upload_part(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer UploadPart."""
    upload = await _find(store, request)
    async with store.draft(upload.part(_part_number(request))) as draft:
        promises = await receive(request, draft)
        meta = await draft.publish(())
    return empty(200, ("ETag", meta.etag), *promises.echo)


async def upload_part_copy(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer UploadPartCopy. It copies a whole object, or the span that x-amz-copy-source-range names."""
    upload = await _find(store, request)
    async with (
        store.read(parse_copy_source(request)) as stored,
        store.draft(upload.part(_part_number(request))) as draft,
    ):
        check_copy_conditions(request, stored.meta)
        await copy_span(stored, draft, parse_copy_range(request, stored.meta.size))
        meta = await draft.publish(())
    return document("CopyPartResult", copy_result(meta))


async def complete_upload(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer CompleteMultipartUpload. Parts may be smaller than the 5 MiB that S3 demands."""
    upload = await _find(store, request)
    condition = write_condition(request)
    chosen = _chosen_parts(await parse_xml(await read_body(request)))
    async with store.draft(upload.ref) as draft:
        for number, etag in chosen:
            await _append_part(store, upload.part(number), etag, draft)
        meta = await draft.publish(upload.headers, condition)
    await _discard(store, upload)
    content = [text("Location", request.raw_path), *_names(upload.ref), text("ETag", meta.etag)]
    return document("CompleteMultipartUploadResult", content)


async def abort_upload(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer AbortMultipartUpload."""
    await _discard(store, await _find(store, request))
    return empty(204)


async def list_parts(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer ListParts."""
    upload = await _find(store, request)
    query = parse_query(request.raw_query)
    marker = bounded_int(query, "part-number-marker", 0, high=MAX_PARTS)
    max_parts = bounded_int(query, "max-parts", 1000, low=1, high=1000)
    folder = _folder(upload.upload_id)
    page = await store.scan(upload.ref.bucket, folder, f"{folder}{marker:05d}", max_parts + 1)
    parts = [entry for entry in page.entries if entry.key != upload.record.key]
    shown = parts[:max_parts]
    content = [
        *_names(upload.ref),
        text("UploadId", upload.upload_id),
        text("PartNumberMarker", marker),
        text("NextPartNumberMarker", _number(shown[-1]) if shown else marker),
        text("MaxParts", max_parts),
        text("IsTruncated", "true" if len(parts) > max_parts else "false"),
        *(
            element(
                "Part",
                text("PartNumber", _number(entry)),
                text("LastModified", entry.last_modified),
                text("ETag", entry.etag),
                text("Size", entry.size),
            )
            for entry in shown
        ),
    ]
    return document("ListPartsResult", content)


async def list_uploads(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer ListMultipartUploads, in the order of keys, and of upload ids for one key."""
    query = parse_query(request.raw_query)
    encoding, encode = url_encoder(query)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("key-marker", ""), query.get("upload-id-marker", "")
    most = bounded_int(query, "max-uploads", MAX_UPLOADS, low=1, high=MAX_UPLOADS)
    await require_bucket(store, request.ref.bucket)
    shown: list[Upload] = []
    groups: list[str] = []
    last, truncated = after, False
    for upload in await _all_uploads(store, request.ref.bucket):
        key = upload.ref.key
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        group = key[: cut + len(delimiter)] if cut >= 0 else ""
        if not key.startswith(prefix) or group in groups or _is_before(group or key, upload.upload_id, after):
            continue
        if truncated := len(shown) + len(groups) == most:
            break
        if group:
            groups.append(group)
        else:
            shown.append(upload)
        last = (group, "") if group else (key, upload.upload_id)
    content = [
        text("Bucket", request.ref.bucket),
        text("KeyMarker", encode_key(after[0], encode=encode)),
        text("UploadIdMarker", after[1]),
        *((text("Delimiter", encode_key(delimiter, encode=encode)),) if delimiter else ()),
        text("Prefix", encode_key(prefix, encode=encode)),
        *((text("EncodingType", encoding),) if encoding else ()),
        text("NextKeyMarker", encode_key(last[0], encode=encode) if truncated else ""),
        text("NextUploadIdMarker", last[1] if truncated else ""),
        text("MaxUploads", most),
        text("IsTruncated", "true" if truncated else "false"),
        *(
            element(
                "Upload",
                text("Key", encode_key(upload.ref.key, encode=encode)),
                text("UploadId", upload.upload_id),
                text("Initiated", iso_date(upload.started_s)),
            )
            for upload in shown
        ),
        *(element("CommonPrefixes", text("Prefix", encode_key(group, encode=encode))) for group in groups),
    ]
    return document("ListMultipartUploadsResult", content)


def _is_before(name: str, upload_id: str, after: tuple[str, str]) -> bool:
    """Return True if the markers ``after`` exclude an upload, or a common prefix, called ``name``. Without an
    id, the key marker excludes all uploads of its key.
    """
    key, last_id = after
    return name < key or (name == key != "" and (not last_id or upload_id <= last_id))


async def _all_uploads(store: Store, bucket: str) -> list[Upload]:
    """Return the uploads of a bucket, in order. An upload that ends meanwhile may be missing."""
    uploads: list[Upload] = []
    after = ""
    while True:
        page = await store.scan(bucket, UPLOADS, after, 1000)
        for entry in page.entries:
            if entry.key.endswith("/upload"):
                with suppress(OriginAnswer):
                    uploads.append(await _load(store, bucket, entry.key.split("/")[2]))
        if not page.truncated:
            return sorted(uploads, key=lambda upload: (upload.ref.key, upload.upload_id))
        after = page.entries[-1].key


async def _append_part(store: Store, ref: ObjectRef, etag: str, draft: Draft) -> None:
    async with AsyncExitStack() as stack:
        try:
            part = await stack.enter_async_context(store.read(ref))
        except OriginAnswer as answer:
            raise OriginAnswer(*_INVALID_PART) from answer
        if part.meta.etag.strip('"') != etag:
            raise OriginAnswer(*_INVALID_PART)
        await copy_span(part, draft, Span(0, part.meta.size))


def _names(ref: ObjectRef) -> list[str]:
    return [text("Bucket", ref.bucket), text("Key", ref.key)]


def _folder(upload_id: str) -> str:
    return f"{UPLOADS}{upload_id}/"


def _record(bucket: str, upload_id: str) -> ObjectRef:
    return ObjectRef(bucket, f"{_folder(upload_id)}upload")


def _number(entry: ListEntry) -> int:
    return int(entry.key.rpartition("/")[2])


def _part_number(request: ForwardRequest) -> int:
    query = parse_query(request.raw_query)
    number = bounded_int(query, "partNumber", 0, low=1, high=MAX_PARTS + 1)
    if not 1 <= number <= MAX_PARTS:
        raise OriginAnswer(400, "InvalidArgument", f"partNumber must be an integer from 1 to {MAX_PARTS}.")
    return number


async def _find(store: Store, request: ForwardRequest) -> Upload:
    upload_id = parse_query(request.raw_query).get("uploadId", "")
    # The id becomes part of a key, so only an id of the form that create_upload makes is accepted.
    if len(upload_id) != 32 or not set(upload_id) <= set("0123456789abcdef"):
        raise OriginAnswer(*_NO_SUCH_UPLOAD)
    upload = await _load(store, request.ref.bucket, upload_id)
    if upload.ref != request.ref:
        raise OriginAnswer(*_NO_SUCH_UPLOAD)
    return upload


async def _load(store: Store, bucket: str, upload_id: str) -> Upload:
    try:
        async with (
            store.read(_record(bucket, upload_id)) as stored,
            aclosing(stored.chunks(Span(0, stored.meta.size))) as chunks,
        ):
            record = json.loads(b"".join([chunk async for chunk in chunks]))
    except OriginAnswer as answer:
        if answer.code == "NoSuchKey":
            raise OriginAnswer(*_NO_SUCH_UPLOAD) from None
        raise
    headers = tuple((str(name), str(value)) for name, value in record["headers"])
    return Upload(upload_id, ObjectRef(bucket, record["key"]), headers, record["started_s"])


async def _discard(store: Store, upload: Upload) -> None:
    # Remove the record first. Without it the upload does not exist, even if some of its parts remain.
    await store.remove(upload.record)
    while (page := await store.scan(upload.ref.bucket, _folder(upload.upload_id), "", 1000)).entries:
        for entry in page.entries:
            await store.remove(ObjectRef(upload.ref.bucket, entry.key))


def _chosen_parts(root: Element) -> list[tuple[int, str]]:
    nodes, chosen = root.findall("Part"), []
    if len(nodes) > MAX_PARTS:
        raise OriginAnswer(400, "MalformedXML", f"An upload has at most {MAX_PARTS} parts.")
    for node in nodes:
        number, etag = node.findtext("PartNumber", ""), node.findtext("ETag", "")
        if not (number.isascii() and number.isdigit() and len(number) <= 5):
            raise OriginAnswer(400, "MalformedXML", "PartNumber must be an integer.")
        chosen.append((int(number), etag.strip().strip('"')))
    numbers = [number for number, _ in chosen]
    if not chosen or root.tag != "CompleteMultipartUpload":
        raise OriginAnswer(400, "MalformedXML", "The XML you provided names no parts.")
    if numbers != sorted(set(numbers)):
        raise OriginAnswer(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
    return chosen
