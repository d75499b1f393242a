"""Calls about announced orders: a rank announces its reads of an epoch, piece by piece, or withdraws them.

The call is answered only after eviction and prefetching have begun to use the order.
"""

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from shadeproxy.api.control.bodies import (
    IDS,
    JSON,
    MAX_ORDER_BYTES,
    OCTETS,
    OrderAnnounced,
    OrderBody,
    answer_json,
    require_type,
)
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.decoding import Column, SampleId, decode_columns
from shadeproxy.api.control.ledgers import IDS_COST, JSON_ORDER_COST
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.hints.changes import Announce, WithdrawOrder
from shadeproxy.hints.order.announcements import Announcement

_ID_BYTES = 4
_COLUMNS = {"ids": Column(list[SampleId], np.uint32)}
_MOST = 1 << 31
# Announcements up to this length are checked on the event loop, because passing them to the pool would cost
# more.
_INLINE_BYTES = 32 * 1024
QUERY = {
    "rank": "rank that reads in this order; 0 by default",
    "offset": "position of this piece in the epoch; it replaces the order from there on; 0 by default",
}


async def put_order(context: ControlContext, request: web.Request) -> web.Response:
    name, epoch = request.match_info["job"], number("epoch", request.match_info["epoch"])
    rank, offset = (number(what, request.query.get(what, "0")) for what in ("rank", "offset"))
    _refuse_unknown(request, {"rank", "offset"})
    form = require_type(request, OCTETS, IDS, JSON)
    context.hints.jobs.get(name)
    cost = JSON_ORDER_COST if form == JSON else IDS_COST
    async with context.ledgers.body(request, MAX_ORDER_BYTES, cost) as data:

        def check() -> Announcement:
            ids = _json_ids(data) if form == JSON else _ids(data)
            return context.hints.check_order(name, ids, epoch=epoch, rank=rank, offset=offset)

        new = check() if len(data) <= _INLINE_BYTES else await context.in_pool(check)
    with context.hint_memory.hold(context.hint_memory.check_order(new)):
        await context.changes.make(Announce(new))
    await context.order_builder.settled(context.hints.orders, name)
    return answer_json(OrderAnnounced(epoch, rank, offset, len(new.ids)))


async def delete_order(context: ControlContext, request: web.Request) -> web.Response:
    name, epoch = request.match_info["job"], number("epoch", request.match_info["epoch"])
    _refuse_unknown(request, {"rank"})
    sent = request.query.get("rank")
    rank = None if sent is None else number("rank", sent)
    await context.changes.make(WithdrawOrder(name, epoch, rank))
    await context.order_builder.settled(context.hints.orders, name)
    return web.Response(status=204)


def _json_ids(data: bytes) -> NDArray[np.uint32] | list[int]:
    body, columns = decode_columns(data, OrderBody, _COLUMNS)
    return columns.get("ids", body.ids)


def _ids(data: bytes) -> NDArray[np.uint32]:
    if len(data) % _ID_BYTES:
        raise InvalidRequest(
            f"{len(data)} bytes are no whole number of ids",
            hint="the body is the ids in reading order, each a little-endian u32",
        )
    return np.frombuffer(data, dtype="<u4")


def number(what: str, sent: str) -> int:
    if not (sent.isascii() and sent.isdigit() and len(sent) < 11 and int(sent) < _MOST):
        raise InvalidRequest(f"{what} {sent[:40]!r} is not a number from 0 on", hint=f"write {what}=0")
    return int(sent)


def _refuse_unknown(request: web.Request, known: set[str]) -> None:
    """Raise InvalidRequest if the query has an unknown parameter, or one that is sent twice."""
    unknown = sorted(set(request.query) - known)
    if unknown:
        raise InvalidRequest(
            f"unknown parameter {unknown[0][:40]!r}", hint=f"known here: {', '.join(sorted(known))}"
        )
    for name in known:
        if len(request.query.getall(name, ())) > 1:
            raise InvalidRequest(f"parameter {name!r} is there twice", hint="send it once")
