"""``RequestCounts``: the requests of S3 clients by operation, status and source, and their durations.

Laws: each request is counted once, by the process that answered it; workers send their counts to the
coordinator. For a hit, even one Python call to count it would cost too much. So the lanes keep a reference to
the group of a request, and change the group's fields directly. The number of groups is limited, because an
origin may answer with any status.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, NamedTuple

from shadeproxy.core.types import Source
from shadeproxy.telemetry.histogram import interpolated_quantile, shown_quantiles

REQUEST_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0,
)  # fmt: skip
"""Upper bounds of the buckets, in seconds. A hit takes tens of microseconds, and a miss takes as long as the
origin.
"""
MAX_GROUPS = 1024
OTHER_STATUS = 0
"""The status under which further requests are counted when there are ``MAX_GROUPS`` groups already."""


class RequestKey(NamedTuple):
    """The labels of a group of requests. ``operation``: the value that ``EndedRequest`` of api/s3 has."""

    operation: str
    status: int
    source: Source


class RequestRow(NamedTuple):
    """A group of requests in the form in which a worker sends it."""

    operation: str
    status: int
    source: Source
    requests: int
    seconds: float
    received_bytes: int
    buckets: list[int]


class RequestGroup:
    """Counts of the requests that have the same key. ``seconds``: sum of their durations. ``received_bytes``:
    bytes of their bodies. ``buckets[i]``: how many had a duration <= REQUEST_BOUNDS_S[i].
    """

    __slots__ = ("buckets", "received_bytes", "requests", "seconds")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Set all counts to 0."""
        self.requests = self.received_bytes = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(REQUEST_BOUNDS_S) + 1)

    def observe(self, duration_s: float, received_bytes: int = 0) -> None:
        """Count one request."""
        self.requests += 1
        self.seconds += duration_s
        self.received_bytes += received_bytes
        self.buckets[bisect_left(REQUEST_BOUNDS_S, duration_s)] += 1

    def add(self, other: "RequestGroup | RequestRow") -> None:
        """Add the counts of another group to this one."""
        self.requests += other.requests
        self.seconds += other.seconds
        self.received_bytes += other.received_bytes
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]

    def quantile_s(self, share: float) -> float:
        """Return the duration that the share ``share`` of the requests does not exceed, interpolated within
        its bucket.
        """
        return interpolated_quantile(REQUEST_BOUNDS_S, self.buckets, share)


class RequestCounts:
    """Counts the client requests of one process, in groups by operation, status and source. Use it only on
    the event loop: it is not thread-safe.
    """

    def __init__(self) -> None:
        self.groups: dict[RequestKey, RequestGroup] = {}

    def group(self, operation: str, status: int, source: Source) -> RequestGroup:
        """Return the group with these labels. For the same labels, it is always the same object."""
        key = RequestKey(operation, status, source)
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= MAX_GROUPS and status != OTHER_STATUS:
                return self.group("Other", OTHER_STATUS, Source.BYPASS)
            group = self.groups[key] = RequestGroup()
        return group

    def take(self) -> list[RequestRow]:
        """Return the counts since the last call, and reset them to 0."""
        rows = []
        for key, group in self.groups.items():
            if group.requests:
                rows.append(
                    RequestRow(*key, group.requests, group.seconds, group.received_bytes, group.buckets)
                )
                group.clear()
        return rows

    def add(self, rows: Iterable[RequestRow]) -> None:
        """Add the groups that another process counted."""
        for row in rows:
            self.group(row.operation, row.status, row.source).add(row)

    def by_source(self) -> dict[tuple[str, Source], RequestGroup]:
        """Return the counts, summed by operation and source."""
        found: dict[tuple[str, Source], RequestGroup] = {}
        for key, group in self.groups.items():
            found.setdefault((key.operation, key.source), RequestGroup()).add(group)
        return found

    def by_status(self) -> dict[tuple[str, int], RequestGroup]:
        """Return the counts, summed by operation and status."""
        found: dict[tuple[str, int], RequestGroup] = {}
        for key, group in self.groups.items():
            found.setdefault((key.operation, key.status), RequestGroup()).add(group)
        return found

    def count_statuses(self, least: int, below: int) -> int:
        """Return the number of requests that were answered with a status in ``[least, below)``."""
        return sum(group.requests for key, group in self.groups.items() if least <= key.status < below)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of ``requests`` in ``GET /v1/stats``; see docs/metrics.md."""
        operations: dict[str, Any] = {}
        for (operation, status), group in sorted(self.by_status().items()):
            shown = operations.setdefault(operation, {"statuses": {}, "received_bytes": 0})
            if group.requests:
                shown["statuses"][str(status)] = group.requests
                shown["received_bytes"] += group.received_bytes
        sources: dict[Source, RequestGroup] = {}
        for key, group in self.groups.items():
            sources.setdefault(key.source, RequestGroup()).add(group)
        return {
            "by_operation": {name: shown for name, shown in operations.items() if shown["statuses"]},
            "latency_s": {
                str(source): {
                    "count": group.requests,
                    "sum": group.seconds,
                    **shown_quantiles(group.quantile_s),
                }
                for source, group in sorted(sources.items())
                if group.requests
            },
        }
