"""Calls about announced orders: what a rank will read, in pieces if it likes, and that it will not."""

import msgspec
import numpy as np
from aiohttp import web

from shadeproxy.api.control.bodies import (
    IDS,
    JSON,
    MAX_ORDER_BYTES,
    OCTETS,
    Count,
    OrderBody,
    OrderTaken,
    Position,
    SampleId,
    answer_json,
    decode,
    read_body,
    require_type,
)
from shadeproxy.api.control.context import ControlContext
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.engine.knowledge.announcements import Announcement
from shadeproxy.engine.knowledge.jobs import check_rank

QUERY = {
    "rank": "Whose order it is; may be left out where the job has one rank",
    "offset": "The position of the first id: pieces come in order, and replace what was known from there on",
}
WITHDRAWN = {"rank": "Whose order; left out, that of every rank"}
_ID_BYTES = 4
# Up to so many bytes are checked where they stand: a hop to the pool costs more.
_INLINE_BYTES = 64 * 1024


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    rank: Count | None = None
    offset: Position = 0


class _Epoch(msgspec.Struct):
    epoch: Count


async def put_order(context: ControlContext, request: web.Request) -> web.Response:
    name, epoch, asked = _asked(request, QUERY)
    job = context.knowledge.jobs.get(name)
    if asked.rank is None and job.world_size > 1:
        raise InvalidRequest(
            f"job {name!r} has {job.world_size} ranks: whose order is it?", hint="add ?rank=R to the URL"
        )
    rank = asked.rank or 0
    check_rank(job, rank)
    form = require_type(request, OCTETS, IDS, JSON)
    data = await read_body(request, MAX_ORDER_BYTES)

    def check() -> Announcement:
        ids = _ids_in_json(data) if form == JSON else _ids_in(data)
        return context.knowledge.check_order(name, ids, epoch=epoch, rank=rank, offset=asked.offset)

    new = check() if len(data) <= _INLINE_BYTES else await context.in_pool(check)
    context.knowledge.put_order(new, context.clock.now_s())
    return answer_json(OrderTaken(epoch=epoch, rank=rank, announced=new.offset + len(new.ids)))


async def delete_order(context: ControlContext, request: web.Request) -> web.Response:
    name, epoch, asked = _asked(request, WITHDRAWN)
    context.knowledge.orders.withdraw(name, epoch, asked.rank, context.clock.now_s())
    return web.Response(status=204)


def _asked(request: web.Request, known: dict[str, str]) -> tuple[str, int, _Asked]:
    query, hint = dict(request.query), f"parameters: {', '.join(known)}"
    unknown = sorted(query.keys() - known.keys())
    if unknown or len(query) != len(request.query):
        what = f"{unknown[0]!r} is not known" if unknown else "a parameter is there twice"
        raise InvalidRequest(f"the query is not right: {what}", hint=hint)
    try:
        asked = msgspec.convert(query, _Asked, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the query is not right: {error}", hint=hint) from None
    try:
        epoch = msgspec.convert({"epoch": request.match_info["epoch"]}, _Epoch, strict=False).epoch
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"the epoch in the path is not right: {error}", hint="epochs are 0, 1, 2 ..."
        ) from None
    return request.match_info["job"], epoch, asked


def _ids_in(data: bytes) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    if len(data) % _ID_BYTES:
        raise InvalidRequest(
            f"{len(data)} bytes are no list of ids",
            hint="the body is little-endian u32 ids, nothing else",
        )
    return np.frombuffer(data, dtype="<u4")


def _ids_in_json(data: bytes) -> list[SampleId]:
    if data.lstrip()[:1] == b"[":
        return decode(data, list[SampleId])
    return decode(data, OrderBody).ids
