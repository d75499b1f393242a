"""Expectations of single jobs: when a job will read pages by its order, and how often by its scores. Both
count as far as they are believed.

``of_jobs`` answers for many jobs in one table: asking a hundred jobs one by one costs eight times as much.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shadeproxy.hints import job_state
from shadeproxy.hints.datasets import Bits, Dataset, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.hints.hint_rows import JobHints, weights_of
from shadeproxy.hints.job_state import LEAST_WEIGHT
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.activity import LEAST_TRUST, JobActivity
from shadeproxy.hints.order.orders import Orders
from shadeproxy.hints.order.sequence import NEVER, Places
from shadeproxy.hints.order.tracker import OrderTracker
from shadeproxy.hints.scoreboard import ScoreColumn
from shadeproxy.hints.shared_columns import JobAnswers, PageUnits
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns, JobScale

_MOST_JOB_WEIGHT = 32.0


class JobExpectations:
    """Expectations of the jobs in use that have read something. ``activities`` has an entry for each of these
    jobs.
    """

    def __init__(
        self,
        activities: Mapping[str, JobActivity],
        orders: Orders,
        scoreboard: Mapping[str, ScoreColumn],
    ) -> None:
        self._activities = activities
        self._orders = orders
        self._scoreboard = scoreboard

    @property
    def scored(self) -> int:
        """Number of jobs that have posted scores."""
        return len(self._scoreboard)

    def scores(self, job: str) -> ScoreColumn | None:
        """Return the scores of a job, if it has any."""
        scores = self._scoreboard.get(job)
        return scores if scores is not None and scores.known else None

    def says_anything(self, job: str) -> bool:
        """Return whether a job has announced an order or posted scores."""
        return self._orders.tracker(job) is not None or self.scores(job) is not None

    def of_pages(self, job: Job, space: Space, pages: PageUnits, tick: float) -> JobColumns[Column]:
        """Return when a job is expected to read each page (by its order), and how often (by its scores)."""
        tracker = self._orders.tracker(job.name)
        left = np.full(len(pages.units), np.inf)
        if tracker is not None and tracker.left:
            places = _places(tracker, pages)
            left = np.maximum(places - (tracker.cursor - 1.0), 1.0)
            left[places == NEVER] = np.inf
        draws = self._draws(job.name, tracker, space, pages)
        draws[pages.outside] = 0.0
        return self._scale(job, tick).columns(left, draws)

    def of_jobs(self, jobs: Sequence[Job], space: Space, pages: PageUnits, tick: float) -> JobAnswers:
        """Return when each of ``jobs`` is expected to read the pages, and how often. Shared columns call
        this. They ask about a page only now and then, so an answer must stay right if the job's place in its
        order (the cursor) moves by many places before the next question.
        """
        trackers = [self._orders.trackers.get(job.name) for job in jobs]
        shape = len(jobs), len(pages.units)
        places, (starts, floors) = np.full(shape, NEVER, np.int64), np.zeros((2, len(jobs), 1))
        draws, (believed, factors) = np.full(shape, np.nan), np.zeros((2, len(jobs), 1))
        for row, (job, tracker) in enumerate(zip(jobs, trackers, strict=True)):
            if tracker is not None:
                # The cursor is the median of the latest reads: places behind it may still be read.
                starts[row] = tracker.origin + tracker.cursor + tracker.unsettled
                floors[row] = tracker.origin + tracker.floor
                places[row] = _places(tracker, pages)
            scores = self.scores(job.name)
            believed[row] = self._believed(job.name, scores, space)
            if pages.samples is None:
                draws[row], factors[row] = self._weights(job.name, space, pages), 1.0
            elif scores is not None and scores.factor:
                draws[row], factors[row] = scores.values.take(pages.samples), scores.factor
        draws = weights_of(draws, factors)
        for row, tracker in enumerate(trackers):
            if tracker is not None and tracker.columns.mine is not None:
                draws[row, _foreign(tracker.columns.mine, space, pages)] = 0.0
        if len(pages.outside):
            draws[:, pages.outside] = 0.0
        np.minimum(draws, space.count, out=draws)
        draws *= believed
        origins = np.array([[0 if tracker is None else tracker.origin] for tracker in trackers])
        np.add(places, origins, out=places, where=places != NEVER)
        series = [0 if tracker is None else tracker.series for tracker in trackers]
        return JobAnswers([self._scale(job, tick) for job in jobs], series, starts, floors, places, draws)

    def hints(self, job: Job, space: Dataset, tick: float) -> JobHints:
        """Return the hints of a job whose samples are whole objects, for its row in a table."""
        tracker, scores = self._orders.trackers.get(job.name), self.scores(job.name)
        start, next_at, mine, factor, values = 0.0, None, None, 0.0, None
        if tracker is not None:
            if tracker.left:
                start, next_at = tracker.cursor - 1.0, tracker.columns.next_at.data
            mine = None if tracker.columns.mine is None else tracker.columns.mine.data
        if scores is not None and (factor := scores.factor):
            values = scores.values.data
        believed = self._believed(job.name, scores, space)
        return JobHints(self._scale(job, tick), start, space.count, believed, factor, next_at, values, mine)

    def add_samples(
        self, parts: list[list[JobColumns[float]]], job: Job, space: Dataset, samples: list[int], tick: float
    ) -> None:
        """Append to ``parts[i]`` when a job is expected to read ``samples[i]``, and how often: the same
        values as ``of_pages`` returns. A sample of -1 is skipped.
        """
        tracker, scores = self._orders.tracker(job.name), self.scores(job.name)
        scale, mean_draws = self._scale(job, tick), 1 / (space.count * self._orders.part)
        mine = None if tracker is None else tracker.columns.mine
        trust = max(self._activities[job.name].score_trust, LEAST_TRUST) * mean_draws
        for part, sample in zip(parts, samples, strict=True):
            if sample < 0:
                continue
            left, draws = np.inf, mean_draws
            if (
                tracker is not None
                and tracker.left
                and (place := tracker.columns.next_at.item(sample)) != NEVER
            ):
                left = max(place - (tracker.cursor - 1.0), 1.0)
            if scores is not None:
                draws = min(max(scores.draw_weight(sample), LEAST_WEIGHT), space.count) * trust
            if mine is not None and not mine[sample]:
                draws = 0.0
            part.append(scale.columns(left, draws))

    def _scale(self, job: Job, tick: float) -> JobScale:
        activity, tracker = self._activities[job.name], self._orders.trackers.get(job.name)
        coming = 0 if tracker is None else tracker.left
        weight = min(max(job.weight * activity.raised, 1.0), _MOST_JOB_WEIGHT)
        if job_state.COMPILED:
            return JobScale._make(activity.scale_at(coming, weight, tick, LEAST_TRUST))
        return activity.scale(coming=coming, silent=activity.silence(tick), weight=weight)

    def _draws(self, job: str, tracker: OrderTracker | None, space: Space, pages: PageUnits) -> Column:
        """Return how many times each page is drawn, on average, in one read of the job. Draws follow the
        job's scores, as far as these are believed.
        """
        draws = np.empty(len(pages.units))
        draws[:] = self._weights(job, space, pages)
        np.minimum(draws, space.count, out=draws)
        draws *= self._believed(job, self.scores(job), space)
        if tracker is not None and tracker.columns.mine is not None:
            draws[_foreign(tracker.columns.mine, space, pages)] = 0.0
        return draws

    def _weights(self, job: str, space: Space, pages: PageUnits) -> Column | float:
        """Return how many times as often as the mean sample each page is drawn, if the scores are fully
        believed.
        """
        scores = self.scores(job)
        if scores is not None:
            units, samples = pages.units, pages.samples
            weights = scores.draw_weights(units) if samples is None else scores.sample_weights(samples)
            return np.maximum(weights, LEAST_WEIGHT, out=weights)
        if isinstance(space, Dataset) and space.pages is not None:
            return space.pages.counts(pages.units).astype(np.float64)
        return 1.0

    def _believed(self, job: str, scores: ScoreColumn | None, space: Space) -> float:
        """Return how many times, on average, a job draws a page of weight 1 in one read, multiplied by the
        trust in the job's ``scores``.
        """
        mean_draws = 1 / (space.count * self._orders.part)
        trust = 1.0 if scores is None else max(self._activities[job].score_trust, LEAST_TRUST)
        return trust * mean_draws


def _places(tracker: OrderTracker, pages: PageUnits) -> Places:
    """Return the place of each page's next announced read, or NEVER."""
    if pages.samples is None:
        return tracker.page_places.find(pages.object_hashes, pages.numbers)
    places = tracker.columns.next_at.take(pages.samples)
    if len(pages.outside):
        places[pages.outside] = NEVER
    return places


def _foreign(mine: Bits, space: Space, pages: PageUnits) -> Ids:
    """Return the indices of the pages of objects that other proxies cache. ``mine``: the samples whose reads
    this proxy answers.
    """
    if pages.samples is not None:
        return np.flatnonzero(~mine[pages.samples])
    assert isinstance(space, Dataset), "only datasets have orders"
    groups = space.groups.find(pages.object_hashes)
    return np.flatnonzero(~mine[space.groups.first(np.maximum(groups, 0))])
