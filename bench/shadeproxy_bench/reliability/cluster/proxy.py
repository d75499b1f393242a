"""Runs ``shadeproxy serve``, but it waits for late writes only as long as a write can be late in this run.
When it ends, it reports an error if a read, a flight or memory of the ledger is left.

The product waits for a minute, in which it checks each affected object with the origin at every read. In a
run with a fault every few seconds, most objects would always be in that state, and their caching would not be
tested.
"""

import asyncio
import gc
import signal
import sys
from typing import Any

from aiohttp import web

from shadeproxy.api.control import app as control
from shadeproxy.api.control.bodies import JSON
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.routes import ROUTES, Content, Route
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.read import writes
from shadeproxy.hints.order.announcements import order_of
from shadeproxy_bench import member
from shadeproxy_bench.reliability.cluster.bodies import PAGE_BYTES
from shadeproxy_bench.reliability.cluster.trainer import HINTS_PATH, hints_of
from shadeproxy_bench.reliability.kit.parts import shorten_parts


def _prepare(late_write_s: float) -> None:
    signal.signal(signal.SIGUSR2, _tell_tasks)
    vars(writes)["_UNKNOWN_OUTCOME_S"] = late_write_s
    shorten_parts(PAGE_BYTES)
    answers: dict[int, tuple[str, Content]] = {200: ("OK", {JSON: None})}
    hints = Route("GET", HINTS_PATH, "Digests of a job's hints", _tell_hints, answers=answers)
    vars(control)["ROUTES"] = (*ROUTES, hints)
    close = Engine.aclose

    async def closed(engine: Engine) -> None:
        await close(engine)
        engine.assert_quiescent()

    setattr(Engine, "aclose", closed)  # noqa: B010  mypy forbids assigning a method


async def _tell_hints(context: ControlContext, request: web.Request) -> web.Response:
    job = context.hints.jobs.get(request.match_info["job"])
    announced, dataset = context.hints.orders.announced, context.hints.dataset(job.dataset or "")
    orders = []
    for name in announced.names():
        of_job, epoch, rank = order_of(name)
        ids = announced.ids(of_job, epoch, rank)
        if of_job == job.name and ids is not None:
            orders.append((epoch, rank, ids))
    return web.Response(body=hints_of(dataset.digest, orders), content_type=JSON)


def _tell_tasks(_number: int, _frame: object) -> None:
    """Write to stderr where each task waits. This handles SIGUSR2, which the run sends to a proxy that does
    not end.
    """
    for task in [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]:
        print(task.get_name(), file=sys.stderr)
        inner: Any = task.get_coro()
        while (frame := getattr(inner, "cr_frame", None)) is not None:
            print(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}", file=sys.stderr)
            inner = inner.cr_await
    sys.stderr.flush()


if __name__ == "__main__":
    member.main(_prepare)
