"""``History``: rates and levels of the last hour, kept in memory for the dashboard.

Laws: the number of points and of series is fixed, so memory is bounded (about 200 KB). The rates of a point
are the difference between two readings of ``Stats``, divided by the time between them; no counter exists only
for the history. If a counter is smaller than before, its rate is 0. A reading leaves out the counters of jobs
and their epochs, because there may be 16,384 of them.
"""

import math
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from shadeproxy.core.clock import Clock
from shadeproxy.telemetry.stats import Stats

INTERVAL_S = 5.0
POINTS = 720
RATES = (
    "hits_ram_per_s", "hits_disk_per_s", "origin_per_s", "coalesced_per_s", "bypass_per_s", "bytes_per_s",
    "requests_per_s", "client_errors_per_s", "server_errors_per_s", "received_bytes_per_s",
    "origin_requests_per_s", "origin_bytes_per_s", "origin_errors_per_s", "origin_throttled_per_s",
    "evictions_per_s", "prefetched_per_s", "stall_s_per_s", "compute_s_per_s",
)  # fmt: skip
"""Series that are rates of counters. The first five are rates of demand reads, one for each source."""
_SOURCES = 5
LEVELS = ("hit_ratio", "origin_latency_s", "origin_up", "inflight_bytes", "connections")
"""Series that are not rates. ``hit_ratio`` and ``origin_latency_s`` are means over the interval; they are
None if nothing was read in it. ``origin_up`` is None before the origin's first answer. None is stored as NaN.
"""


class History:
    """The history of the counters in ``stats``. ``before``: a function that is called before each reading; it
    counts the reads that are still in the access log.
    """

    def __init__(self, stats: Stats, clock: Clock, *, before: Callable[[], object]) -> None:
        self._stats = stats
        self._clock = clock
        self._before = before
        self._points: deque[array[float]] = deque(maxlen=POINTS)
        self._at_s: float | None = None
        self._read: dict[str, float] = {}

    def tick(self) -> None:
        """Add a point for the time since the last call. The first call adds none, because there is no earlier
        reading.
        """
        self._before()
        now_s, read = self._clock.monotonic_s(), self._counters()
        before, since_s = self._read, 0.0 if self._at_s is None else now_s - self._at_s
        self._read, self._at_s = read, now_s
        if since_s <= 0:
            return
        grown = {name: max(value - before[name], 0.0) for name, value in read.items()}
        rates = [round(grown[name] / since_s, 3) for name in RATES]
        reads = sum(grown[name] for name in RATES[:_SOURCES])
        hits = grown["hits_ram_per_s"] + grown["hits_disk_per_s"]
        requests = grown["origin_requests_per_s"]
        up = self._stats.origin_health().get("answering")
        levels = (
            hits / reads if reads else math.nan,
            grown["origin_latency_s"] / requests if requests else math.nan,
            math.nan if up is None else float(up),
            self._gauge("inflight_bytes"),
            self._gauge("connections"),
        )
        at_s = self._clock.now_s()
        self._keep_order(at_s, since_s)
        self._points.append(array("d", (round(at_s, 1), *rates, *levels)))

    def _keep_order(self, at_s: float, since_s: float) -> None:
        """If the clock was set back, set the times of all points back too. The next point is at ``at_s``, and
        ``since_s`` after the last one.
        """
        if not self._points or self._points[-1][0] < at_s:
            return
        ahead_s = self._points[-1][0] + since_s - at_s
        for point in self._points:
            point[0] = round(point[0] - ahead_s, 1)

    def as_json(self, since_s: float = 0.0) -> dict[str, Any]:
        """Return the points after ``since_s`` (Unix time), the oldest first, as one list for each series. If
        ``since_s`` is after the last point, the clock was set back since the caller asked: return all points.
        """
        if self._points and since_s > self._points[-1][0]:
            since_s = 0.0
        points = [point for point in self._points if point[0] > since_s]
        series = {
            name: [None if math.isnan(point[place]) else point[place] for point in points]
            for place, name in enumerate((*RATES, *LEVELS), 1)
        }
        return {"interval_s": INTERVAL_S, "times": [point[0] for point in points], "series": series}

    def recent_reads(self, seconds: float) -> int:
        """Return how many demand reads were answered in the last ``seconds``, up to an hour."""
        points = list(self._points)[-math.ceil(seconds / INTERVAL_S) :]
        return round(sum(sum(point[1 : 1 + _SOURCES]) for point in points) * INTERVAL_S)

    def _counters(self) -> dict[str, float]:
        stats = self._stats
        reads, origin = stats.totals(), stats.origin.values()
        health = stats.origin_health()
        return {
            "hits_ram_per_s": reads.hits_ram,
            "hits_disk_per_s": reads.hits_disk,
            "origin_per_s": reads.origin,
            "coalesced_per_s": reads.coalesced,
            "bypass_per_s": reads.bypass,
            "bytes_per_s": reads.bytes,
            "requests_per_s": stats.requests.count_statuses(0, 1000),
            "client_errors_per_s": stats.requests.count_statuses(400, 500),
            "server_errors_per_s": stats.requests.count_statuses(500, 600),
            "received_bytes_per_s": sum(one.received_bytes for one in stats.requests.groups.values()),
            "origin_requests_per_s": sum(one.requests for one in origin),
            "origin_bytes_per_s": sum(one.bytes for one in origin),
            "origin_errors_per_s": sum(stats.origin_errors.values()),
            "origin_throttled_per_s": health.get("throttled", 0),
            "evictions_per_s": sum(sum(tier.evictions.values()) for tier in stats.tiers.values()),
            "prefetched_per_s": stats.prefetch.issued,
            "stall_s_per_s": stats.stall_s,
            "compute_s_per_s": stats.compute_s,
            "origin_latency_s": sum(one.latency_sum_s for one in origin),
        }

    def _gauge(self, name: str) -> float:
        gauge = self._stats.gauges.get(name)
        return 0.0 if gauge is None else gauge()


async def keep_history(history: History, clock: Clock) -> None:
    """Add a point to ``history`` every INTERVAL_S, until cancelled."""
    while True:
        history.tick()
        await clock.sleep(INTERVAL_S)
