"""Builds the S3 handler of the coordinator, and the fast lane in front of it."""

import structlog

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.forward_handler import HandlerSettings
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.otel_handler import OtelHandler
from shadeproxy.app.admin import Observer
from shadeproxy.app.origins import read_bounds
from shadeproxy.app.reloadable import is_verbose, remembers
from shadeproxy.app.worker_forwarding import trailed_budget_bytes
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.engine.engine import Engine
from shadeproxy.telemetry.otel import OtelTracer
from shadeproxy.telemetry.requests import RequestCounts


def make_handler(
    settings: Settings,
    engine: Engine,
    authenticator: Authenticator,
    observer: Observer,
    *,
    clock: Clock,
    instance: str,
    counts: RequestCounts,
    tracer: OtelTracer | None,
) -> tuple[S3Handler, FastLane]:
    """Return handler and lane. ``instance``: the proxy's own name. ``counts``: counts the hits of the lane.
    ``tracer``: makes otel spans of the requests that the handler serves.
    """
    options: HandlerSettings = {
        "clock": clock,
        "observer": observer,
        "log": structlog.get_logger("shadeproxy.s3"),
        "base_domains": tuple(domain.lower() for domain in settings.s3.domains),
        "instance": instance,
        "verbose": is_verbose(settings.telemetry),
        "bounds": read_bounds(settings),
        "trailed_budget_bytes": trailed_budget_bytes(settings),
    }
    handler = (
        S3Handler(engine, authenticator, begins=engine, **options)
        if tracer is None
        else OtelHandler(engine, authenticator, begins=engine, tracer=tracer, **options)
    )
    lane = FastLane(
        engine,
        handler,
        clock=clock,
        jobs=observer,
        remembers=remembers(settings.telemetry),
        own=engine.hits,
        pace=handler.pace,
        counts=counts,
    )
    return handler, lane
