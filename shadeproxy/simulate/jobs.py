"""Jobs of a trace: what their orders and scores say about each object, as a proxy would know it at each read.

Laws: no read is known before it was announced. The pace, silence and trust of jobs are computed by the
product's own code (``JobActivity``). Time is in ticks: reads of all clients together.
"""

from collections.abc import Iterator
from math import inf

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.order.activity import LEAST_TRUST, JobActivity
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns, expect, expect_one
from shadeproxy.simulate.hints import AFTER, BEFORE, Announce, hints_of, read_facts
from shadeproxy.simulate.trace import Ids, JobHints, Positions, Trace

_MOST_CHANCE = 0.9
_LEAST_WEIGHT = 1e-9


class TraceJobs:
    """The jobs of a trace. For each block of reads, in order: call ``begin``, and then ``until`` for reads of
    that block, in order.
    """

    def __init__(self, trace: Trace, announce: Announce) -> None:
        """Make the jobs. Raises ConfigError if the trace lacks what ``announce`` needs."""
        hints = hints_of(trace, announce)
        facts = read_facts(trace, hints)
        self._ids, self._job_of, self._announced = trace.ids, facts.job, facts.announced
        self._jobs = [_TraceJob(hint, trace.objects) for hint in hints]

    def begin(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Begin the block of reads ``[start, stop)``. Return which of these reads an order or scores explain:
        bool[stop - start].
        """
        ids, job_of, announced = self._ids[start:stop], self._job_of[start:stop], self._announced[start:stop]
        explained = np.zeros(stop - start, dtype=np.bool_)
        for job in self._jobs:
            mine = np.flatnonzero(job_of == job.number)
            job.end_block(float(start))
            job.take_scores(start)
            explained[mine] = job.begin_block(start + mine, ids[mine], announced[mine])
        return explained

    def until(self, ids: NDArray[np.int64], at: int) -> tuple[Column, Column]:
        """Return two columns for ``ids``, as known after read ``at``: the ticks until the next announced use,
        and the expected draws per tick.
        """
        for job in self._jobs:
            job.advance(at)
        heard = [job for job in self._jobs if job.heard]
        if len(ids) == 1:  # As columns, one object would take five times as long.
            one = ids.item()
            soonest, rate = expect_one([job.column(one, at + 1.0) for job in heard])
            return np.array([soonest]), np.array([rate])
        return expect([job.columns(ids, at + 1.0) for job in heard], len(ids))

    def restart(self) -> None:
        """Forget how jobs have read. The hints of a job do not count until it reads again."""
        for job in self._jobs:
            job.restart()


class _TraceJob:
    """One job: its place in its order, its scores, and how far its hints are believed."""

    def __init__(self, hint: JobHints, objects: int) -> None:
        self.number = hint.job
        self.done = 0
        self.heard = True
        self._hint = hint
        count = self._never = len(hint.order)
        by_id = np.argsort(hint.order, kind="stable")
        in_order = hint.order[by_id]
        again = in_order[1:] == in_order[:-1]
        self._following = np.full(count + 1, count, dtype=np.int64)
        self._following[by_id[:-1][again]] = by_id[1:][again]
        self._next = np.full(objects, count, dtype=np.int64)
        first = np.append(True, ~again)[:count]
        self._next[in_order[first]] = by_id[first]
        self._follows, self._nexts = self._following.data, self._next.data
        distinct = len(in_order) - int(again.sum())
        self._chance = min((BEFORE + AFTER) / max(distinct, 1), _MOST_CHANCE)
        """The share of a job's reads that would be found near its place by chance, if it read the same ids in
        any order.
        """
        self._activity = JobActivity()
        self._weights: Column | None = None
        self._drawn = 0.0
        self._row = 0
        self._reads: Iterator[tuple[int, int, bool]] = iter(())
        self._coming: tuple[int, int, bool] | None = None
        self._count = self._found = self._others = 0
        self._drawn_now: list[float] = []
        self._seen = 0.0
        """The tick of the job's latest read. ``_activity`` does not know it exactly, because it gets the
        reads of a whole block at a time.
        """

    def restart(self) -> None:
        self._activity, self.heard = JobActivity(), False

    def take_scores(self, start: int) -> None:
        """Use the scores that were posted up to read ``start`` of the trace."""
        hint = self._hint
        if hint.scores is None or hint.scored_at is None:
            return
        while self._row < len(hint.scored_at) and hint.scored_at[self._row] <= start:
            scores = hint.scores[self._row].astype(np.float64)
            mean = float(np.nanmean(scores)) if not np.isnan(scores).all() else 1.0
            weights = np.nan_to_num(scores / mean if mean > 0 else scores + 1.0, nan=1.0)
            self._weights = np.clip(weights, _LEAST_WEIGHT, len(weights))
            self._drawn = float((self._weights**2).sum() / self._weights.sum())
            self._row += 1

    def begin_block(self, at: Positions, ids: Ids, announced: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Take the job's reads in a block. ``at``: their positions in the trace. ``ids``: the ids read.
        Return for each of these reads whether the order or the scores explain it: bool[n].
        """
        hint = self._hint
        known = hint.known_after(self.done + np.arange(len(ids))) > self.done + np.arange(len(ids))
        self._others = int(np.count_nonzero(known & ~announced))
        self._found = int(announced.sum())
        self._reads = iter(zip(at.tolist(), ids.tolist(), announced.tolist(), strict=True))
        self._coming = next(self._reads, None)
        self._count = len(ids)
        explained = announced & self._activity.order_explains
        inside = (ids >= hint.first) & (ids < hint.stop)
        if self._weights is not None:
            self._drawn_now = self._weights[ids[inside].astype(np.int64) - hint.first].tolist()
            if self._activity.scores_explain:
                explained |= inside
        return explained

    def advance(self, at: int) -> None:
        """Move the job to its place in its order after read ``at`` of the trace."""
        nexts, follows = self._nexts, self._follows
        while self._coming is not None and self._coming[0] <= at:
            _, one, near = self._coming
            place = nexts[one]
            while place < self.done - BEFORE and place < self._never:
                place = follows[place]
            nexts[one] = follows[place] if near else place
            self.done += 1
            self._seen = self._coming[0] + 1.0
            self._coming = next(self._reads, None)

    def end_block(self, tick: float) -> None:
        """Add the block's reads to the job's activity. ``tick``: the tick at which the block ended."""
        if self._coming is not None:
            self.advance(int(tick))
        if self._count:
            self.heard = True
            self._activity.ordered(self._found, self._others, self._chance)
            self._activity.drawn(self._drawn_now, self._drawn)
            self._activity.read(self._count, tick)
        self._count = 0

    def columns(self, ids: NDArray[np.integer], tick: float) -> JobColumns[Column]:
        """Return when this job is expected to read ``ids``, and how often, as known at ``tick``."""
        activity, hint = self._activity, self._hint
        left, coming = np.full(len(ids), np.inf), 0
        if self._never:
            places = self._next[ids]
            while len(past := np.flatnonzero(places < min(self.done - BEFORE, self._never))):
                places[past] = self._following[places[past]]
            known = hint.known_now(self.done)
            left = np.where(places < known, np.maximum(places - self.done + 1.0, 1.0), np.inf)
            coming = max(known - self.done, 0)
        weight: Column | float = 1.0 if self._never else 0.0
        inside = (ids >= hint.first) & (ids < hint.stop)
        if self._weights is not None:
            places = np.where(inside, ids.astype(np.int64) - hint.first, 0)
            weight = self._weights[places] * max(activity.score_trust, LEAST_TRUST)
        draws = np.where(inside, weight / (hint.stop - hint.first), 0.0)
        return activity.scale(coming=coming, silent=self._silence(tick)).columns(left, draws)

    def column(self, one: int, tick: float) -> JobColumns[float]:
        """Return the result of ``columns`` for one object, as numbers."""
        activity, hint = self._activity, self._hint
        left, coming = inf, 0
        if self._never:
            place, passed = self._nexts[one], min(self.done - BEFORE, self._never)
            while place < passed:
                place = self._follows[place]
            known = hint.known_now(self.done)
            if place < known:
                left = max(place - self.done + 1.0, 1.0)
            coming = max(known - self.done, 0)
        draws = 0.0
        if hint.first <= one < hint.stop:
            weight = 1.0 if self._never else 0.0
            if self._weights is not None:
                weight = self._weights.item(one - hint.first) * max(activity.score_trust, LEAST_TRUST)
            draws = weight / (hint.stop - hint.first)
        return activity.scale(coming=coming, silent=self._silence(tick)).columns(left, draws)

    def _silence(self, tick: float) -> float:
        """Return the ticks since the job's latest read; 0 while a gap of that length is usual for it."""
        silent = tick - self._seen
        return silent if silent > self._activity.usual_silence and self._activity.reads else 0.0
