"""Parses x-amz-copy-source and x-amz-copy-source-range."""

import re
from urllib.parse import unquote

from shadeproxy.core.errors import NotSupported, OriginAnswer
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.s3ops.query import header
from shadeproxy.origin.s3ops.spans import clamp
from shadeproxy.origin.s3ops.store import RESERVED, no_such_key

_COPY_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})")


def parse_copy_source(request: ForwardRequest) -> ObjectRef:
    """Return the object that x-amz-copy-source names: "bucket/key", URL-encoded, with or without a first
    slash.
    """
    raw, _, version = (header(request, "x-amz-copy-source") or "").partition("?")
    if version not in {"", "versionId=null"}:
        raise NotSupported("This origin keeps no versions: copy without versionId")
    bucket, _, key = unquote(raw).removeprefix("/").partition("/")
    if not bucket or not key:
        raise OriginAnswer(400, "InvalidArgument", "Copy Source must mention the source bucket and key.")
    if key.startswith(RESERVED):
        raise no_such_key()
    return ObjectRef(bucket, key)


def parse_copy_range(request: ForwardRequest, size_bytes: int) -> Span:
    """Return the span that x-amz-copy-source-range names; the whole source if the request has no
    such field.
    """
    raw = header(request, "x-amz-copy-source-range")
    if raw is None:
        return Span(0, size_bytes)
    match = _COPY_RANGE.fullmatch(raw)
    if match is None or int(match[2]) < int(match[1]):
        raise OriginAnswer(
            400, "InvalidArgument", "The x-amz-copy-source-range value must be of the form bytes=first-last."
        )
    return clamp(Span(int(match[1]), int(match[2]) + 1), size_bytes)
