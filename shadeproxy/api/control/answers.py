"""Structs by which /openapi.json describes the answers that handlers build without structs: statistics,
information, findings.

The structs of groups of counters are made from the counters' dataclasses, so that a new counter appears in
the document too.
"""

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from shadeproxy.api.control.jobs import OrderSummary
from shadeproxy.cluster.node_stats import NodeStats
from shadeproxy.hints.needs import JobShare
from shadeproxy.telemetry import counters
from shadeproxy.telemetry.counters import Counters


def shape_of(group: type[Counters], name: str, *more: tuple[Any, ...]) -> type[msgspec.Struct]:
    """Return a struct called ``name``. Its fields are the counters of ``group``, each with its help as
    description, followed by the fields ``more``. Internal counters are left out.
    """
    kinds = get_type_hints(group)
    found = [
        (item.name, Annotated[kinds[item.name], msgspec.Meta(description=item.metadata["help"])])
        for item in fields(group)
        if not item.metadata.get("internal")
    ]
    return msgspec.defstruct(name, [*found, *more], module=__name__)


def _field(kind: Any, text: str) -> Any:
    return Annotated[kind, msgspec.Meta(description=text)]


_RATIOS = (
    ("hit_ratio", _field(float, "Share of the requests answered from RAM or disk; 0 before the first.")),
    ("byte_hit_ratio", _field(float, "The same share of the bytes.")),
)
_TIMES = (
    *_RATIOS,
    ("began_s", _field(float | None, "Unix time of the first read; null if there was none.")),
    ("wall_s", _field(float, "Seconds from the first read to the last read or report.")),
)

BucketReads = shape_of(counters.Reads, "BucketReads", *_RATIOS)
TotalReads = shape_of(
    counters.Reads,
    "TotalReads",
    *_RATIOS,
    ("origin_requests", int),
    ("origin_bytes", int),
    ("stall_s", float),
)
EpochReads = shape_of(counters.JobReads, "EpochReads", *_TIMES)
JobTotals = shape_of(
    counters.JobReads,
    "JobTotals",
    *_TIMES,
    ("epochs", _field(dict[str, EpochReads], 'By number; "unknown" counts reads that named none.')),  # type: ignore[valid-type]  # made above
)
TierStats = shape_of(
    counters.TierCounters,
    "TierStats",
    ("hits", int),
    ("hit_bytes", int),
    *_RATIOS,
    *(
        (item.name, int)
        for item in fields(counters.TierGauges)
        if item.name not in {"disabled", "disabled_reason"}
    ),
    ("disabled_reason", _field(str, 'Why the tier stores no more pages; "" while it does.')),
)
PageStats = shape_of(counters.PageCounters, "PageStats")
PrefetchStats = shape_of(counters.PrefetchCounters, "PrefetchStats")


class RelayedStats(msgspec.Struct):
    """Requests to one other proxy of the cluster that had one result; docs/metrics.md names the results."""

    peer: str
    result: str
    requests: int
    bytes: int
    seconds: float


_CLUSTER_GAUGES = (
    "view", "settled", "lease_seconds_left", "drained", "cut_off", "members", "waiting_events",
    "waiting_bytes", "dropped_events", "leased", "skipped_peers",
)  # fmt: skip
ClusterStats = shape_of(
    counters.ClusterCounters,
    "ClusterStats",
    *((name, float) for name in _CLUSTER_GAUGES),
    ("relayed", list[RelayedStats]),
)


class LatencySummary(msgspec.Struct):
    """Seconds from a request until the end of its answer's body. The quantiles are estimated from buckets."""

    sum: float
    p50: float
    p90: float
    p99: float


class OriginKind(msgspec.Struct):
    """Requests to the origin. ``first_byte_s``: mean seconds until the first byte of a page; null before
    there was one.
    """

    requests: int
    bytes: int
    latency_s: LatencySummary
    first_byte_s: float | None


class OriginFailure(msgspec.Struct):
    kind: str
    text: str
    age_s: float


class OriginHealthSummary(msgspec.Struct):
    """The state of the origin, as the last requests found it. ``answering``: true if it answers, even if it
    refuses; null before a request has ended. ``probes``: requests that the proxy sent only to learn this
    state.
    """

    answering: bool | None
    clock_skew_s: float | None
    attempts_failed: int
    throttled: int
    probes: int
    last_failure: OriginFailure | None
    last_refusal: OriginFailure | None


class OriginStats(OriginKind):
    by_kind: dict[str, OriginKind]
    errors: int
    errors_by_kind: dict[str, int]
    health: OriginHealthSummary


class TimerLag(msgspec.Struct):
    """Seconds by which timers of the coordinator's event loop were late."""

    count: int
    sum: float
    max: float
    p50: float
    p90: float
    p99: float
    recent_p99: float


class OperationRequests(msgspec.Struct):
    """The answers to one S3 operation. ``statuses``: the number of answers by HTTP status.
    ``received_bytes``: the bytes of the requests' bodies.
    """

    statuses: dict[str, int]
    received_bytes: int


class RequestLatency(LatencySummary):
    count: int


class RequestStats(msgspec.Struct):
    """All requests of S3 clients. ``latency_s``: seconds that they took, by the source of the answer."""

    by_operation: dict[str, OperationRequests]
    latency_s: dict[str, RequestLatency]


class SharingSummary(msgspec.Struct):
    """The sharing of link and cache by the needs of jobs; see docs/protocol.md. ``mode``: "off", "needs" or
    "equal".
    """

    mode: str
    reason: str
    link_bytes_per_s: float
    link_is_known: bool
    depth_bytes: float | None
    waiting: int
    others_link_share: float | None
    jobs: dict[str, JobShare]


class StatsReport(msgspec.Struct):
    """All counters since the start; docs/metrics.md describes them. ``cluster``: present only with
    ``cluster.name``. ``nodes``: the counters of all nodes of the cluster; present only if the caller asked
    for them.
    """

    requests: RequestStats
    totals: TotalReads  # type: ignore[valid-type]  # made above, and so are those below
    tiers: dict[str, TierStats]  # type: ignore[valid-type]
    buckets: dict[str, BucketReads]  # type: ignore[valid-type]
    jobs: dict[str, JobTotals]  # type: ignore[valid-type]
    origin: OriginStats
    evictions: dict[str, int]
    pages: PageStats  # type: ignore[valid-type]
    prefetch: PrefetchStats  # type: ignore[valid-type]
    loop_lag_s: TimerLag
    gauges: dict[str, float]
    orders: dict[str, OrderSummary | None]
    sharing: SharingSummary
    cluster: ClusterStats | msgspec.UnsetType = msgspec.UNSET  # type: ignore[valid-type]
    nodes: list[NodeStats] | msgspec.UnsetType = msgspec.UNSET


class ServiceFacts(msgspec.Struct):
    """Facts about the proxy that clients use. ``socket``: path of the Unix socket of the control listener, if
    there is one. ``owners``: true if proxies share their pages, so that a client gains by GET
    /v1/datasets/{dataset}/owners.
    """

    version: str
    uptime_s: float
    page_size: int
    batch: bool
    locate: bool
    policy: str
    origin: str
    lane: Literal["compiled", "interpreted"]
    s3_endpoint: str | msgspec.UnsetType = msgspec.UNSET
    socket: str | msgspec.UnsetType = msgspec.UNSET
    owners: bool | msgspec.UnsetType = msgspec.UNSET


class Finding(msgspec.Struct):
    """A finding. "wrong": reads fail, or the cache does not work; "warning": this may happen soon."""

    name: str
    severity: Literal["wrong", "warning"]
    cause: str
    remedy: str


class DoctorReport(msgspec.Struct):
    """The findings, the worst one first. ``healthy``: true if no finding is "wrong". ``facts``: the facts
    from which the findings follow; its fields may change with any release.
    """

    healthy: bool
    findings: list[Finding]
    facts: dict[str, Any]
