"""``GET /metrics``: the counters of Stats as Prometheus text.

Metrics are made from the dataclass fields, so a new field needs no line here. Each Stats has its own
registry; the library's global registry is never touched. There is no label for epochs: a label whose values
grow with training belongs in /v1/stats, not in a time-series database.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
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
from shadeproxy.telemetry.stats import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIER_HELP = {
    "used_bytes": "Bytes allocated in the tier.",
    "capacity_bytes": "Bytes the tier may allocate.",
    "pages": "Pages in the tier.",
    "limit_bytes": "Bytes that capacity and free space let the tier hold.",
    "pinned_bytes": "Bytes of pinned pages in the tier.",
    "disabled": "1 when the tier stores no more pages because its medium failed.",
    "dropped_records": "Pages found damaged at the start and dropped.",
    "dropped_catalogues": "Catalogues found damaged at the start; their segments were read instead.",
    "owed_erasures": "Old pages that the medium refused to erase; never served, and each is tried again.",
    "tombstones": "Overwritten objects whose erasure may not be on the medium yet.",
    "in_doubt": "1 when the next start checks every page of the tier with the origin.",
    "dropped_lists": "Tombstone files found damaged or lost at the start; every page is then checked.",
}


class StatsCollector(Collector):
    """Reads the counters of Stats whenever Prometheus asks for them."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield from _families("bucket", Reads, ("bucket",), _labelled(stats.buckets))
        jobs = {name: epochs.totals() for name, epochs in stats.jobs.items()}
        yield from _families("job", JobReads, ("job",), _labelled(jobs))
        yield from _families("tier", TierCounters, ("tier",), _labelled(stats.tiers))
        yield from _families("origin", OriginCounters, ("kind",), _labelled(stats.origin))
        yield from _families("pages", PageCounters, (), {(): stats.pages})
        yield from _families("prefetch", PrefetchCounters, (), {(): stats.prefetch})
        yield self._origin_errors()
        yield self._origin_latency()
        yield self._loop_lag()
        yield from self._tier_gauges()
        if stats.cluster is not None:
            yield from _families("cluster", ClusterCounters, (), {(): stats.cluster})
            for name, value in stats.cluster_gauges().items():
                yield GaugeMetricFamily(f"shadeproxy_cluster_{name}", name.replace("_", " "), value=value)
        for name, gauge in stats.gauges.items():
            yield GaugeMetricFamily(f"shadeproxy_{name}", name.replace("_", " "), value=gauge())

    def _origin_errors(self) -> Metric:
        family = CounterMetricFamily(
            "shadeproxy_origin_errors", "Failed requests to the origin.", labels=["error"]
        )
        for kind, count in self._stats.origin_errors.items():
            family.add_metric([kind], count)
        return family

    def _origin_latency(self) -> Metric:
        family = HistogramMetricFamily(
            "shadeproxy_origin_latency_seconds", "Duration of requests to the origin.", labels=["kind"]
        )
        bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
        for kind, counters in self._stats.origin.items():
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
            family = GaugeMetricFamily(f"shadeproxy_tier_{item.name}", _TIER_HELP[item.name], labels=["tier"])
            for name, gauges in now.items():
                family.add_metric([name], getattr(gauges, item.name))
            yield family


class Metrics:
    """Writes ``stats`` as Prometheus text of type CONTENT_TYPE."""

    def __init__(self, stats: Stats) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatsCollector(stats))

    def render(self) -> bytes:
        return generate_latest(self._registry)


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
