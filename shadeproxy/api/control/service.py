"""Calls about the proxy itself: probes, statistics, metrics, history, diagnosis, level of the log, facts."""

from typing import Any

import msgspec
from aiohttp import web

from shadeproxy.api.control.bodies import (
    JSON,
    HistoryAnswer,
    LogLevel,
    LogLevelWanted,
    Readiness,
    Status,
    answer_json,
    read_json,
)
from shadeproxy.api.control.cluster import require_cluster
from shadeproxy.api.control.context import READY, ControlContext
from shadeproxy.api.control.jobs import order_summary
from shadeproxy.api.control.queries import read_query
from shadeproxy.telemetry.metrics import CONTENT_TYPE, render_process


async def healthz(_context: ControlContext, _request: web.Request) -> web.Response:
    return answer_json(Status("ok"))


async def readyz(context: ControlContext, _request: web.Request) -> web.Response:
    status = context.readiness()
    warnings = context.warnings() if status == READY else []
    response = answer_json(Readiness(status, warnings, remarks=warnings))
    if status != READY:
        response.set_status(503)
    return response


async def metrics(context: ControlContext, _request: web.Request) -> web.Response:
    process = await context.in_pool(render_process)
    context.count_reads()
    return web.Response(body=context.metrics.render() + process, headers={"Content-Type": CONTENT_TYPE})


NODES = {"cluster": "1: also ask all nodes of the cluster, for `nodes`"}


class _StatsQuery(msgspec.Struct, forbid_unknown_fields=True):
    cluster: bool = False


async def stats(context: ControlContext, request: web.Request) -> web.Response:
    asked = read_query(request, _StatsQuery, NODES)
    nodes = {"nodes": await require_cluster(context).stats()} if asked.cluster else {}
    return web.Response(body=msgspec.json.encode(_snapshot(context) | nodes), content_type=JSON)


def _snapshot(context: ControlContext) -> dict[str, Any]:
    snapshot = context.counted_stats().snapshot()
    orders = {name: order_summary(context, name) for name in context.hints.orders.trackers}
    return {**snapshot, "orders": orders, "sharing": context.sharing.summary()}


SINCE = {"since": "only points after this Unix time"}


class _HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    since: float = 0.0


async def history(context: ControlContext, request: web.Request) -> web.Response:
    since_s = read_query(request, _HistoryQuery, SINCE).since
    return answer_json(HistoryAnswer(**context.history.as_json(since_s)))


async def doctor(context: ControlContext, _request: web.Request) -> web.Response:
    return web.Response(body=msgspec.json.encode(await context.doctor()), content_type=JSON)


async def get_log_level(context: ControlContext, _request: web.Request) -> web.Response:
    return answer_json(LogLevel(context.log_levels.log_level))


async def put_log_level(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, LogLevelWanted)
    await context.log_levels.set_log_level(wanted.level)
    return answer_json(LogLevel(wanted.level))


async def info(context: ControlContext, _request: web.Request) -> web.Response:
    uptime_s = round(context.clock.now_s() - context.started_s, 1)
    return answer_json({"version": context.version, "uptime_s": uptime_s, **context.info})
