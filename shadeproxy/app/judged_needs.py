"""The needs of jobs in use, and the decision which of them are admitted.

Law: a need is admitted only while it fits beside the needs that were admitted before it. A need is admitted,
or no longer admitted, only after the measurements have said so for ten seconds: one measurement changes
nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from shadeproxy.app.asking import demands_of
from shadeproxy.app.measuring import MeasuredJob
from shadeproxy.core.units import format_count
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.needs import JobNeed, JobShare
from shadeproxy.origin.link import LinkQueue
from shadeproxy.policy.sharing import Room, fits, is_behind, least_of_others, most_for, trains_behind
from shadeproxy.telemetry.stats import JobEpochs, Stats

_log = structlog.get_logger(__name__)
JUDGED_S = 10.0
"""Time for which a job is measured before it is judged."""

_REPORT_S = 1.0  # The SDK reports its position this often.
_SURELY_KEPT = 1.05  # A job is surely not behind if its measured rate is this multiple of its need.
# For a need that does not fit, a search finds how much of it would fit. One step searches at most this many
# needs.
_MOST_TOLD = 8


@dataclass
class Schedule:
    """The reads of a job in its present epoch, the position that its ranks report, and the time since the
    epoch began. That time does not include times in which the job neither read nor waited for the link. If
    reads name no epoch, ten seconds count as an epoch.

    The position is a better measure than the reads. Samples of many batches are read at once, and if one
    sample of a batch is late, training waits although most reads were made.

    Reads may alternate between epochs, because the ranks are not in the same epoch, or an evaluation has
    epochs of its own. Then the count of one epoch does not show how far the job is. So the job's measured
    rate shows whether it is behind, until a newer epoch begins.
    """

    epoch: int | None = None
    elapsed_s: float = 0.0
    _newest: int | None = None
    _alternates: bool = False
    _first: int = 0
    _read: int = 0
    _waiting: int = 0
    _position: int | None = None
    _told_s: float = 0.0
    """Time since ``_position`` was reported."""

    def look(self, job: Job, epochs: JobEpochs, elapsed_s: float, *, waiting: int, prefetches: int) -> None:
        """Note the reads of ``job`` in the last ``elapsed_s``. ``waiting``: number of its reads that wait for
        the link. ``prefetches``: how many of the waiting reads began as prefetches; a reader may have joined
        one meanwhile.
        """
        epoch = epochs.latest
        if self._newest is not None and self._newest not in epochs.epochs:
            self._newest = None  # A new run has begun, which counts its epochs from the beginning.
        read = epochs.epochs[epoch].requests if epoch in epochs.epochs else 0
        if epoch != self.epoch or (epoch is None and self.elapsed_s >= JUDGED_S):
            # Loaders begin an epoch with many reads at once. So for a newer epoch, count the reads from its
            # first one on.
            begins = epoch is not None and self._newest is not None and epoch > self._newest
            self._alternates = not begins and epoch != self.epoch and self._newest is not None
            self.epoch, self.elapsed_s, self._first = epoch, 0.0, 0 if begins else read
            self._newest = epoch if self._newest is None or begins else self._newest
        elif read > self._read or waiting:
            self.elapsed_s += elapsed_s
        self._read, self._waiting = read, waiting - prefetches
        position = job.position(self.epoch)
        self._told_s = self._told_s + elapsed_s if position == self._position else 0.0
        self._position = position

    def is_behind(self, need: float, measured: MeasuredJob) -> bool:
        """Return whether the job gets less than ``need`` samples a second. It does if training reports that
        it has used too few samples, or if too few were read. While reads alternate between epochs, only the
        measured rate counts.
        """
        if self._alternates:
            return measured.average < _SURELY_KEPT * need
        if self._position is not None and measured.compute:
            trained = self._position + measured.compute * min(self._told_s, _REPORT_S)
            if trains_behind(trained, self.elapsed_s, need):
                return True
        # ``_read`` counts a read when it begins. So leave out the reads that wait for the link.
        return is_behind(self._read - self._first - self._waiting, self.elapsed_s, need)


@dataclass
class JudgedNeed:
    """The state of one job's need. ``admitted``: the proxy tries to satisfy the need. ``feasible``: by the
    latest measurement, the need fits beside the other needs; None before the first measurement.
    ``would_get``: samples per second that the job would get. ``raised``: the factor by which the need raises
    the job's weight. ``off_s``: time for which the job has got far less than it needs. ``schedule``: the
    reads of the job's present epoch.
    """

    need: JobNeed
    admitted: bool = True
    feasible: bool | None = None
    would_get: float | None = None
    changed_s: float = 0.0
    raised: float = 1.0
    off_s: float = 0.0
    schedule: Schedule = field(default_factory=Schedule)


def judged(job: Job, *known: Mapping[str, JudgedNeed]) -> JudgedNeed | None:
    """Return the state of the job's present need; None if the job has no need, or if its need was not judged
    yet.
    """
    claims = (by_name.get(job.name) for by_name in known)
    return next((claim for claim in claims if claim is not None and claim.need == job.need), None)


def in_order(jobs: Iterable[Job], known: Mapping[str, JudgedNeed]) -> list[Job]:
    """Return those of ``jobs`` that are in use and have a need. Jobs whose present needs are in ``known``
    come first, in the order of ``known``.
    """
    asked = {job.name: job for job in jobs if job.need is not None and job.in_use}
    earlier = [name for name, claim in known.items() if name in asked and claim.need == asked[name].need]
    return [asked[name] for name in dict.fromkeys((*earlier, *asked))]


def remedy_of(claim: JudgedNeed, share: JobShare) -> str:
    """Return in words what to change if a job gets less than it needs."""
    if claim.admitted and share.feasible is not False:
        return "`shadeproxy stats` shows link and cache by job; give it more workers, or announce its order"
    would = share.would_get_per_s
    least = "" if would is None else f" at most {format_count(would, 'sample', '.4g')} a second,"
    return f"ask for{least} a larger cache (`shadeproxy plan`), or less from the other jobs"


def admit(
    claims: Mapping[str, JudgedNeed],
    rows: Mapping[str, list[float]],
    needed: Mapping[str, float],
    room: Room,
    now_s: float,
) -> None:
    """Decide which of ``claims`` are admitted. Those that are admitted already are tried first, in the order
    of ``claims``. ``rows``: by job name, the row that ``demands_of`` takes, also for jobs without a claim.
    ``needed``: the need of each claim in samples per second.
    """
    names = list(rows)
    demands = demands_of(list(rows.values()))
    demands.need[:] = math.nan
    least, told = least_of_others(demands, room), 0
    for name, claim in sorted(claims.items(), key=lambda one: not one[1].admitted):
        at = names.index(name)
        demands.need[at] = needed[name] or math.nan
        claim.feasible, claim.would_get = fits(demands, least, room), needed[name]
        if not claim.feasible and (told := told + 1) <= _MOST_TOLD:
            claim.would_get = most_for(demands, at, least, room)
        if claim.feasible == claim.admitted:
            claim.changed_s = now_s
        elif now_s - claim.changed_s >= JUDGED_S:
            claim.admitted, claim.changed_s = claim.feasible, now_s
            _log.info("need admitted" if claim.feasible else "need does not fit", job=name)
        if not claim.admitted:
            demands.need[at] = math.nan


def jobs_behind(
    needs: Mapping[str, tuple[Schedule, float, Job]],
    jobs: Mapping[str, MeasuredJob],
    stats: Stats,
    queue: LinkQueue,
    elapsed_s: float,
) -> set[str]:
    """Note the reads of the last ``elapsed_s``, and return the names of the jobs that are behind their needs.
    ``needs``: by name, the schedule of each job to look at, the samples per second that it needs, and the
    job. ``jobs``: the measured jobs by name.
    """
    behind = set()
    for name, (schedule, need, job) in needs.items():
        flow = queue.flows.get(name)
        waiting, prefetches = (0, 0) if flow is None else (flow.queue.count, flow.prefetches)
        schedule.look(job, stats.jobs[name], elapsed_s, waiting=waiting, prefetches=prefetches)
        if schedule.is_behind(need, jobs.get(name) or MeasuredJob()):
            behind.add(name)
    return behind
