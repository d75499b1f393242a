"""Calls about what is cached: look at one object, purge a prefix."""

import math

import numpy as np
from aiohttp import web

from shadeproxy.api.control.bodies import (
    ObjectSummary,
    PageSummary,
    PurgeAnswer,
    PurgeRequest,
    answer_json,
    read_json,
)
from shadeproxy.api.control.context import ControlContext
from shadeproxy.core.errors import InvalidRequest, UnknownName
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.knowledge.hashing import object_hash

_SCHEME = "s3://"


async def purge(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, PurgeRequest)
    bucket, _, prefix = wanted.uri.removeprefix(_SCHEME).partition("/")
    if not wanted.uri.startswith(_SCHEME) or not bucket:
        raise InvalidRequest(
            f"{wanted.uri[:200]!r} is no S3 URI",
            hint="write s3://bucket/prefix, or s3://bucket for all of it",
        )
    purged = await context.admin.purge(bucket, prefix, dry_run=wanted.dry_run)
    return answer_json(PurgeAnswer(purged.objects, purged.pages, purged.size_bytes))


async def get_object(context: ControlContext, request: web.Request) -> web.Response:
    ref = ObjectRef(request.match_info["bucket"], request.match_info["key"])
    cached = await context.admin.inspect(ref)
    if cached is None:
        raise UnknownName(f"nothing of {ref} is cached", hint="it is cached when it is read; check the key")
    numbers = np.array([page.number for page in cached.pages] or [0], dtype=np.uint32)
    hashes = np.full(len(numbers), object_hash(ref), dtype=np.uint64)
    weight = float(np.fmax.reduce(context.knowledge.weights_of(hashes, numbers)))
    return answer_json(
        ObjectSummary(
            uri=str(ref),
            etag=cached.meta.etag,
            size=cached.meta.size,
            headers=list(cached.meta.headers),
            validated_s=cached.validated_s,
            pages=[PageSummary(page.number, page.tier, page.size_bytes) for page in cached.pages],
            weight=None if math.isnan(weight) else weight,
        )
    )
