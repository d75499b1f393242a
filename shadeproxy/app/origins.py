"""Builds an Origin and its wrappers from ``[origin]`` and ``[[auth.clients]]``."""

from pathlib import Path
from typing import NamedTuple

from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.deadline import LATE_WRITE_S, ReadBounds
from shadeproxy.core.origin_names import AWS, canonical_origin
from shadeproxy.core.types import SHARED, Upstream
from shadeproxy.origin.base import Origin
from shadeproxy.origin.bounded import BoundedOrigin
from shadeproxy.origin.bucket_regions import BucketRegions
from shadeproxy.origin.credentials import (
    AnonymousCredentials,
    ChainCredentials,
    CredentialProvider,
    StaticCredentials,
)
from shadeproxy.origin.delayed import DelayedOrigin
from shadeproxy.origin.file import FileOrigin
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.limit import ForwardSlots, LimitedOrigin
from shadeproxy.origin.otel_origin import CountedAttempts, OtelOrigin
from shadeproxy.origin.pool import Timeouts
from shadeproxy.origin.retry import RetryingOrigin, RetryRule
from shadeproxy.origin.s3 import S3Origin
from shadeproxy.origin.s3pages import PageGets
from shadeproxy.origin.throttled import ThrottledOrigin
from shadeproxy.origin.verified import VerifiedOrigin
from shadeproxy.telemetry.otel import OtelTracer

_DEFAULT_REGION = "us-east-1"

Providers = dict[Upstream, CredentialProvider]


def upstream_of(access_key: str) -> Upstream:
    """Return the upstream of a client that has origin credentials of its own."""
    return Upstream(f"client:{access_key}")


def origin_name(settings: Settings) -> str:
    """Return the name of the origin as a cache directory records it."""
    section = settings.origin
    if section.name:
        return section.name
    if section.kind == "file":
        return f"file {Path(section.path).absolute()}"
    return canonical_origin(f"s3 {section.endpoint or AWS}")


def name_of_origin(settings: Settings) -> str:
    """Return the name of the origin as it is shown to people."""
    return settings.origin.endpoint or str(settings.origin.path or "AWS S3")


def read_bounds(settings: Settings) -> ReadBounds:
    """Return the time limits for reads of the origin, and for writes that were given up."""
    timeouts = settings.origin.timeouts
    late_write_s = max(LATE_WRITE_S, 2 * timeouts.read)
    return ReadBounds(timeouts.first_byte, timeouts.window, timeouts.min_rate, late_write_s)


class BuiltOrigin(NamedTuple):
    """An origin that was built. ``origin``: the origin with all wrappers but the outermost one, which counts
    the requests. ``limited``: the wrapper that limits how many requests are open. ``throttled``: the wrapper
    that limits the bandwidth, if there is one. ``gets``: page GETs at the server itself; None if reads by
    callbacks may not bypass the wrappers.
    """

    origin: Origin
    limited: LimitedOrigin
    gets: PageGets | None
    throttled: ThrottledOrigin | None


def build_origin(
    settings: Settings,
    *,
    clock: Clock | None = None,
    providers: Providers | None = None,
    health: OriginHealth | None = None,
    instance: str = "",
    forwards: ForwardSlots | None = None,
    tracer: OtelTracer | None = None,
    regions: BucketRegions | None = None,
) -> BuiltOrigin:
    """Build the origin of the settings, with its limits, retries, checks and time bounds. Raises ConfigError.

    ``providers`` may change while the origin is used. ``health`` records the origin's successes and failures.
    ``instance``: the name by which the proxy recognises its own requests to the origin. ``forwards``: the
    slots for forwarded requests, if they are not this origin's own. ``tracer``: makes otel spans of the
    requests. ``regions``: the regions of buckets that all origins of this process share.
    """
    clock = clock or SystemClock()
    health = health or OriginHealth(clock)
    section = settings.origin
    origin: Origin
    server: S3Origin | None = None
    if section.kind == "file":
        origin = FileOrigin(section.path)
    else:
        origin = server = S3Origin(
            section.endpoint or None,
            credentials=build_providers(settings, clock) if providers is None else providers,
            region=section.region or _DEFAULT_REGION,
            addressing=section.addressing,
            timeouts=Timeouts(section.timeouts.connect, section.timeouts.read, bounds=read_bounds(settings)),
            max_connections=section.max_connections,
            ca_file=section.ca_file or None,
            http_proxy=section.http_proxy,
            trailing_checksums=section.trailing_checksums,
            reserved_names=section.reserved_names,
            clock=clock,
            health=health,
            instance=instance,
            regions=regions,
        )
    # Reads by callbacks would bypass a wrapper that delays requests or limits the bandwidth.
    gets = None if server is None or section.delay or section.bandwidth else server.page_gets
    if section.delay:
        origin = DelayedOrigin(origin, delay_s=section.delay, clock=clock)
    throttled: ThrottledOrigin | None = None
    if section.bandwidth:
        origin = throttled = ThrottledOrigin(origin, bytes_per_s=section.bandwidth, clock=clock)
    rule = RetryRule(section.retry.attempts, section.retry.backoff, section.retry.max_backoff)
    limited = LimitedOrigin(
        origin, max_open=section.max_connections, max_wait_s=Timeouts().pool_s, forwards=forwards
    )
    tried = limited if tracer is None else CountedAttempts(limited)
    verified = VerifiedOrigin(RetryingOrigin(tried, rule=rule, clock=clock, health=health))
    bounded = BoundedOrigin(verified, clock=clock, bounds=read_bounds(settings))
    outer = bounded if tracer is None else OtelOrigin(bounded, tracer, clock)
    return BuiltOrigin(outer, limited, gets, throttled)


def build_providers(settings: Settings, clock: Clock) -> Providers:
    """Build, by upstream, the credential providers with which requests are signed. Raises ConfigError for a
    secret that cannot be read.
    """
    providers = {SHARED: _shared(settings, clock)}
    for client in settings.auth.clients:
        own = client.upstream.resolve()
        if own is not None:
            providers[upstream_of(client.access_key)] = StaticCredentials(own)
    return providers


def _shared(settings: Settings, clock: Clock) -> CredentialProvider:
    section = settings.origin.credentials
    if section.source == "anonymous":
        return AnonymousCredentials()
    static = section.resolve()
    if static is not None:
        return StaticCredentials(static)
    return ChainCredentials(profile=section.profile or None, clock=clock)
