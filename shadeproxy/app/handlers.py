"""Builds the S3 handlers of the coordinator, each with a fast lane in front of it."""

from collections.abc import Callable

import structlog

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.peers import PeerAuthenticator
from shadeproxy.api.s3.forward_handler import HandlerSettings
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.otel_handler import OtelHandler
from shadeproxy.api.s3.peer_handler import PeerHandler
from shadeproxy.api.s3.plain_miss import PlainMisses
from shadeproxy.app.admin import Observer
from shadeproxy.app.origins import read_bounds
from shadeproxy.app.reloadable import is_verbose, remembers
from shadeproxy.app.worker_forwarding import trailed_budget_bytes
from shadeproxy.cluster.peer_reads import PeerReads
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.ownership import Ownership
from shadeproxy.origin.callback_reads import CallbackReads
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
    relays: PeerReads | None,
    callback_reads: CallbackReads | None,
) -> tuple[S3Handler, FastLane]:
    """Return the handler of the S3 listener and its fast lane. ``instance``: the proxy's own name.
    ``counts``: counts the hits of the lane. ``tracer``: makes otel spans of the requests that the handler
    serves. ``relays``: begins reads at other proxies; None unless proxies share their pages.
    ``callback_reads``: reads the origin for plain misses; None if reads by callbacks are not possible.
    """
    options = _options(settings, observer, clock=clock, instance=instance)
    plain = None
    if callback_reads is not None:
        plain = PlainMisses(
            engine, engine.plain_reads, callback_reads, clock=clock, bounds=read_bounds(settings)
        )
    handler = (
        S3Handler(engine, authenticator, begins=engine, relays=relays, plain=plain, **options)
        if tracer is None
        else OtelHandler(engine, authenticator, begins=engine, relays=relays, tracer=tracer, **options)
    )
    return handler, _lane(settings, engine, handler, observer, clock=clock, counts=counts, relays=relays)


def make_peer_handler(
    settings: Settings,
    engine: Engine,
    authenticator: PeerAuthenticator,
    ownership: Ownership,
    observer: Observer,
    *,
    clock: Clock,
    stats: Callable[[], bytes],
) -> tuple[PeerHandler, FastLane]:
    """Return the handler of the listener for the other proxies of a cluster, and its fast lane. Requests are
    not counted here: the proxy that the client called counts them. ``stats``: returns the statistics of this
    proxy as JSON.
    """
    options = _options(settings, observer, clock=clock, instance="")
    options["base_domains"] = ()
    handler = PeerHandler(
        engine,
        authenticator,
        ownership=ownership,
        begins=engine,
        stats=stats,
        # Send two interim answers in the time for which other proxies wait for one. They wait by their own
        # value of this setting, which normally equals the value here.
        interim_every_s=settings.cluster.peer_timeout / 2,
        **options,
    )
    return handler, _lane(settings, engine, handler, observer, clock=clock, counts=RequestCounts())


def _options(settings: Settings, observer: Observer, *, clock: Clock, instance: str) -> HandlerSettings:
    return {
        "clock": clock,
        "observer": observer,
        "log": structlog.get_logger("shadeproxy.s3"),
        "base_domains": tuple(domain.lower() for domain in settings.s3.domains),
        "instance": instance,
        "verbose": is_verbose(settings.telemetry),
        "bounds": read_bounds(settings),
        "trailed_budget_bytes": trailed_budget_bytes(settings),
    }


def _lane(
    settings: Settings,
    engine: Engine,
    handler: S3Handler,
    observer: Observer,
    *,
    clock: Clock,
    counts: RequestCounts,
    relays: PeerReads | None = None,
) -> FastLane:
    return FastLane(
        engine,
        handler,
        clock=clock,
        jobs=observer,
        remembers=remembers(settings.telemetry),
        own=engine.hits,
        pace=handler.pace,
        counts=counts,
        relays=relays,
    )
