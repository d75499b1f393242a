"""Measures jobs and the origin's link from the statistics, in one window of time after another.

Laws: this module does no I/O and reads no clock; times are arguments. It reads only counters that exist
anyway, so a request takes no longer because it is measured. A window in which a job rests (a checkpoint, an
evaluation) says nothing about the job's pace.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shadeproxy.hints.jobs import Job
from shadeproxy.telemetry.counters import JobReads
from shadeproxy.telemetry.stats import JobEpochs, Stats

_PAGE_GET = "get"
# A job rests in a window if its rate there is below this share of its usual rate.
_RESTING = 0.1
_GONE_S = 60.0
_BEST_WINDOWS = 3
# The best rate is multiplied by this factor in each window of 2 s. So it halves in 23 minutes.
_FADING = 0.999
_AVERAGE_S = 6.0
_MISSES_S = 20.0
_ENOUGH_COMPUTE_S = 2.0
_LINK_WINDOWS = 64
_ENOUGH_READS = 8
# The link is full in a window if two things hold. The link's rate is at least _NEARLY of its highest rate.
# And reads take at least _FULL times the shortest latency, because they wait for each other.
_NEARLY = 0.9
_FULL = 1.5


class _Counted(NamedTuple):
    requests: int = 0
    bytes: int = 0
    origin_bytes: int = 0

    @classmethod
    def of(cls, reads: JobReads) -> "_Counted":
        return cls(reads.requests, reads.bytes, reads.origin_bytes)


@dataclass
class MeasuredJob:
    """The pace of one job. Rates are in samples per second. ``got``: the rate in the last window.
    ``average``: the recent rate, windows of rest left out. ``best``: the highest mean rate of three windows
    in a row. ``compute``: the rate of training without waits, as the SDK reports it, 0 if unknown.
    ``sample_bytes``: mean length of a sample. ``miss_bytes``: how many bytes of a sample came from the
    origin, on average over the last reads. ``active_s``: time in which the job did not rest. ``idle_s``: time
    since it last read. ``origin_bytes``: bytes from the origin in the last window.

    A job that reports progress and computing time is measured by these reports. Any other job is measured by
    its reads, which run ahead of training.
    """

    got: float = 0.0
    average: float = math.nan
    best: float = 0.0
    compute: float = 0.0
    active_s: float = 0.0
    idle_s: float = 0.0
    origin_bytes: int = 0
    is_resting: bool = True
    _job: Job | None = None
    _done: float | None = None
    _sums: tuple[float, float, float] = (0.0, 0.0, 0.0)  # Samples, their bytes, those from the origin.
    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=_BEST_WINDOWS))
    _seen: dict[int | str | None, _Counted] | None = None

    @property
    def rate(self) -> float:
        """The rate that the job would have if it never waited for data, as far as known; 0 before it is
        measured.
        """
        return self.compute or self.best

    @property
    def is_gone(self) -> bool:
        """True after a minute without a read. A job that is gone demands nothing and misses nothing."""
        return self.idle_s >= _GONE_S

    @property
    def sample_bytes(self) -> float:
        return self._sums[1] / self._sums[0] if self._sums[0] else 0.0

    @property
    def miss_bytes(self) -> float:
        return self._sums[2] / self._sums[0] if self._sums[0] else 0.0

    def look(self, job: Job, epochs: JobEpochs, samples: float, elapsed_s: float) -> None:
        """Update the measurements from the counters of a job after a window of ``elapsed_s``. ``samples``:
        number of samples of its data set.
        """
        self._job = job
        self._note_compute(job, epochs)
        advanced = self._advance(job, samples)
        requests, read_bytes, self.origin_bytes = self._count(epochs)
        self.idle_s = 0.0 if requests else self.idle_s + elapsed_s
        count = advanced if self.compute and advanced is not None else float(requests)
        kept = math.exp(-elapsed_s / _MISSES_S)
        new = count, read_bytes, self.origin_bytes
        one, two, three = (old * kept + more for old, more in zip(self._sums, new, strict=True))
        self._sums = one, two, three
        self._note_pace(count, elapsed_s)

    def _note_compute(self, job: Job, epochs: JobEpochs) -> None:
        """Learn the rate of training in the present epoch, if all ranks that report progress are in the same
        epoch.
        """
        numbers = {at.epoch for at in job.progress.values()}
        if len(numbers) != 1 or (number := numbers.pop()) not in epochs.epochs:
            return
        computed_s = epochs.epochs[number].compute_s
        if computed_s >= _ENOUGH_COMPUTE_S:
            read = sum(at.position for at in job.progress.values())
            self.compute = job.world_size * read / computed_s

    def _advance(self, job: Job, samples: float) -> float | None:
        """Return how many samples training has finished since the last window; None if training reports no
        progress.
        """
        if not job.progress:
            return None
        of_rank = samples / job.world_size
        done = sum(at.epoch * of_rank + at.position for at in job.progress.values())
        before, self._done = self._done, done
        return None if before is None else max(done - before, 0.0)

    def _count(self, epochs: JobEpochs) -> tuple[int, int, int]:
        """Return the requests, bytes and bytes from the origin that the job's latest epochs have had since
        the last window.
        """
        latest = epochs.latest
        numbers: list[int | str | None] = [None, latest]
        if isinstance(latest, int):
            numbers.append(latest - 1)
        now = {number: _Counted.of(epochs.epochs[number]) for number in numbers if number in epochs.epochs}
        before, self._seen = self._seen, now
        if before is None:
            return 0, 0, 0
        sums = [0, 0, 0]
        for number, counted in now.items():
            for at, (new, old) in enumerate(zip(counted, before.get(number, _Counted()), strict=True)):
                sums[at] += max(new - old, 0)
        return sums[0], sums[1], sums[2]

    def _note_pace(self, count: float, elapsed_s: float) -> None:
        self.got = count / elapsed_s
        self.best *= _FADING
        self.is_resting = not count or self.got < _RESTING * self.rate
        if self.is_resting:
            self._latest.clear()
            return
        self._latest.append(self.got)
        if len(self._latest) == _BEST_WINDOWS:
            self.best = max(self.best, sum(self._latest) / _BEST_WINDOWS)
        is_first = math.isnan(self.average)
        self.average = self.got if is_first else _mean(self.average, self.got, elapsed_s / _AVERAGE_S)
        self.active_s += elapsed_s

    def is_of(self, job: Job) -> bool:
        """Return whether these measurements are of the job object ``job``, and not of a deleted job that had
        the same name.
        """
        return self._job is None or self._job is job


def measured_jobs(jobs: Mapping[str, Job], known: Mapping[str, MeasuredJob]) -> dict[str, MeasuredJob]:
    """Return measurements for each of ``jobs``: the known ones, or empty ones if the job has none yet."""
    return {
        name: known[name] if name in known and known[name].is_of(job) else MeasuredJob()
        for name, job in jobs.items()
    }


class MeasuredLink:
    """The measured rate of the link to the origin. ``told_bytes_per_s``: returns the link's bandwidth in
    bytes per second if a setting limits it, else 0.
    """

    def __init__(self, told_bytes_per_s: Callable[[], float] = lambda: 0.0) -> None:
        self._told = told_bytes_per_s
        self._windows: deque[tuple[float, float]] = deque(maxlen=_LINK_WINDOWS)
        self._shortest_s = math.inf
        self._seen: tuple[int, int, float] | None = None
        self.window_bytes = 0

    @property
    def bytes_per_s(self) -> float:
        """Highest recent rate of the link, or the bandwidth that a setting gives; 0 before it is measured."""
        return self._told() or max((rate for rate, _ in self._windows), default=0.0)

    @property
    def is_known(self) -> bool:
        """True if it is certain that the link cannot carry more than ``bytes_per_s``: reads have waited for
        each other at that rate.
        """
        if self._told():
            return True
        high = _NEARLY * self.bytes_per_s
        return any(rate >= high and wait_s >= _FULL * self._shortest_s for rate, wait_s in self._windows)

    def look(self, stats: Stats, elapsed_s: float) -> None:
        """Update the measurements from the counters after a window of ``elapsed_s``."""
        if _PAGE_GET not in stats.origin:
            return
        got = stats.origin[_PAGE_GET]
        now = got.requests, got.bytes, got.latency_sum_s
        before, self._seen = self._seen or now, now
        reads, waited_s = now[0] - before[0], now[2] - before[2]
        self.window_bytes = now[1] - before[1]
        if reads >= _ENOUGH_READS:
            latency_s = waited_s / reads
            self._shortest_s = min(self._shortest_s, latency_s)
            self._windows.append((self.window_bytes / elapsed_s, latency_s))


def _mean(mean: float, new: float, share: float) -> float:
    return mean + min(share, 1.0) * (new - mean)
