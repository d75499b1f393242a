"""The counters of the proxy, as plain mutable dataclasses.

To add a counter, add a field whose ``metadata`` holds the help text: /v1/stats, /metrics and docs/metrics.md
are made from the fields. Clients choose the names of some groups (buckets, jobs), so the number of such
groups is limited. If a group is removed, its counts are added to the group "other", so that sums stay right.
This module has no I/O, no clock and no global state. Only the event loop increments counters. An increment
takes some 30 ns.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from math import log, sqrt
from typing import Any, NamedTuple, Protocol, TypeVar

from shadeproxy.telemetry.histogram import interpolated_quantile, shown_quantiles

OTHER = "other"
_LEAST_S = 1e-6  # Shorter latencies occur only in tests, and count as this one.
LATENCY_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


def counter(text: str) -> Any:
    """Return a dataclass field for a number that only grows. ``text``: its help text."""
    return field(default=0, metadata={"help": text})


def by_label(label: str, text: str) -> dict[str, str]:
    """Return the metadata of a dict field that holds one number for each value of ``label``. The numbers only
    grow.
    """
    return {"help": text, "label": label}


@dataclass(slots=True)
class Counters:
    """Base class of all groups of counters. It can add one group to another, and write a group as JSON."""

    recent: bool = field(default=False, repr=False, metadata={"internal": True})

    def add(self, other: "Counters") -> None:
        """Add every counter of ``other``, a group of the same class, to this one."""
        for name in self._names():
            theirs = getattr(other, name)
            if isinstance(theirs, dict):
                mine = getattr(self, name)
                for label, value in theirs.items():
                    mine[label] = mine.get(label, 0) + value
            elif theirs:
                setattr(self, name, getattr(self, name) + theirs)

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in self._names()}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in counts.items()}

    def _names(self) -> tuple[str, ...]:
        kind: Any = type(self)  # mypy takes the class as unhashable, because its instances are.
        return _counted(kind)


@cache
def _counted(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the counters in the groups of a class. There are thousands of groups, and dozens of
    classes.
    """
    return tuple(item.name for item in fields(kind) if not item.metadata.get("internal"))


@dataclass(slots=True)
class Reads(Counters):
    """Demand GETs that were answered, by the source of the answer. A hit is an answer from RAM or disk."""

    requests: int = counter("Demand GETs answered.")
    bytes: int = counter("Body bytes requested by demand GETs.")
    hits_ram: int = counter("Demand GETs answered from RAM.")
    hits_disk: int = counter("Demand GETs answered from disk.")
    hit_bytes_ram: int = counter("Body bytes answered from RAM.")
    hit_bytes_disk: int = counter("Body bytes answered from disk.")
    origin: int = counter("Demand GETs for which the origin was read.")
    coalesced: int = counter("Demand GETs that joined a read of the origin already under way.")
    bypass: int = counter("Demand GETs that bypassed the cache.")

    def as_json(self) -> dict[str, Any]:
        ratio = (self.hits_ram + self.hits_disk) / self.requests if self.requests else 0.0
        byte_ratio = (self.hit_bytes_ram + self.hit_bytes_disk) / self.bytes if self.bytes else 0.0
        # Name the base class, because super() without arguments fails in a dataclass with slots=True.
        return Counters.as_json(self) | {"hit_ratio": ratio, "byte_hit_ratio": byte_ratio}


@dataclass(slots=True)
class JobReads(Reads):
    """The reads of one job in one epoch, and the times that its training reported. ``began_s``, ``ended_s``:
    Unix times of the job's first and last sign of life in the epoch; 0 if there was none. ``uncharged``:
    number of reads since ``Stats.charge_cpu`` was last called.
    """

    stall_s: float = counter("Seconds that training waited for data, as reported, summed over ranks.")
    compute_s: float = counter("Seconds that training computed, as reported, summed over ranks.")
    origin_bytes: int = counter("Bytes that the origin sent for reads of the job, prefetches included.")
    prefetched_bytes: int = counter("Bytes of them that were prefetched.")
    cpu_s: float = counter("Processor seconds of the proxy, shared among jobs by their reads.")
    uncharged: int = field(default=0, metadata={"internal": True})
    began_s: float = field(default=0.0, metadata={"internal": True})
    ended_s: float = field(default=0.0, metadata={"internal": True})

    def note_life(self, now_s: float) -> None:
        """Record that the job gave a sign of life at ``now_s``."""
        self.began_s = self.began_s or now_s
        self.ended_s = max(self.ended_s, self.began_s, now_s)  # The clock may be set back.

    def add(self, other: "Counters") -> None:
        # Name the base class here too, for the reason given in ``Reads.as_json``.
        Counters.add(self, other)
        assert isinstance(other, JobReads)
        begins = [began_s for began_s in (self.began_s, other.began_s) if began_s]
        self.began_s, self.ended_s = min(begins, default=0.0), max(self.ended_s, other.ended_s)

    def as_json(self) -> dict[str, Any]:
        times = {"began_s": self.began_s or None, "wall_s": self.ended_s - self.began_s}
        return Reads.as_json(self) | times


@dataclass(slots=True)
class TierCounters(Counters):
    admissions: int = counter("Pages stored.")
    evictions: dict[str, int] = field(
        default_factory=dict, metadata=by_label("reason", "Pages removed, by reason.")
    )
    errors: dict[str, int] = field(
        default_factory=dict, metadata=by_label("kind", "Failures of the tier; each became a miss.")
    )
    left_to_origin: int = counter("Reads of the tier's pages that the origin answered sooner.")


@dataclass(slots=True)
class PageCounters(Counters):
    bypassed: int = counter("Pages served without being stored: worth less than those they would displace.")
    coalesced: int = counter("Page reads that joined a fill already under way.")
    unidentified: int = counter("Answers of the origin without a strong ETag, or a length: never cached.")


@dataclass(slots=True)
class PrefetchCounters(Counters):
    issued: int = counter("Prefetches of pages that were issued.")
    used: int = counter("Prefetched pages that demand then read.")
    wasted: int = counter("Prefetched pages that were evicted unread, or not stored.")
    failed: int = counter("Prefetches refused by the origin or a limit.")
    warmed: int = counter("Pages stored by warming a prefix.")
    faults: int = counter("Defects of the prefetcher itself, each logged; prefetching goes on.")


@dataclass(slots=True)
class ClusterCounters(Counters):
    """Counts of the events that this proxy and the other proxies of its cluster send each other. The class
    also counts leases of this proxy, and its calls to the engine (Redis or Valkey).
    """

    published: int = counter("Events that this proxy wrote to the log.")
    applied: int = counter("Events that were read from the log and applied, own ones included.")
    alone: int = counter("Changes applied at this proxy first, because the log did not answer in time.")
    sent_again: int = counter("Events written once more, because the log did not give them back.")
    refused: dict[str, int] = field(
        default_factory=dict, metadata=by_label("reason", "Events that changed nothing, by reason.")
    )
    beat_faults: int = counter("Beats that failed by a defect of this proxy.")
    lapses: int = counter("Leases of this proxy that ended before they were renewed.")
    distrusted: int = counter("How often cached pages, all or some, had to be checked once more.")
    refused_writes: dict[str, int] = field(
        default_factory=dict, metadata=by_label("reason", "Writes that this proxy refused, by reason.")
    )
    engine_requests: int = counter("Calls to the engine, failed ones included.")
    engine_errors: int = counter("Calls to the engine that failed.")
    engine_s: float = counter("Seconds of calls to the engine, without the waiting for events.")


class RelayedRequests(NamedTuple):
    """Requests that this proxy sent to one other proxy of its cluster and that ended with the same result.
    ``bytes``: bytes of the bodies of these requests and of their answers.
    """

    peer: str
    result: str
    requests: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class TierGauges:
    """The present state of a tier. ``disabled_reason``: the reason why the tier stores no more pages, or ""
    if it stores pages.
    """

    used_bytes: int
    capacity_bytes: int
    pages: int
    limit_bytes: int = 0
    pinned_bytes: int = 0
    disabled: int = 0
    hanging: int = 0
    dropped_records: int = field(default=0, metadata={"grows": True})
    dropped_catalogues: int = field(default=0, metadata={"grows": True})
    dropped_lists: int = field(default=0, metadata={"grows": True})
    owed_erasures: int = 0
    tombstones: int = 0
    in_doubt: int = 0
    read_speed: int = 0
    disabled_reason: str = field(default="", metadata={"internal": True})


@dataclass(slots=True)
class OriginCounters(Counters):
    """Requests of one kind to the origin. ``buckets[i]``: how many had a latency <= LATENCY_BOUNDS_S[i].

    ``first_byte_sum_s``: sum of the times until the first byte of the answer, over those ``first_bytes``
    requests for which the time was measured. ``log_sum``, ``log_square_sum``: sums of the logarithms of
    latencies, and of their squares. They give the spread of latencies; with logarithms, one very slow request
    hardly changes it.
    """

    requests: int = counter("Requests answered by the origin.")
    bytes: int = counter("Body bytes moved to or from the origin.")
    latency_sum_s: float = field(default=0.0, metadata={"internal": True})
    first_bytes: int = field(default=0, metadata={"internal": True})
    first_byte_sum_s: float = field(default=0.0, metadata={"internal": True})
    log_sum: float = field(default=0.0, metadata={"internal": True})
    log_square_sum: float = field(default=0.0, metadata={"internal": True})
    buckets: list[int] = field(
        default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1), metadata={"internal": True}
    )

    def add(self, other: "Counters") -> None:
        Counters.add(self, other)
        assert isinstance(other, OriginCounters)
        self.latency_sum_s += other.latency_sum_s
        self.first_bytes += other.first_bytes
        self.first_byte_sum_s += other.first_byte_sum_s
        self.log_sum += other.log_sum
        self.log_square_sum += other.log_square_sum
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]

    def observe(self, size_bytes: int, latency_s: float) -> None:
        self.observe_all(((size_bytes, 0.0),), latency_s)

    def observe_all(self, requests: Iterable[tuple[int, float]], now_s: float) -> None:
        """Count requests that have just ended. ``requests``: for each request, the bytes of its answer and
        its start time.
        """
        for size_bytes, started_s in requests:
            latency_s = now_s - started_s
            self.requests += 1
            self.bytes += size_bytes
            self.latency_sum_s += latency_s
            logarithm = log(max(latency_s, _LEAST_S))
            self.log_sum += logarithm
            self.log_square_sum += logarithm * logarithm
            self.buckets[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1

    @property
    def first_byte_s(self) -> float | None:
        """Mean time until the first byte of an answer; None if it was never measured."""
        return self.first_byte_sum_s / self.first_bytes if self.first_bytes else None

    @property
    def latency_spread(self) -> float:
        """Standard deviation of the logarithm of latencies; 0 before the first request."""
        if not self.requests:
            return 0.0
        mean = self.log_sum / self.requests
        return sqrt(max(self.log_square_sum / self.requests - mean * mean, 0.0))

    def quantile_s(self, share: float) -> float:
        """Return the latency that the share ``share`` of the requests does not exceed, interpolated within
        its bucket.
        """
        return interpolated_quantile(LATENCY_BOUNDS_S, self.buckets, share)

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "bytes": self.bytes,
            "latency_s": {"sum": self.latency_sum_s, **shown_quantiles(self.quantile_s)},
            "first_byte_s": self.first_byte_s,
        }


class _Foldable(Protocol):
    recent: bool

    def add(self, other: Any) -> None: ...


Name = TypeVar("Name", bound=Hashable)
Group = TypeVar("Group", bound=_Foldable)


class Capped(dict[Name, Group]):
    """Groups of counters by name: at most ``cap`` of them, and one more called ``other``.

    If there are ``cap`` groups already, a new name displaces one that was used only once, or not lately
    (second chance). The numbers of the displaced group are added to the group ``other``. Code that counts in
    a group must set the group's ``recent`` at each use but the first.
    """

    def __init__(self, make: Callable[[], Group], *, cap: int, other: Name) -> None:
        super().__init__()
        self._make = make
        self._cap = cap
        self._other = other

    def __missing__(self, name: Name) -> Group:
        if name != self._other and len(self) - (self._other in self) >= self._cap:
            self._fold()
        group = self[name] = self._make()
        return group

    def _fold(self) -> None:
        while True:
            name = next(name for name in self if name != self._other)
            group = self.pop(name)
            if not group.recent:
                self[self._other].add(group)
                return
            group.recent = False
            self[name] = group
