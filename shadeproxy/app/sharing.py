"""Shares cache and link among jobs by their needs: sets weights of jobs in the cache, and shares of the link.

Laws: weights and shares follow from measured misses (policy/sharing.py); no job has a quota. They stay
neutral while no job in use has a need; shares also while only one job reads from the origin. A need is
admitted only while it fits beside the needs admitted before it. A job whose need is not admitted is treated
as if it had none. If an admitted job gets less than 70 % of its need for 10 s although its reads wait for the
link, the measurements are wrong. All jobs then get equal shares for a minute, and the statistics say so.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import structlog

from shadeproxy.app.asking import demands_of, length_in, needed_rate, reason_of, samples_of, words_of_sharing
from shadeproxy.app.diagnosis import MissedNeed
from shadeproxy.app.judged_needs import JUDGED_S, JudgedNeed, admit, in_order, jobs_behind, judged, remedy_of
from shadeproxy.app.measuring import MeasuredJob, MeasuredLink, measured_jobs
from shadeproxy.core.clock import Clock
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.core.units import format_count
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.needs import JobNeed, JobShare
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.link import OTHERS, LinkQueue
from shadeproxy.origin.link_depth import LinkDepth
from shadeproxy.policy.sharing import (
    Room,
    first_weight,
    fits,
    least_of_others,
    link_weights,
    most_for,
    next_weights,
    solve,
)
from shadeproxy.telemetry.stats import Stats

_log = structlog.get_logger(__name__)
STEP_S = 2.0
PACE_S = 0.25
_HELD_EVERY_S = 10.0
_OFF = 0.7
_OFF_S = 10.0
_EQUAL_S = 60.0
_KEPT = 0.98
# A job counts as reading from the origin if its share of the link's bytes is larger than this.
_MUCH = 0.01
# The same for reads of no job. They include parts of pages that jobs read, so the limit is higher.
_MUCH_OF_OTHERS = 0.1

Held = Callable[[list[Job]], Awaitable[dict[str, float]]]
"""The type of a function that returns the share of the cache that each job's data set holds."""


@dataclass
class _State:
    """The results of the last step, which the statistics show."""

    mode: str = "off"
    reason: str = "no job in use has a need"
    link_share: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    outlook: dict[str, float] = field(default_factory=dict)


class JobSharing:
    """Implements hints/needs.py ``SharesJobs``. ``capacity_bytes``: returns the capacity of all tiers
    together. ``told_bytes_per_s``: returns the origin's bandwidth, if a setting limits it. ``count_reads``:
    adds the reads in the access log to the statistics.
    """

    def __init__(
        self,
        hints: HintRegistry,
        stats: Stats,
        clock: Clock,
        limited: LimitedOrigin,
        *,
        page_bytes: int,
        capacity_bytes: Callable[[], int],
        told_bytes_per_s: Callable[[], float] = lambda: 0.0,
        count_reads: Callable[[], None] = lambda: None,
        held: Held | None = None,
    ) -> None:
        self._hints = hints
        self._stats = stats
        self._clock = clock
        self._limited = limited
        self._capacity_bytes = capacity_bytes
        self._count_reads = count_reads
        self._held = held
        self._link = MeasuredLink(told_bytes_per_s)
        self._queue = LinkQueue(self._job_of, LinkDepth(clock.monotonic_s), page_bytes=page_bytes)
        self._jobs: dict[str, MeasuredJob] = {}
        self._claims: dict[str, JudgedNeed] = {}
        self._new: dict[str, JudgedNeed] = {}  # Needs that were judged since the last step.
        self._cache_share: dict[str, float] = {}
        self._state = _State()
        self._served: dict[str, float] = {}
        self._stepped_s = self._hurried_s = clock.monotonic_s()
        self._equal_until_s = -math.inf
        self._held_s = -math.inf

    async def run(self) -> None:
        """Call ``step`` every two seconds, ``hurry`` more often. An error is logged and ends that step."""
        while True:
            await self._clock.sleep(PACE_S if self._queue.is_shared else STEP_S)
            try:
                self.hurry()
                if self._clock.monotonic_s() - self._stepped_s >= STEP_S:
                    self.step()
                    await self._look_at_cache()
            except Exception:  # noqa: BLE001 - logged; sharing stops, and reads go on as without needs
                self._limited.share(self._queue, None)
                _log.exception("sharing of cache and link failed and goes on")

    def step(self) -> None:
        """Measure the jobs, decide which needs are admitted, and set weights and shares."""
        now_s = self._clock.monotonic_s()
        elapsed_s, self._stepped_s = max(now_s - self._stepped_s, 1e-3), now_s
        self._measure(elapsed_s)
        self._claims = {
            job.name: self._claim_of(job, now_s) for job in in_order(self._hints.jobs, self._claims)
        }
        self._new = {}
        self._admit(now_s)
        self._watch(elapsed_s, now_s)
        self._move(now_s)

    def hurry(self) -> None:
        """Let the reads of jobs that are behind their needs go first. Called four times a second."""
        if not self._queue.is_shared or self._state.mode != "needs":
            self._queue.hurry(())
            return
        now_s = self._clock.monotonic_s()
        elapsed_s, self._hurried_s = min(now_s - self._hurried_s, STEP_S), now_s
        self._count_reads()
        needs = {
            job.name: (claim.schedule, self._needed(job), job)
            for job in self._hints.jobs
            if (claim := self._claims.get(job.name)) and claim.admitted and job.name in self._stats.jobs
        }
        self._queue.hurry(jobs_behind(needs, self._jobs, self._stats, self._queue, elapsed_s))

    # ------------------------------------------------------------------ SharesJobs

    def judge(self, name: str, dataset: str | None, need: JobNeed) -> None:
        """Raise NotFeasible if a need does not fit. Until job and link are measured, the need is admitted."""
        claim = self._claims.get(name)
        if claim is not None and claim.need == need:
            return  # Another rank has registered the same need before.
        names = [other for other in self._asking() if other != name]
        measured = self._measured(name) or MeasuredJob()
        job = Job(name, dataset, need=need)
        if name in self._hints.jobs:
            job.progress = self._hints.jobs.get(name).progress
        needed = self._needed(job)
        sample_bytes = measured.sample_bytes or length_in(self._hints, dataset, self._jobs)
        if not needed or not sample_bytes or not self._link.is_known:
            return
        data_bytes = samples_of(self._hints, dataset) * sample_bytes
        own = [max(measured.rate, needed), needed, sample_bytes, data_bytes]
        rows = [*(self._asked_by(other) for other in names), own]
        demands, room = demands_of(rows), self._room()
        least = least_of_others(demands, room)
        if fits(demands, least, room):
            now_s, raised = self._clock.monotonic_s(), first_weight(len(self._claims) + 1)
            self._new[name] = JudgedNeed(
                need, feasible=True, would_get=needed, changed_s=now_s, raised=raised
            )
            return
        would = most_for(demands, len(names), least, room)
        raise need.refusal(name, would, needed)

    def share_of(self, name: str) -> JobShare:
        """Return the share of cache and link that a registered job gets, and the reason for it."""
        job, measured = self._hints.jobs.get(name), self._measured(name)
        claim = judged(job, self._claims, self._new)
        average = None if measured is None or math.isnan(measured.average) else measured.average
        needed = None if claim is None else self._needed(job) or None
        kept = None
        if measured is not None and measured.is_gone:
            average = 0.0
        elif average is not None and needed is not None and measured and measured.active_s >= JUDGED_S:
            kept = average >= _KEPT * needed
        return JobShare(
            need=None if job.need is None else job.need.kind,
            needs_per_s=needed,
            got_per_s=average,
            feasible=None if claim is None else claim.feasible,
            would_get_per_s=self._state.outlook.get(name) if claim is None else claim.would_get,
            kept=kept,
            cache_share=self._cache_share.get(name),
            link_share=self._state.link_share.get(name),
            raised=1.0 if claim is None else claim.raised,
            reason=self._reason(job, claim, kept),
        )

    def summary(self) -> dict[str, Any]:
        """Return how jobs share the link to the origin and the cache, for the statistics."""
        return {
            "mode": self._state.mode,
            "reason": self._state.reason,
            "link_bytes_per_s": self._link.bytes_per_s,
            "link_is_known": self._link.is_known,
            "depth_bytes": self._queue.depth.depth_bytes if self._queue.depth.latency_s else None,
            "waiting": self._queue.waiting,
            "others_link_share": self._state.link_share.get(OTHERS),
            "jobs": {job.name: asdict(self.share_of(job.name)) for job in self._hints.jobs},
        }

    def missed(self) -> tuple[MissedNeed, ...]:
        """Return the jobs that get less than they need."""
        found = []
        for name in self._claims:
            if name not in self._hints.jobs:
                continue  # The job was deleted after the last step.
            share = self.share_of(name)
            if share.kept is False and share.needs_per_s and share.got_per_s is not None:
                need = share.needs_per_s, share.got_per_s
                found.append(MissedNeed(name, *need, share.reason, remedy_of(self._claims[name], share)))
        return tuple(found)

    # ------------------------------------------------------------------ measuring

    def _measure(self, elapsed_s: float) -> None:
        self._count_reads()
        self._link.look(self._stats, elapsed_s)
        jobs = {job.name: job for job in self._hints.jobs}
        self._jobs = measured_jobs(jobs, self._jobs)
        for name, measured in self._jobs.items():
            if name in self._stats.jobs:
                samples = samples_of(self._hints, jobs[name].dataset)
                measured.look(jobs[name], self._stats.jobs[name], samples, elapsed_s)
        self._state.link_share = self._link_shares()

    def _link_shares(self) -> dict[str, float]:
        """Return each job's share of the bytes that came from the origin in the last window."""
        total = self._link.window_bytes
        if total <= 0:
            return {}
        shares = {name: min(one.origin_bytes / total, 1.0) for name, one in self._jobs.items()}
        return {**shares, OTHERS: max(1.0 - sum(shares.values()), 0.0)}

    async def _look_at_cache(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._held is not None and self._claims and now_s - self._held_s >= _HELD_EVERY_S:
            self._held_s = now_s
            self._cache_share = await self._held(list(self._hints.jobs))

    def _job_of(self, reader: JobContext | ObjectRef | None) -> str:
        """Return the name of the registered job to which a read belongs; OTHERS if it belongs to none."""
        if isinstance(reader, JobContext):
            return reader.job if reader.job in self._hints.jobs else OTHERS
        return OTHERS if reader is None else self._hints.jobs_of([object_hash(reader)])[0] or OTHERS

    def _measured(self, name: str) -> MeasuredJob | None:
        """Return the measurements of a registered job, if there are any."""
        measured, jobs = self._jobs.get(name), self._hints.jobs
        return measured if measured and name in jobs and measured.is_of(jobs.get(name)) else None

    def _needed(self, job: Job) -> float:
        """Return the need of a job in samples per second; 0 if it is not known, or nothing is left."""
        measured = self._measured(job.name) or MeasuredJob()
        return needed_rate(job, measured, samples_of(self._hints, job.dataset), self._clock.now_s())

    # ------------------------------------------------------------------ deciding

    def _room(self) -> Room:
        return Room(self._link.bytes_per_s, float(self._capacity_bytes()))

    def _asking(self) -> list[str]:
        """Return the names of the jobs that read now, or did a moment ago."""
        return [
            job.name
            for job in self._hints.jobs
            if job.in_use and (one := self._jobs.get(job.name)) and one.rate and not one.is_gone
        ]

    def _asked_by(self, name: str) -> list[float]:
        """Return what a job asks for, as a row of ``Demands``."""
        job, measured = self._hints.jobs.get(name), self._jobs[name]
        claim = judged(job, self._claims, self._new)
        needed = self._needed(job) if claim is not None and claim.admitted else 0.0
        rate = max(measured.rate, needed if measured.compute == 0 else 0.0)
        data_bytes = samples_of(self._hints, job.dataset) * measured.sample_bytes
        return [rate, needed or math.nan, measured.sample_bytes, data_bytes]

    def _claim_of(self, job: Job, now_s: float) -> JudgedNeed:
        known = judged(job, self._claims, self._new)
        assert job.need is not None, "asked for before"
        return known or JudgedNeed(job.need, changed_s=now_s, raised=first_weight(len(self._claims) + 1))

    def _admit(self, now_s: float) -> None:
        """Decide which needs are admitted. Needs that were stated earlier come first."""
        names = self._asking()
        if not self._link.is_known or not any(name in self._claims for name in names):
            self._state.outlook = {}
            return
        rows = {name: self._asked_by(name) for name in names}
        claims = {name: claim for name, claim in self._claims.items() if name in rows}
        needed = {name: self._needed(self._hints.jobs.get(name)) for name in claims}
        admit(claims, rows, needed, self._room(), now_s)
        demands = demands_of([self._asked_by(name) for name in names])
        rates = solve(demands, self._room()).rate
        self._state.outlook = dict(zip(names, rates.tolist(), strict=True))

    def _watch(self, elapsed_s: float, now_s: float) -> None:
        """Fall back to equal shares if an admitted job has got far less than it needs for too long."""
        for name, claim in self._claims.items():
            measured, flow = self._jobs[name], self._queue.flows.get(name)
            # A job that is behind goes first. If only a few of its reads wait, the link does not slow it.
            waits = flow is not None and flow.queue.count > flow.flying
            needed = self._needed(self._hints.jobs.get(name))
            is_off = claim.admitted and self._queue.is_shared and waits and measured.got < _OFF * needed
            claim.off_s = claim.off_s + elapsed_s if is_off else 0.0
            if claim.off_s >= _OFF_S and now_s >= self._equal_until_s:
                self._equal_until_s = now_s + _EQUAL_S
                claim.off_s = 0.0
                self._state.reason = (
                    f"job {name!r} got {measured.got:.4g} of the {format_count(needed, 'sample', '.4g')}"
                    " a second that it should get: all jobs have equal shares for a minute"
                )
                _log.warning("equal shares", reason=self._state.reason)

    def _move(self, now_s: float) -> None:
        """Set the weights of the jobs in the cache, and their shares of the link."""
        names = self._asking()
        claims = [name for name in names if name in self._claims and self._claims[name].admitted]
        for claim in self._claims.values():
            claim.raised = claim.raised if claim.admitted else 1.0
        if now_s < self._equal_until_s:
            self._state.mode = "equal"
            self._hints.expectations.raise_weights({})
            self._limited.share(self._queue, dict.fromkeys(names, 1.0))
            return
        if not claims:
            self._stop("no job in use has a need" if not self._claims else "no need is admitted")
            return
        demands = demands_of([self._asked_by(name) for name in names])
        jobs = [self._jobs[name] for name in names]
        of = {name: self._claims[name] for name in claims}
        none = JudgedNeed(JobNeed())
        raised = np.array([of.get(name, none).raised for name in names])
        got = np.array(
            [rate if one.is_resting else one.average for rate, one in zip(demands.rate, jobs, strict=True)]
        )
        for name, factor in zip(names, next_weights(raised, got, demands).tolist(), strict=True):
            if name in of:
                of[name].raised = factor
        self._hints.expectations.raise_weights({name: self._claims[name].raised for name in claims})
        shares = self._state.link_share.items()
        readers = [name for name, share in shares if share > (_MUCH_OF_OTHERS if name == OTHERS else _MUCH)]
        if len(readers) < 2 and not self._queue.waiting:
            self._stop("one job reads from the origin", keeps_weights=True)
            return
        misses = np.array([one.miss_bytes for one in jobs])
        weights = link_weights(demands, misses)
        self._share(dict(zip(names, weights.tolist(), strict=True)), claims)

    def _share(self, weights: dict[str, float], claims: list[str]) -> None:
        """Share the link. Reads of no job get the mean weight of the jobs without a need, or of all jobs."""
        without = [weight for name, weight in weights.items() if name not in claims]
        alike = without or list(weights.values())
        weights[OTHERS] = sum(alike) / len(alike)
        self._state.mode, self._state.weights = "needs", weights
        self._state.reason = words_of_sharing(len(claims), len(without))
        self._limited.share(self._queue, weights)

    def _stop(self, reason: str, *, keeps_weights: bool = False) -> None:
        self._state.mode, self._state.reason = "off", reason
        if not keeps_weights:
            self._hints.expectations.raise_weights({})
        if self._queue.is_used:
            self._limited.share(self._queue, None)

    def _reason(self, job: Job, claim: JudgedNeed | None, kept: bool | None) -> str:
        missed = self._why_missed(job) if kept is False else ""
        return reason_of(
            job,
            self._measured(job.name) or MeasuredJob(),
            self._needed(job),
            is_admitted=None if claim is None else claim.admitted,
            is_link_known=self._link.is_known,
            missed=missed,
        )

    def _why_missed(self, job: Job) -> str:
        if self._clock.monotonic_s() < self._equal_until_s:
            return "all jobs have equal shares, because a prediction was wrong"
        flow = self._queue.flows.get(job.name)
        if self._queue.is_shared and flow is not None and not flow.queue.count:
            return "its reads do not wait for the link: it reads too few at a time, or announces no order"
        return "its reads wait for the link; its share grows while it misses its need"
