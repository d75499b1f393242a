"""Finds the operation of a request: one table maps (method, level, sub-resources) to functions.

A request raises NotSupported if it is not in the table, or asks for more than its operation can do. The
listener then answers 501. No part of a request is ignored.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from shadeproxy.core.errors import NotSupported, OriginAnswer
from shadeproxy.origin.base import ForwardRequest, ForwardResponse
from shadeproxy.origin.s3ops import answers, buckets, listing, multipart, objects
from shadeproxy.origin.s3ops.query import header, parse_query
from shadeproxy.origin.s3ops.store import RESERVED, Store

Operation = Callable[[Store, ForwardRequest], Awaitable[ForwardResponse]]

# Parameters that select no operation: they refine a listing or a GET, or tell logs the operation's name.
_REFINEMENTS = {
    "x-id", "prefix", "delimiter", "encoding-type", "max-keys", "marker", "continuation-token",
    "start-after", "fetch-owner", "max-parts", "part-number-marker", "max-uploads", "key-marker",
    "upload-id-marker", "response-content-type", "response-content-language", "response-expires",
    "response-cache-control", "response-content-disposition", "response-content-encoding",
}  # fmt: skip

_COPY = "copy"
"""The sub-resource of a PUT that the header field x-amz-copy-source turns into a copy."""

_OPERATIONS: dict[tuple[str, str, frozenset[str]], Operation] = {
    ("GET", "service", frozenset()): buckets.list_buckets,
    ("HEAD", "bucket", frozenset()): buckets.head_bucket,
    ("PUT", "bucket", frozenset()): buckets.create_bucket,
    ("DELETE", "bucket", frozenset()): buckets.delete_bucket,
    ("GET", "bucket", frozenset({"location"})): buckets.bucket_location,
    ("GET", "bucket", frozenset()): listing.list_v1,
    ("GET", "bucket", frozenset({"list-type"})): listing.list_v2,
    ("GET", "bucket", frozenset({"uploads"})): multipart.list_uploads,
    ("POST", "bucket", frozenset({"delete"})): objects.delete_objects,
    ("PUT", "object", frozenset()): objects.put_object,
    ("PUT", "object", frozenset({_COPY})): objects.copy_object,
    ("DELETE", "object", frozenset()): objects.delete_object,
    ("POST", "object", frozenset({"uploads"})): multipart.create_upload,
    ("PUT", "object", frozenset({"partNumber", "uploadId"})): multipart.upload_part,
    ("PUT", "object", frozenset({"partNumber", "uploadId", _COPY})): multipart.upload_part_copy,
    ("POST", "object", frozenset({"uploadId"})): multipart.complete_upload,
    ("DELETE", "object", frozenset({"uploadId"})): multipart.abort_upload,
    ("GET", "object", frozenset({"uploadId"})): multipart.list_parts,
}


@asynccontextmanager
async def route(store: Store, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
    """Carry out ``request`` on ``store``. If an OriginAnswer is raised, return it in the XML form of S3."""
    async with AsyncExitStack() as stack:
        try:
            response = await _dispatch(store, request, stack)
        except OriginAnswer as answer:
            response = answers.error(answer, request)
        yield response


async def _dispatch(store: Store, request: ForwardRequest, stack: AsyncExitStack) -> ForwardResponse:
    if request.ref.key.startswith(RESERVED):
        raise OriginAnswer(
            400, "InvalidRequest", f"Keys that begin with {RESERVED} belong to the origin itself."
        )
    level, selected = _classify(request)
    if level == "object" and request.method in {"GET", "HEAD"} and selected <= {"partNumber"}:
        return await stack.enter_async_context(objects.get_object(store, request))
    operation = _OPERATIONS.get((request.method, level, selected))
    if operation is None:
        asked = "&".join(sorted(selected)) or "no sub-resource"
        raise NotSupported(f"{request.method} on a {level} with {asked} needs an S3 server as origin")
    return await operation(store, request)


def _classify(request: ForwardRequest) -> tuple[str, frozenset[str]]:
    level = "object" if request.ref.key else "bucket" if request.ref.bucket else "service"
    query = parse_query(request.raw_query)
    if query.get("versionId", "null") != "null":
        raise NotSupported("This origin keeps no versions: send the request without versionId")
    if query.get("list-type", "2") != "2":
        raise NotSupported('list-type must be "2"')
    selected = set(query) - _REFINEMENTS - {"versionId"}
    if level == "object" and request.method == "PUT" and header(request, "x-amz-copy-source") is not None:
        selected.add(_COPY)
    return level, frozenset(selected)
