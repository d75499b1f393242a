"""``GET /metrics``: the counters of Stats as Prometheus text.

Metrics are made from the fields of the dataclasses, so a new counter needs no line here. Each Stats has a
registry of its own; the library's global registry is not used. No metric has an epoch as label: in a
time-series database, a label must not get new values as training goes on. So counts by epoch are only in
/v1/stats.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shadeproxy.telemetry.counters import (
    LATENCY_BOUNDS_S,
    ClusterCounters,
    Counters,
    JobReads,
    OriginCounters,
    PageCounters,
    PrefetchCounters,
    Reads,
    TierCounters,
    TierGauges,
)
from shadeproxy.telemetry.lag import LAG_BOUNDS_S
from shadeproxy.telemetry.request_metrics import request_families
from shadeproxy.telemetry.stats import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIER_HELP = {
    "used_bytes": "Bytes allocated in the tier.",
    "capacity_bytes": "Bytes the tier may allocate.",
    "pages": "Pages in the tier, and parts of pages that are cached alone.",
    "limit_bytes": "Bytes that capacity and free space let the tier hold.",
    "pinned_bytes": "Bytes of pinned pages in the tier.",
    "disabled": "1 when the tier stores no more pages because its medium failed.",
    "hanging": "1 while an operation on the tier's disk has taken longer than 10 s.",
    "dropped_records": "Pages found damaged at the start and dropped.",
    "dropped_catalogues": "Catalogues found damaged at the start; their segments were read instead.",
    "owed_erasures": "Old pages that the medium refused to erase; never served, and each is tried again.",
    "tombstones": "Overwritten objects whose erasure may not be on the medium yet.",
    "read_speed": "Bytes a second that the disk reads, measured or configured; 0 if unknown.",
    "in_doubt": "1 when the next start checks every page of the tier with the origin.",
    "dropped_lists": "Tombstone files found damaged or lost at the start; every page is then checked.",
}
_GAUGE_HELP = {
    "connections": "Connections of S3 clients now.",
    "connections_left": "Further connections that are allowed.",
    "connections_refused": "Connections refused because no more were allowed.",
    "inflight_bytes": "Memory of pages on their way.",
    "slow_clients_cut": "Clients cut off because they took too little while reads waited for memory.",
    "origin_inflight": "Requests to the origin that have a slot now.",
    "origin_waiting": "Requests that wait for a slot at the origin.",
    "tasks": "Tasks of the event loop.",
    "readings": "Reads that are open now.",
    "prefetches": "Prefetches under way.",
}
_RELAYED = {
    "requests": "Requests to other proxies of the cluster.",
    "bytes": "Bytes of the bodies of requests to other proxies of the cluster, in both directions.",
    "seconds": "Durations of requests to other proxies of the cluster.",
}
_FORMER = "Former name of {}_total; it goes with the next release."
# Series with these labels exist from the start, because Prometheus's rate() does not count the event that
# begins a series.
_ORIGIN_KINDS = ("forward", "get", "head", "list")
_ORIGIN_ERRORS = (
    "BodyCutShort", "BodyDamaged", "DeadlineExceeded", "OriginError", "OriginThrottled", "OriginUnavailable",
    "OutcomeUnknown",
)  # fmt: skip
_EVICTIONS = (
    "capacity lowered", "changed at the origin", "crowded out", "damaged", "demoted", "invalidated",
    "medium full", "policy", "promoted", "purged", "replaced",
)  # fmt: skip
_TIER_ERRORS = ("demote", "encode", "header", "promote", "read", "reserve", "write")


class StatsCollector(Collector):
    """Reads the counters of Stats whenever Prometheus asks for them."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield from _families("bucket", Reads, ("bucket",), _labelled(stats.buckets))
        jobs = {name: epochs.totals() for name, epochs in stats.jobs.items()}
        yield from _families("job", JobReads, ("job",), _labelled(jobs))
        tiers = _labelled({name: _with_known(tier) for name, tier in stats.tiers.items()})
        yield from _families("tier", TierCounters, ("tier",), tiers)
        yield from _families("origin", OriginCounters, ("kind",), _labelled(self._origin()))
        yield from _families("pages", PageCounters, (), {(): stats.pages})
        yield from _families("prefetch", PrefetchCounters, (), {(): stats.prefetch})
        yield from request_families(stats.requests)
        yield self._origin_errors()
        yield self._origin_latency()
        yield from self._origin_health()
        yield self._loop_lag()
        yield from self._tier_gauges()
        if stats.cluster is not None:
            yield from _families("cluster", ClusterCounters, (), {(): stats.cluster})
            for name, value in stats.cluster_gauges().items():
                yield GaugeMetricFamily(f"shadeproxy_cluster_{name}", _help_of(name), value=value)
            yield from self._relayed()
            yield self._peer_breakers()
        for name, gauge in stats.gauges.items():
            help_text, value = _help_of(name), gauge()
            if name in stats.growing:
                yield CounterMetricFamily(f"shadeproxy_{name}", help_text, value=value)
                help_text = _FORMER.format(f"shadeproxy_{name}")
            yield GaugeMetricFamily(f"shadeproxy_{name}", help_text, value=value)

    def _relayed(self) -> Iterator[Metric]:
        rows = self._stats.relayed()
        for name, help_text in _RELAYED.items():
            family = CounterMetricFamily(
                f"shadeproxy_cluster_relayed_{name}", help_text, labels=["peer", "result"]
            )
            for row in rows:
                family.add_metric([row.peer, row.result], getattr(row, name))
            yield family

    def _peer_breakers(self) -> Metric:
        family = GaugeMetricFamily(
            "shadeproxy_cluster_peer_breaker",
            "1 while reads go past this proxy of the cluster, because it failed.",
            labels=["peer"],
        )
        for peer, skipped in self._stats.skipped_peers().items():
            family.add_metric([peer], float(skipped))
        return family

    def _origin(self) -> dict[str, OriginCounters]:
        return {kind: OriginCounters() for kind in _ORIGIN_KINDS} | self._stats.origin

    def _origin_errors(self) -> Metric:
        family = CounterMetricFamily(
            "shadeproxy_origin_errors", "Failed requests to the origin.", labels=["error"]
        )
        for kind, count in (dict.fromkeys(_ORIGIN_ERRORS, 0) | self._stats.origin_errors).items():
            family.add_metric([kind], count)
        return family

    def _origin_health(self) -> Iterator[Metric]:
        health = self._stats.origin_health()
        up = health.get("answering")
        yield GaugeMetricFamily(
            "shadeproxy_origin_up",
            "1 if the origin answers, 0 if not; a refusal counts. NaN before the first answer.",
            # Send NaN until the origin's first answer. A 0 would raise an alarm at each start, and a missing
            # series would leave a dashboard without a value.
            value=math.nan if up is None else up,
        )
        for name, help_text in (
            ("throttled", "Answers of the origin that asked to slow down."),
            ("probes", "Requests to the origin that were sent only to learn whether it answers."),
            ("attempts_failed", "Failed tries at the origin, also those that were repeated."),
        ):
            yield CounterMetricFamily(f"shadeproxy_origin_{name}", help_text, value=health.get(name, 0))
        skew_s = health.get("clock_skew_s")
        yield GaugeMetricFamily(
            "shadeproxy_origin_clock_skew_seconds",
            "How far the origin's clock is ahead of this machine's; NaN before the first check.",
            value=math.nan if skew_s is None else skew_s,
        )

    def _origin_latency(self) -> Metric:
        family = HistogramMetricFamily(
            "shadeproxy_origin_latency_seconds", "Duration of requests to the origin.", labels=["kind"]
        )
        bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
        for kind, counters in self._origin().items():
            cumulative = list(accumulate(counters.buckets))
            family.add_metric(
                [kind], list(zip(bounds, cumulative, strict=True)), sum_value=counters.latency_sum_s
            )
        return family

    def _loop_lag(self) -> Metric:
        lag = self._stats.loop_lag
        family = HistogramMetricFamily(
            "shadeproxy_loop_lag_seconds", "Delay of timers of the event loop; requests wait as long."
        )
        bounds = [*map(str, LAG_BOUNDS_S), "+Inf"]
        family.add_metric([], list(zip(bounds, accumulate(lag.buckets), strict=True)), sum_value=lag.sum_s)
        return family

    def _tier_gauges(self) -> Iterator[Metric]:
        now = {name: gauges() for name, gauges in self._stats.tier_gauges.items()}
        for item in fields(TierGauges):
            if item.metadata.get("internal"):
                continue
            name, help_text = f"shadeproxy_tier_{item.name}", _TIER_HELP[item.name]
            families: list[Metric] = [GaugeMetricFamily(name, help_text, labels=["tier"])]
            if item.metadata.get("grows"):
                former = GaugeMetricFamily(name, _FORMER.format(name), labels=["tier"])
                families = [CounterMetricFamily(name, help_text, labels=["tier"]), former]
            for family in families:
                for tier, gauges in now.items():
                    family.add_metric([tier], getattr(gauges, item.name))  # type: ignore[attr-defined]
                yield family


class Metrics:
    """Writes the counters in ``stats`` as Prometheus text of the type CONTENT_TYPE. ``build``: labels of
    ``shadeproxy_build_info``.
    """

    def __init__(self, stats: Stats, build: Mapping[str, str] | None = None) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatsCollector(stats))
        info = Gauge(
            "shadeproxy_build_info",
            "Constant 1; its labels say what runs.",
            list(build or {}),
            registry=self._registry,
        )
        (info.labels(**build) if build else info).set(1)

    def render(self) -> bytes:
        return generate_latest(self._registry)


def render_process() -> bytes:
    """Return the metrics of this process (``process_*``) as Prometheus text. Blocks, because it reads files
    of /proc.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _help_of(name: str) -> str:
    return _GAUGE_HELP.get(name, f"{name.replace('_', ' ').capitalize()}; see docs/metrics.md.")


def _with_known(tier: TierCounters) -> TierCounters:
    zeros = [dict.fromkeys(names, 0) for names in (_EVICTIONS, _TIER_ERRORS)]
    return TierCounters(
        admissions=tier.admissions,
        evictions=zeros[0] | tier.evictions,
        errors=zeros[1] | tier.errors,
        left_to_origin=tier.left_to_origin,
    )


def _labelled(groups: Mapping[str, Counters]) -> dict[tuple[str, ...], Counters]:
    return {(name,): group for name, group in groups.items()}


def _families(
    subject: str,
    of: type[Counters],
    labels: tuple[str, ...],
    groups: Mapping[tuple[str, ...], Counters],
) -> Iterable[Metric]:
    for item in fields(of):
        if item.metadata.get("internal"):
            continue
        inner = item.metadata.get("label")
        name = item.name.removesuffix("_s") + "_seconds" if item.name.endswith("_s") else item.name
        family = CounterMetricFamily(
            f"shadeproxy_{subject}_{name}",
            item.metadata["help"],
            labels=[*labels, inner] if inner else labels,
        )
        for values, group in groups.items():
            value = getattr(group, item.name)
            if not inner:
                family.add_metric(values, value)
                continue
            for name_of_kind, count in value.items():
                family.add_metric([*values, name_of_kind], count)
        yield family
