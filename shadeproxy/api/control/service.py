"""Calls about the proxy itself: probes, statistics, metrics, dashboard."""

from importlib.resources import files
from typing import Any

import msgspec
from aiohttp import web

from shadeproxy.api.control.bodies import (
    JSON,
    LogLevel,
    LogLevelWanted,
    Readiness,
    Status,
    answer_json,
    read_json,
)
from shadeproxy.api.control.context import READY, ControlContext
from shadeproxy.api.control.jobs import order_summary
from shadeproxy.telemetry.metrics import CONTENT_TYPE

_DASHBOARD = files("shadeproxy.api.control").joinpath("dashboard.html").read_bytes()
# The browser lets the page load nothing from other places, and call only the listener that served it.
_DASHBOARD_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


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
    context.count_reads()
    return web.Response(body=context.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


async def dashboard(_context: ControlContext, _request: web.Request) -> web.Response:
    headers = {
        "Content-Security-Policy": _DASHBOARD_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    return web.Response(body=_DASHBOARD, content_type="text/html", charset="utf-8", headers=headers)


async def stats(context: ControlContext, _request: web.Request) -> web.Response:
    return web.Response(body=msgspec.json.encode(_snapshot(context)), content_type=JSON)


def _snapshot(context: ControlContext) -> dict[str, Any]:
    snapshot = context.counted_stats().snapshot()
    orders = {name: order_summary(context, name) for name in context.hints.orders.states()}
    return {**snapshot, "orders": orders, "sharing": context.sharing.summary()}


async def doctor(context: ControlContext, _request: web.Request) -> web.Response:
    return web.Response(body=msgspec.json.encode(await context.doctor()), content_type=JSON)


async def get_log_level(context: ControlContext, _request: web.Request) -> web.Response:
    return answer_json(LogLevel(context.log_levels.log_level))


async def put_log_level(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, LogLevelWanted)
    await context.log_levels.set_log_level(wanted.level)
    return answer_json(LogLevel(wanted.level))


async def info(context: ControlContext, _request: web.Request) -> web.Response:
    return answer_json({"version": context.version, **context.info})
