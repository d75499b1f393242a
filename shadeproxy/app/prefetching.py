"""Start a Prefetcher from ``[prefetch]``."""

from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.engine.engine import Engine
from shadeproxy.hints.order.orders import Orders
from shadeproxy.origin.limit import prefetch_slots
from shadeproxy.prefetch.prefetcher import Limits, Prefetcher
from shadeproxy.telemetry.stats import Stats


def start_prefetching(
    settings: Settings, engine: Engine, orders: Orders, *, clock: Clock, stats: Stats
) -> Prefetcher:
    """Start prefetching and return the prefetcher. Close it before the engine."""
    limits = Limits(
        ahead_bytes=settings.prefetch.ahead,
        fetches=prefetch_slots(settings.origin.max_connections),
        flying_bytes=settings.cache.inflight // 2,
        whole_bytes=settings.prefetch.whole_objects,
    )
    prefetcher = Prefetcher(engine.prefetch_port, orders, orders, clock=clock, limits=limits)
    stats.watch("prefetches", lambda: float(prefetcher.flying))
    prefetcher.start()
    return prefetcher
