"""``Stats``: all counters of the proxy, the calls that record them, and the JSON of ``GET /v1/stats``.

The engine and the listeners call ``record_*`` on the event loop. This module decides nothing. Hit ratios are
shares of demand GETs; no other requests count in them.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from shadeproxy.core.types import JobContext, Source
from shadeproxy.telemetry.counters import (
    OTHER,
    Capped,
    ClusterCounters,
    Counters,
    JobReads,
    OriginCounters,
    PageCounters,
    PrefetchCounters,
    Reads,
    RelayedRequests,
    TierCounters,
    TierGauges,
)
from shadeproxy.telemetry.lag import LoopLag
from shadeproxy.telemetry.requests import RequestCounts

MAX_BUCKETS = 256
MAX_JOBS = 256  # As many as can be registered, so that each registered job has counters of its own.
MAX_EPOCHS = 256
MAX_KINDS = 64

_REPORTED_S = 10.0
# Look these members up once: to look up an attribute of an Enum class costs as much as an increment.
_RAM, _DISK, _ORIGIN, _COALESCED = Source.RAM, Source.DISK, Source.ORIGIN, Source.COALESCED


Group = TypeVar("Group", bound=Counters)


class JobEpochs:
    """The reads of one job by epoch. A read that names no epoch counts for the epoch that training reported
    in the last ten seconds, or under the key None if it reported none. If there are more than ``MAX_EPOCHS``
    epochs, the oldest ones are added to "other".
    """

    def __init__(self) -> None:
        self.recent = False
        self.latest: int | None = None
        """The epoch of the latest read."""
        self.trained: int | None = None
        """The epoch that training reported last, at ``trained_s``."""
        self.trained_s = 0.0
        self.epochs: Capped[int | str | None, JobReads] = Capped(JobReads, cap=MAX_EPOCHS, other=OTHER)

    def add(self, other: "JobEpochs") -> None:
        for reads in other.epochs.values():
            self.epochs[OTHER].add(reads)

    def begin_run(self) -> None:
        """Move the counts of all epochs to "other", so that the epochs of a new run begin at 0."""
        for epoch in [epoch for epoch in self.epochs if epoch != OTHER]:
            self.epochs[OTHER].add(self.epochs.pop(epoch))
        self.latest = self.trained = None

    def totals(self) -> JobReads:
        return _sum(JobReads(), self.epochs.values())

    def as_json(self) -> dict[str, Any]:
        epochs = {
            "unknown" if epoch is None else str(epoch): reads.as_json()
            for epoch, reads in self.epochs.items()
        }
        return self.totals().as_json() | {"epochs": epochs}


class Stats:
    """Counters of one proxy since it started. Use them only on the event loop: they are not thread-safe.

    ``origin_health``: returns the state that is shown as the origin's "health"; see docs/metrics.md.
    ``now_s``: returns Unix time, by which the epochs of jobs are timed.
    """

    def __init__(
        self,
        *,
        origin_health: Callable[[], dict[str, Any]] = dict,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._now_s = now_s
        self.requests = RequestCounts()
        """All requests of S3 clients; the lanes and listeners count them."""
        self.buckets: Capped[str, Reads] = Capped(Reads, cap=MAX_BUCKETS, other=OTHER)
        self.jobs: Capped[str, JobEpochs] = Capped(JobEpochs, cap=MAX_JOBS, other=OTHER)
        self.tiers: Capped[str, TierCounters] = Capped(TierCounters, cap=MAX_KINDS, other=OTHER)
        self.disk_reads: Counter[str] = Counter()
        self.origin: Capped[str, OriginCounters] = Capped(OriginCounters, cap=MAX_KINDS, other=OTHER)
        self.origin_errors: dict[str, int] = {}
        self.pages = PageCounters()
        self.prefetch = PrefetchCounters()
        self.tier_gauges: dict[str, Callable[[], TierGauges]] = {}
        self.gauges: dict[str, Callable[[], float]] = {}
        self.growing: set[str] = set()
        """Names of those ``gauges`` that only grow."""
        self.cluster: ClusterCounters | None = None
        self.cluster_gauges: Callable[[], dict[str, float]] = dict
        self.relayed: Callable[[], list[RelayedRequests]] = list
        """Returns the counts of requests to other proxies of the cluster, by proxy and result."""
        self.skipped_peers: Callable[[], dict[str, bool]] = dict
        """Returns, for each proxy of the cluster that this one has asked, whether reads now bypass it."""
        self.loop_lag = LoopLag()
        self.stall_s = self.compute_s = 0.0
        """Sums, over all jobs, of the seconds given to ``record_training``."""
        self.cores = 1
        """Number of processor cores that the proxy can use at the same time."""
        self._used_cpu_s: Callable[[], float] | None = None
        self._charged_s = 0.0
        self._uncharged = 0
        """Number of demand GETs since processor time was last charged, including GETs that name no job."""
        self._reading: list[JobReads] = []
        """The epochs of jobs in which the GETs of ``_uncharged`` were made."""
        self._origin_health = origin_health

    # ------------------------------------------------------------------ recording

    def record_read(
        self, ref_bucket: str, source: Source, size_bytes: int, job: JobContext | None = None
    ) -> None:
        """Count one demand GET that was answered with ``size_bytes`` of body."""
        self.record_reads(ref_bucket, source, 1, size_bytes, job)

    def record_reads(
        self, bucket: str, source: Source, count: int, size_bytes: int, job: JobContext | None = None
    ) -> None:
        """Count ``count`` demand GETs that were answered with ``size_bytes`` of body in total."""
        groups = [self.buckets[bucket]]
        self._uncharged += count
        if job is not None:
            epochs, epoch, now_s = self.jobs[job.job], job.epoch, self._now_s()
            if epoch is None and now_s - epochs.trained_s < _REPORTED_S:
                epoch = epochs.trained
            epochs.recent = bool(epochs.epochs)
            epochs.latest = epoch
            reads_of_epoch = epochs.epochs[epoch]
            reads_of_epoch.note_life(now_s)
            if source is _ORIGIN:
                reads_of_epoch.origin_bytes += size_bytes
            if not reads_of_epoch.uncharged:
                self._reading.append(reads_of_epoch)
            reads_of_epoch.uncharged += count
            groups.append(reads_of_epoch)
        for reads in groups:
            reads.recent = reads.requests > 0
            reads.requests += count
            reads.bytes += size_bytes
            if source is _RAM:
                reads.hits_ram += count
                reads.hit_bytes_ram += size_bytes
            elif source is _DISK:
                reads.hits_disk += count
                reads.hit_bytes_disk += size_bytes
            elif source is _ORIGIN:
                reads.origin += count
            elif source is _COALESCED:
                reads.coalesced += count
            else:
                reads.bypass += count

    def record_origin(self, kind: str, size_bytes: int, latency_s: float) -> None:
        """Count a request that the origin answered. ``kind``: "get", "head", "list", "forward" ..."""
        self.origin[kind].observe(size_bytes, latency_s)

    def record_origin_reads(self, reads: Iterable[tuple[int, float]], now_s: float) -> None:
        """Count GETs that the origin answered by ``now_s``. ``reads``: bytes and start time of each GET."""
        self.origin["get"].observe_all(reads, now_s)

    def record_first_byte(self, kind: str, waited_s: float) -> None:
        """Count the time ``waited_s`` until the first byte of an answer of the origin."""
        counters = self.origin[kind]
        counters.first_bytes += 1
        counters.first_byte_sum_s += waited_s

    def record_origin_error(self, kind: str) -> None:
        """Count a failed request to the origin. ``kind`` names the failure."""
        _increment(self.origin_errors, kind)

    def record_admission(self, tier: str, pages: int = 1) -> None:
        self.tiers[tier].admissions += pages

    def record_left_to_origin(self, tier: str) -> None:
        self.tiers[tier].left_to_origin += 1

    def record_disk_reads(self, reads: Mapping[str, int]) -> None:
        """Count reads of pages by disk tier, for proxies with several disk tiers. The hits of each disk are
        computed from these counts.
        """
        for name, count in reads.items():
            self.disk_reads[name] += count

    def record_eviction(self, tier: str, reason: str, pages: int = 1) -> None:
        """Count pages that left ``tier``. ``reason``: "capacity", "demoted", "invalidated", "purged",
        "stale" ...
        """
        _increment(self.tiers[tier].evictions, reason, pages)

    def record_tier_error(self, tier: str, kind: str) -> None:
        """Count a failure of ``tier``; the read that met it became a miss."""
        _increment(self.tiers[tier].errors, kind)

    def record_bypass(self, pages: int = 1) -> None:
        """Count pages that were served but not stored, because they were worth less than any victim."""
        self.pages.bypassed += pages

    def record_unidentified(self) -> None:
        """Count an answer of the origin that cannot be cached, because it lacks a strong ETag or a length."""
        self.pages.unidentified += 1

    def record_coalesced(self) -> None:
        """Count a read that waited for a page which another read was already fetching."""
        self.pages.coalesced += 1

    def record_prefetch(self, outcome: str) -> None:
        """Count a prefetch: "issued" when it begins, and "used", "wasted", "failed" or "warmed" at its end.

        "fault" counts a defect of the prefetcher instead.
        """
        match outcome:
            case "issued":
                self.prefetch.issued += 1
            case "used":
                self.prefetch.used += 1
            case "wasted":
                self.prefetch.wasted += 1
            case "warmed":
                self.prefetch.warmed += 1
            case "fault":
                self.prefetch.faults += 1
            case _:
                assert outcome == "failed", outcome
                self.prefetch.failed += 1

    def record_training(self, job: str, epoch: int | None, *, stall_s: float, compute_s: float) -> None:
        """Add the seconds that training of ``job`` waited for data, and the seconds that it computed, since
        the job's last report.
        """
        epochs, now_s = self.jobs[job], self._now_s()
        epochs.trained, epochs.trained_s = epoch, now_s
        reads = epochs.epochs[epoch]
        reads.stall_s += stall_s
        reads.compute_s += compute_s
        self.stall_s += stall_s
        self.compute_s += compute_s
        reads.note_life(now_s)

    def begin_run(self, job: str) -> None:
        """Begin to count the epochs of a new run of ``job``. Add those of earlier runs to "other"."""
        self.charge_cpu()  # Charge now: later, the epochs of the earlier run could no longer be charged.
        if job in self.jobs:
            self.jobs[job].begin_run()

    def record_prefetched(self, job: str, size_bytes: int) -> None:
        """Count, in the present epoch of ``job``, bytes that the origin sent for a coming read of it."""
        epochs = self.jobs[job]
        reads = epochs.epochs[epochs.latest]
        reads.origin_bytes += size_bytes
        reads.prefetched_bytes += size_bytes

    def measure_cpu(self, used_s: Callable[[], float], *, cores: int) -> None:
        """Begin to measure processor time. ``used_s``: returns the processor seconds that the proxy has used
        so far. ``cores``: number of cores that the proxy can use at the same time.
        """
        self._used_cpu_s, self._charged_s, self.cores = used_s, used_s(), cores

    def charge_cpu(self) -> None:
        """Divide the processor time since the last call equally among the demand GETs since then. Charge each
        share to the job and epoch of its GET. Without any GETs, the time is charged to no job.
        """
        if self._used_cpu_s is None:
            return
        before_s, self._charged_s = self._charged_s, self._used_cpu_s()
        each_s = max(self._charged_s - before_s, 0.0) / max(self._uncharged, 1)
        for reads in self._reading:
            reads.cpu_s += each_s * reads.uncharged
            reads.uncharged = 0
        self._reading, self._uncharged = [], 0

    def watch_tier(self, name: str, gauges: Callable[[], TierGauges]) -> None:
        """Register ``gauges``, which is called for the state of tier ``name`` whenever counters are read."""
        self.tier_gauges[name] = gauges
        self.tiers[name].recent = True

    def count_cluster(self, gauges: Callable[[], dict[str, float]]) -> ClusterCounters:
        """Begin to show counters of the proxy's cluster, and return them. ``gauges``: called for the state of
        the cluster whenever counters are read.
        """
        self.cluster, self.cluster_gauges = ClusterCounters(), gauges
        return self.cluster

    def watch(self, name: str, gauge: Callable[[], float], *, grows: bool = False) -> None:
        """Show the result of ``gauge`` as ``name`` (snake_case, with the unit as suffix). ``gauge`` is called
        whenever counters are read. ``grows``: the value never falls, so it is shown as a counter.
        """
        self.gauges[name] = gauge
        if grows:
            self.growing.add(name)

    # ------------------------------------------------------------------ reading

    def origin_health(self) -> dict[str, Any]:
        """Return the state of the origin (see docs/metrics.md), or {} if the origin is not watched."""
        return self._origin_health()

    def totals(self) -> Reads:
        return _sum(Reads(), self.buckets.values())

    def snapshot(self) -> dict[str, Any]:
        """Return the JSON of ``GET /v1/stats``; docs/metrics.md describes its fields."""
        totals, origin = self.totals(), _sum(OriginCounters(), self.origin.values())
        tiers = {name: tier.as_json() | self._tier_now(name, totals) for name, tier in self.tiers.items()}
        others = {"origin_requests": origin.requests, "origin_bytes": origin.bytes, "stall_s": self.stall_s}
        return {
            "totals": totals.as_json() | others,
            "requests": self.requests.as_json(),
            "tiers": tiers,
            "buckets": {name: reads.as_json() for name, reads in self.buckets.items()},
            "jobs": {name: job.as_json() for name, job in self.jobs.items()},
            "origin": origin.as_json()
            | {
                "by_kind": {kind: counters.as_json() for kind, counters in self.origin.items()},
                "errors": sum(self.origin_errors.values()),
                "errors_by_kind": dict(self.origin_errors),
                "health": self._origin_health(),
            },
            "evictions": self._evictions(),
            "pages": self.pages.as_json(),
            "prefetch": self.prefetch.as_json(),
            "loop_lag_s": self.loop_lag.as_json(),
            "gauges": {name: gauge() for name, gauge in self.gauges.items()},
            **({} if self.cluster is None else {"cluster": self._cluster(self.cluster)}),
        }

    def _cluster(self, counters: ClusterCounters) -> dict[str, Any]:
        relayed = [row._asdict() for row in self.relayed()]
        return counters.as_json() | self.cluster_gauges() | {"relayed": relayed}

    def _tier_now(self, name: str, totals: Reads) -> dict[str, Any]:
        hits, hit_bytes = totals.hits_ram, totals.hit_bytes_ram
        if name != _RAM.value:
            share = self._share_of_disk(name)
            hits, hit_bytes = round(totals.hits_disk * share), round(totals.hit_bytes_disk * share)
        now = self.tier_gauges.get(name, lambda: TierGauges(0, 0, 0))()
        return {
            "hits": hits,
            "hit_bytes": hit_bytes,
            "hit_ratio": hits / totals.requests if totals.requests else 0.0,
            "byte_hit_ratio": hit_bytes / totals.bytes if totals.bytes else 0.0,
            **{name: value for name, value in asdict(now).items() if name != "disabled"},
        }

    def _share_of_disk(self, name: str) -> float:
        """Return a disk tier's share of all hits on disks. With only one disk tier, reads are not counted by
        disk, and the share is 1.
        """
        reads = sum(self.disk_reads.values())
        first = next(tier for tier in self.tiers if tier != _RAM.value)
        return self.disk_reads[name] / reads if reads else float(name == first)

    def _evictions(self) -> dict[str, int]:
        by_reason: dict[str, int] = {}
        for tier in self.tiers.values():
            for reason, count in tier.evictions.items():
                by_reason[reason] = by_reason.get(reason, 0) + count
        return by_reason


def _increment(counts: dict[str, int], name: str, by: int = 1) -> None:
    if name not in counts and len(counts) >= MAX_KINDS:
        name = OTHER
    counts[name] = counts.get(name, 0) + by


def _sum(total: Group, groups: Iterable[Counters]) -> Group:
    for group in groups:
        total.add(group)
    return total
