"""Calls about the score column of a job: read the current one, or freeze it for an epoch, so that all ranks
draw from the same scores.

Law: a GET changes nothing. In earlier releases a GET with a query froze the column. Now such a GET is
refused, with a hint to use the POST.
"""

from typing import Annotated

import msgspec
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from shadeproxy.api.control.bodies import OCTETS, read_json
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.orders import number
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.hints.changes import FreezeScores

_MEAN_LOSS = "x-shade-mean-loss"
_FREEZING = frozenset({"epoch", "mean_loss"})
_PIECE_BYTES = 256 * 1024


class FreezeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call that freezes the score column. ``mean_loss``: a value to keep together with the column."""

    mean_loss: Annotated[float, msgspec.Meta(ge=-1e308, le=1e308)] | None = None


async def get_scores(context: ControlContext, request: web.Request) -> web.StreamResponse:
    name = request.match_info["job"]
    if _FREEZING & request.query.keys():
        raise InvalidRequest(
            "a GET freezes no score column any more",
            hint="update shadeproxy-sdk; a client of your own:"
            f' POST /v1/jobs/{name}/epochs/EPOCH/scores with {{}} or {{"mean_loss": 0.7}}',
        )
    return await _answer(request, context.hints.scores(name))


async def freeze_scores(context: ControlContext, request: web.Request) -> web.StreamResponse:
    name, epoch = request.match_info["job"], number("epoch", request.match_info["epoch"])
    hints = context.hints
    await context.changes.caught_up()
    hints.jobs.get(name)
    wanted = await read_json(request, FreezeRequest)
    frozen = hints.frozen.get(name, epoch)
    if frozen is None:
        column = hints.scores(name, to_draw=True)
        frozen = await context.changes.make(FreezeScores(name, epoch, column, wanted.mean_loss))
    mean_loss = frozen.mean_loss
    headers = {} if mean_loss is None else {_MEAN_LOSS: repr(mean_loss)}
    return await _answer(request, frozen.column, headers)


async def _answer(
    request: web.Request, column: NDArray[np.float32], headers: dict[str, str] | None = None
) -> web.StreamResponse:
    """Send ``column`` piece by piece: all ranks ask at once, and slow ones must not hold a copy each."""
    body = column.astype("<f4", copy=False).view(np.uint8)
    response = web.StreamResponse(headers={"Content-Type": OCTETS, **(headers or {})})
    response.content_length = len(body)
    await response.prepare(request)
    for start in range(0, len(body), _PIECE_BYTES):
        await response.write(body[start : start + _PIECE_BYTES].data)
    await response.write_eof()
    return response
