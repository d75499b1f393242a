"""Calls about cached objects: inspect one, list several, pin and unpin a prefix."""

import asyncio
import math
import re
from collections import Counter
from typing import Annotated

import msgspec
import numpy as np
from aiohttp import web

from shadeproxy.api.control.bodies import (
    BUCKET_PATTERN,
    CachedList,
    CachedSummary,
    ObjectSummary,
    PinRequest,
    PlaceRequest,
    answer_json,
    read_json,
)
from shadeproxy.api.control.context import CachedObject, ControlContext
from shadeproxy.api.control.namespaces import FIELD, require_namespace
from shadeproxy.api.control.queries import read_query
from shadeproxy.core.errors import InvalidRequest, UnknownName
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.placement.pins import Prefix
from shadeproxy.hints.hashing import object_hash

_SCHEME = "s3://"
_SUMMED_UP = 64  # Objects of a listing that are summed up in one step of the event loop.
_BUCKET = re.compile(BUCKET_PATTERN)
LISTING = {
    "prefix": "Beginning of the keys; by default the whole bucket",
    "limit": "At most so many objects, 1 to 1000; 100 by default",
    "start_after": "Only keys after this one",
    "namespace": FIELD,
}
ONE = {"namespace": FIELD}


class _Listing(msgspec.Struct, forbid_unknown_fields=True):
    prefix: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    start_after: str = ""
    namespace: str = ""


class _One(msgspec.Struct, forbid_unknown_fields=True):
    namespace: str = ""


async def pin(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, PinRequest)
    place = read_place(context, wanted)
    return answer_json(await context.admin.pin(place, dry_run=wanted.dry_run))


async def unpin(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, PinRequest)
    place = read_place(context, wanted)
    return answer_json(await context.admin.unpin(place, dry_run=wanted.dry_run))


async def list_pins(context: ControlContext, _request: web.Request) -> web.Response:
    return answer_json(context.admin.pins())


def read_place(context: ControlContext, wanted: PlaceRequest) -> Prefix:
    """Return the prefix that a call names as ``s3://bucket/prefix``. Raises InvalidRequest, UnknownName."""
    uri = wanted.uri
    bucket, _, prefix = uri.removeprefix(_SCHEME).partition("/")
    if not uri.startswith(_SCHEME) or not bucket:
        raise InvalidRequest(
            f"{uri[:200]!r} is no S3 URI", hint="write s3://bucket/prefix, or s3://bucket for all of it"
        )
    return Prefix(require_bucket(bucket), prefix, require_namespace(context, wanted.namespace))


def require_bucket(name: str) -> str:
    """Return ``name`` if an S3 request could name such a bucket. Raises InvalidRequest if not."""
    if not _BUCKET.fullmatch(name):
        raise InvalidRequest(
            f"{name[:200]!r} cannot be the name of a bucket",
            hint="write s3://bucket/prefix; a bucket is 1 to 255 of A-Z a-z 0-9 . _ : -, and not . or ..",
        )
    return name


async def get_object(context: ControlContext, request: web.Request) -> web.Response:
    asked = read_query(request, _One, ONE)
    namespace = require_namespace(context, asked.namespace)
    ref = ObjectRef(request.match_info["bucket"], request.match_info["key"], namespace)
    cached = await context.admin.inspect(ref)
    if cached is None:
        raise UnknownName(f"nothing of {ref} is cached", hint="it is cached when it is read; check the key")
    numbers = np.array([page.number for page in cached.pages] or [0], dtype=np.uint32)
    hashes = np.full(len(numbers), object_hash(ref), dtype=np.uint64)
    weight = float(np.fmax.reduce(context.hints.weights_of(hashes, numbers)))
    return answer_json(
        ObjectSummary(
            uri=f"s3://{ref.bucket}/{ref.key}",
            etag=_told(cached.meta.etag),
            size=cached.meta.size,
            headers=[(name, _told(value)) for name, value in cached.meta.headers],
            validated_s=cached.validated_s,
            freshness=cached.freshness,
            total_pages=_pages_of(cached.meta.size, context.page_size),
            pages=list(cached.pages),
            weight=None if math.isnan(weight) else weight,
        )
    )


async def list_objects(context: ControlContext, request: web.Request) -> web.Response:
    bucket = require_bucket(request.match_info["bucket"])
    asked = read_query(request, _Listing, LISTING)
    place = Prefix(bucket, asked.prefix, require_namespace(context, asked.namespace))
    listed = await context.admin.list_cached(place, start_after=asked.start_after, limit=asked.limit)
    objects = []
    for start in range(0, len(listed.objects), _SUMMED_UP):
        part = listed.objects[start : start + _SUMMED_UP]
        objects += [_summary(ref, cached, context.page_size) for ref, cached in part]
        await asyncio.sleep(0)
    following = None if listed.next is None else _told(listed.next)
    return answer_json(CachedList(bucket, asked.prefix, objects, listed.more, following))


def _summary(ref: ObjectRef, cached: CachedObject, page_size: int) -> CachedSummary:
    return CachedSummary(
        key=_told(ref.key),
        etag=_told(cached.meta.etag),
        size=cached.meta.size,
        pages=len(cached.pages) - (parts := sum(page.start is not None for page in cached.pages)),
        parts=parts,
        total_pages=_pages_of(cached.meta.size, page_size),
        bytes=sum(page.bytes for page in cached.pages),
        tiers=dict(Counter(page.tier for page in cached.pages)),
        pinned=sum(page.pinned for page in cached.pages),
        validated_s=cached.validated_s,
        freshness=cached.freshness,
    )


def _pages_of(size: int, page_size: int) -> int:
    """Return the number of pages of an object of ``size`` bytes. An empty object has one page."""
    return max(1, -(-size // page_size))


def _told(text: str) -> str:
    """Return ``text`` for JSON. Bytes that are not UTF-8 are replaced, because JSON cannot contain them."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
