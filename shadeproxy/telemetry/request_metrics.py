"""Requests of S3 clients as Prometheus metrics: one by operation and status, and others by operation and
source.
"""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from shadeproxy.core.types import Source
from shadeproxy.telemetry.requests import OTHER_STATUS, REQUEST_BOUNDS_S, RequestCounts, RequestGroup

# Series with these labels exist from the start, because Prometheus's rate() does not count the event that
# begins a series.
_OPERATIONS = ("GetObject", "HeadObject", "Invalid", "ListObjectsV2", "PutObject")
_STATUSES = (200, 403, 404, 500, 503)
_STATUSES_OF = {"GetObject": (200, 206, 403, 404, 416, 500, 503), "Invalid": (400, 403, 503)}


def request_families(counts: RequestCounts) -> Iterator[Metric]:
    """Return the counts of requests as families of metrics."""
    by_status = {
        (operation, status): RequestGroup()
        for operation in _OPERATIONS
        for status in _STATUSES_OF.get(operation, _STATUSES)
    } | counts.by_status()
    requests = CounterMetricFamily(
        "shadeproxy_requests", "Requests of S3 clients that were answered.", labels=["operation", "status"]
    )
    received: dict[str, int] = {}
    for (operation, status), group in by_status.items():
        shown = "other" if status == OTHER_STATUS else str(status)
        requests.add_metric([operation, shown], group.requests)
        received[operation] = received.get(operation, 0) + group.received_bytes
    yield requests
    taken = CounterMetricFamily(
        "shadeproxy_request_received_bytes",
        "Bytes of the bodies of requests, without the framing of aws-chunked.",
        labels=["operation"],
    )
    for operation, size_bytes in received.items():
        taken.add_metric([operation], size_bytes)
    yield taken
    yield _durations(counts)


def _durations(counts: RequestCounts) -> Metric:
    family = HistogramMetricFamily(
        "shadeproxy_request_duration_seconds",
        "Time from the arrival of a request until its answer was handed to the kernel or given up.",
        labels=["operation", "source"],
    )
    bounds = [*map(str, REQUEST_BOUNDS_S), "+Inf"]
    groups = {("GetObject", source): RequestGroup() for source in Source} | counts.by_source()
    for (operation, source), group in groups.items():
        buckets = list(zip(bounds, accumulate(group.buckets), strict=True))
        family.add_metric([operation, str(source)], buckets, sum_value=group.seconds)
    return family
