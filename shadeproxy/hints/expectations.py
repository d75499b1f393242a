"""Expectations: estimate when pages will be read next, from the orders and scores of jobs and from how well
reads agree with them.

Implements the ports NextUses and ReadObserver of order/upcoming.py. Time is counted in ticks; each demand
read of the proxy is one tick. Laws: a job counts only while it is in use and after it has read something. A
hint is believed as far as reads agree with it, and no further.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.off_loop import OffLoop
from shadeproxy.core.types import JobContext
from shadeproxy.core.units import format_count
from shadeproxy.hints.dataset_index import DatasetIndex
from shadeproxy.hints.datasets import Bits, Dataset, Hashes, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.hints.hint_rows import HintRows
from shadeproxy.hints.job_expectations import JobExpectations
from shadeproxy.hints.job_reads import JobReads
from shadeproxy.hints.jobs import Job, Jobs
from shadeproxy.hints.order.activity import JobActivity
from shadeproxy.hints.order.orders import Orders
from shadeproxy.hints.order.sequence import NEVER
from shadeproxy.hints.order.tracker import OrderTracker
from shadeproxy.hints.scoreboard import ScoreColumn
from shadeproxy.hints.shared_columns import (
    LEAST_JOBS,
    PageUnits,
    SharedColumns,
    can_share,
    has_whole_objects,
)
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns, expect, expect_one

_NEW_READS = 128
_DOUBT = 0.5
# With many jobs, the list of the jobs that count is renewed after this many ticks, not for each ranking.
_SPACES_TICKS = 256.0
_MOST_OWNERS = 2
"""Largest number of jobs on a dataset that is looked up in the index. With more jobs, asking each of them
about its pages costs less.
"""
_LEAST_INDEXED = LEAST_JOBS // 2  # An index is dropped when fewer datasets than this could be in it.
_GONE_SHARE = 4  # An index is made again when more than 1 / n of its objects are no longer wanted.
_WORTH_COLUMNS = 4
"""The expectations of this many pages or more are computed as columns. Fewer pages cost less one by one."""


class Belief(NamedTuple):
    """The trust in a job, for display. Trust is from 0 to 1. ``gap_reads``: mean number of reads by all
    clients from one read of the job to the next; None before its first read. ``silent_reads``: number of
    reads by all clients since the job's last read; 0 while such a pause is usual for the job.
    """

    order_trust: float
    score_trust: float
    gap_reads: float | None
    silent_reads: int
    reason: str


class Expectations:
    """Expected next uses of pages by all jobs. ``space`` takes the name of a job and returns the job's
    samples. ``page_size``: in bytes.
    """

    def __init__(
        self,
        jobs: Jobs,
        orders: Orders,
        scoreboard: dict[str, ScoreColumn],
        space: Callable[[str], Space],
        *,
        page_size: int,
        off_loop: OffLoop,
    ) -> None:
        self._jobs = jobs
        self._orders = orders
        self._scoreboard = scoreboard
        self._space = space
        self._page_size = page_size
        self._activities: dict[str, JobActivity] = {}
        self._each = JobExpectations(self._activities, orders, scoreboard)
        self._reads = JobReads(
            jobs,
            orders,
            self._each,
            self._activities,
            scoreboard,
            space=space,
            index=lambda: self._index,
            used=self._used,
            shared=self._columns_of,
            page_size=page_size,
        )
        self._tick = 0.0
        self._spaces: list[tuple[Space, list[Job]]] = []
        self._spaces_until = 0.0
        self._shared: list[SharedColumns] = []
        self._off_loop, self._indexing = off_loop, False
        self._index = DatasetIndex([])
        # The index from which ``_owners`` was made; None if that index does not fit the present datasets.
        self._looked_up: DatasetIndex | None = None
        # ``_owners``: tables of the jobs on indexed datasets; a table has at most one job of a dataset.
        # ``_beside``: all other jobs.
        self._owners: list[HintRows] = []
        self._beside: list[tuple[Space, list[Job]]] = []
        self._is_whole = True  # True if all samples are whole objects.

    def forget(self, job: str) -> None:
        """Forget the reads and the activity of a deleted job."""
        self._activities.pop(job, None)
        self._reads.forget(job)
        self._spaces = [(space, [one for one in jobs if one.name != job]) for space, jobs in self._spaces]
        # Many jobs may expire together, so group jobs and datasets again only when pages are next ranked.
        self._looked_up, self._spaces_until = None, 0.0

    def raise_weights(self, raised: Mapping[str, float]) -> None:
        """Set the factors by which the weights of jobs are multiplied. A job that ``raised`` does not name
        gets the factor 1.
        """
        for name, activity in self._activities.items():
            activity.raised = raised.get(name, 1.0)

    # ------------------------------------------------------------------ methods of upcoming.NextUses

    def expect(
        self, object_hashes: Hashes, numbers: NDArray[np.uint32], tick: float
    ) -> tuple[Column, Column]:
        self._tick = max(tick, self._tick)
        self._renew_spaces(tick)
        count = len(object_hashes)
        if not (self._owners or self._beside):
            return expect([], count)
        if 0 < count < _WORTH_COLUMNS and self._is_whole:
            return self._expect_few(object_hashes, tick)
        columns: list[JobColumns[Column]] = []
        if self._owners:
            owners, samples = self._index.find(object_hashes)
            columns = [hints.columns(owners, samples, tick) for hints in self._owners]
        for space, jobs in self._beside:
            pages = PageUnits.of(space, object_hashes, numbers)
            if len(pages.outside) < count:
                shared = self._shared_by(space)
                if shared is None:
                    columns += [self._each.of_pages(job, space, pages, tick) for job in jobs]
                else:
                    columns.append(shared.columns(pages, tick))
        return expect(columns, count)

    def _renew_spaces(self, tick: float) -> None:
        """Make the list of the jobs that count, one group for each dataset or growing set. With many jobs,
        make it only once in ``_SPACES_TICKS`` ticks.
        """
        if tick < self._spaces_until and len(self._jobs) >= LEAST_JOBS:
            return
        by_space: dict[int, tuple[Space, list[Job]]] = {}
        activities, trackers, scoreboard = self._activities, self._orders.trackers, self._scoreboard
        # The samples of a registered job stay the same, so only new jobs are asked for theirs.
        known = {id(job): space for space, jobs in self._spaces for job in jobs}
        for name, job in self._jobs.by_name.items() if self.active else ():
            # Where jobs are many, most have read nothing at this proxy. Skip these first, so that they cost
            # little.
            activity = activities.get(name)
            if activity is None or not activity.reads or not job.in_use:
                continue
            if name in trackers or ((scores := scoreboard.get(name)) is not None and scores.known):
                space = known.get(id(job)) or self._space(name)
                by_space.setdefault(id(space), (space, []))[1].append(job)
        before, self._spaces = self._spaces, list(by_space.values())
        self._spaces_until = tick + _SPACES_TICKS
        self._share(tick)
        if before != self._spaces or self._index is not self._looked_up:
            self._look_up()

    def _look_up(self) -> None:
        """Divide jobs into those whose dataset is looked up in the index, and all others, whose datasets are
        searched one by one. If there are many datasets and the index does not fit them, begin to make a new
        index off the event loop.
        """
        if len(self._spaces) < LEAST_JOBS and not self._index.datasets:
            self._beside, self._owners = self._spaces, []
            self._is_whole = all(has_whole_objects(space) for space, _ in self._spaces)
            return
        wanted = [space for space, _ in self._spaces if has_whole_objects(space)]
        wanted = wanted if len(wanted) >= (_LEAST_INDEXED if self._index.datasets else LEAST_JOBS) else []
        if not self._indexing and not self._off_loop.is_resting and self._is_old(wanted):
            self._indexing = True
            try:
                self._off_loop(partial(DatasetIndex, wanted), self._indexed, self._not_indexed)
            except RuntimeError:  # The pool has shut down. Go on without a new index.
                self._indexing = False
        owner_of = self._index.owner_of
        apart = {id(shared.space) for shared in self._shared}
        self._beside, owners, self._is_whole = [], list[list[tuple[Job, Dataset] | None]](), True
        for space, jobs in self._spaces:
            owner = owner_of.get(id(space))
            if (
                owner is None
                or len(jobs) > _MOST_OWNERS
                or id(space) in apart
                or not has_whole_objects(space)
            ):
                self._beside.append((space, jobs))
                self._is_whole &= has_whole_objects(space)
                continue
            for at, job in enumerate(jobs):
                if at == len(owners):
                    owners.append([None] * len(owner_of))
                owners[at][owner] = job, space
        hints, trackers = self._each.hints, self._orders.trackers
        self._owners = [HintRows(jobs, hints, trackers, self._activities) for jobs in owners]
        self._looked_up = None if self._is_old(wanted) else self._index

    def _is_old(self, wanted: Sequence[Dataset]) -> bool:
        """Return whether the index lacks a wanted dataset, or has many objects of datasets that are no longer
        wanted.
        """
        known, ids = {id(space) for space in self._index.datasets}, {id(space) for space in wanted}
        gone = sum(space.count for space in self._index.datasets if id(space) not in ids)
        return not ids <= known or gone * _GONE_SHARE > sum(space.count for space in self._index.datasets)

    def _indexed(self, index: DatasetIndex) -> None:
        self._index, self._indexing = index, False
        self._spaces_until = 0.0

    def _not_indexed(self) -> None:
        self._indexing = False

    def _share(self, tick: float) -> None:
        """Make shared columns for datasets that have many jobs, and drop those of other datasets."""
        known, self._shared = self._shared, []
        for space, jobs in self._spaces:
            if len(jobs) >= LEAST_JOBS and can_share(space):
                mine = next((one for one in known if one.space is space), None)
                self._shared.append(mine or SharedColumns(space, tick))

    def _shared_by(self, space: Space) -> SharedColumns | None:
        """Return the shared columns of a dataset; None until they have an answer for every page."""
        return next((one for one in self._shared if one.ready and one.space is space), None)

    def _used(self, tracker: OrderTracker, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> None:
        """Note in shared columns that the job of ``tracker`` has read announced pages."""
        for shared in self._shared:
            if shared.space is tracker.lookup.dataset:
                pages = PageUnits.of(shared.space, object_hashes, numbers)
                places = tracker.page_places.find(object_hashes, numbers).astype(np.int64)
                places[places != NEVER] += tracker.origin
                known = pages.units >= 0
                shared.read(tracker.job, pages.rows[known].tolist(), places[known].tolist())

    def _columns_of(self, space: Dataset) -> SharedColumns | None:
        """Return the shared columns of a dataset, even if they are not complete; None if it has none."""
        if not self._shared:  # The usual case: with many datasets, each of them asks.
            return None
        return next((one for one in self._shared if one.space is space), None)

    def _ask(self, tick: float) -> None:
        """Ask the jobs about the pages that are due in shared columns."""
        for shared in self._shared:
            jobs = next((jobs for space, jobs in self._spaces if space is shared.space), [])
            shared.ask(jobs, self._each.of_jobs, tick)

    def _expect_few(self, object_hashes: Hashes, tick: float) -> tuple[Column, Column]:
        """Return the result of ``expect``, computed page by page. All samples must be whole objects."""
        hashes = object_hashes.tolist()
        parts: list[list[JobColumns[float]]] = [[] for _ in hashes]
        for part, hashed in zip(parts, hashes, strict=True) if self._owners else ():
            owner, sample = self._index.find_one(hashed)
            for owned in self._owners if owner >= 0 else ():
                if (one := owned.jobs[owner]) is not None:
                    self._each.add_samples([part], *one, [sample], tick)
        for space, jobs in self._beside:
            assert isinstance(space, Dataset), "growing sets are left to columns"
            samples = [space.groups.find_one(hashed) for hashed in hashes]
            if max(samples) < 0:
                continue
            shared = self._shared_by(space)
            for job in jobs if shared is None else ():
                self._each.add_samples(parts, job, space, samples, tick)
            for part, sample in zip(parts, samples, strict=True):
                if shared is not None and sample >= 0:
                    part.append(shared.column(sample, tick))
        soonest, rates = np.array([expect_one(part) for part in parts]).T
        return soonest, rates

    def announces(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Bits:
        return self._orders.announces(object_hashes, numbers)

    # ------------------------------------------------------------------ display

    def belief(self, job: str) -> Belief:
        """Return how far a registered job is believed, and why."""
        activity, one = self._activities.get(job) or JobActivity(), self._jobs.get(job)
        silent, usual = activity.silence(self._tick), activity.usual_silence
        order_trust, score_trust = round(activity.order_trust, 3), round(activity.score_trust, 3)
        reasons = []
        if self._orders.tracker(job) is not None:
            reasons.append(f"{order_trust:.0%} of its reads were announced".replace("%", " %"))
        if self._each.scores(job) is not None:
            reasons.append(f"its reads follow its scores by {score_trust:.0%}".replace("%", " %"))
        if not one.in_use:
            reasons = ["it has ended or expired, and counts for nothing"]
        elif not reasons:
            reasons = ["it announces nothing and posts no scores"]
        elif not activity.reads:
            reasons = ["it has read nothing yet, and counts for nothing until it does"]
        elif activity.reads < _NEW_READS:
            reasons.append(
                f"new: {format_count(activity.reads, 'read')}, and a new name is believed by a half"
            )
        if silent and one.in_use:
            reasons.insert(
                0, f"silent for {format_count(silent, 'read', ',.0f')} of others, {usual:,.0f} are usual"
            )
        gap = round(activity.gap, 1) if activity.reads else None
        return Belief(order_trust, score_trust, gap, int(silent), "; ".join(reasons))

    def doubtful(self) -> Iterator[tuple[Job, Belief]]:
        """Yield the jobs in use that are silent, or whose hints are believed by less than a half. The trust
        in scores counts only for a job without an order: a job that reads a uniform order may post losses.
        """
        for job in self._jobs:
            activity = self._activities.get(job.name)
            if (
                activity is None
                or not activity.reads
                or not job.in_use
                or not self._each.says_anything(job.name)
            ):
                continue
            belief, is_announced = self.belief(job.name), self._orders.tracker(job.name) is not None
            trust = belief.order_trust if is_announced else belief.score_trust
            if belief.silent_reads or (trust < _DOUBT and activity.reads >= _NEW_READS):
                yield job, belief

    # ------------------------------------------------------------------ methods of upcoming.ReadObserver

    @property
    def active(self) -> bool:
        return bool(self._orders.trackers or self._scoreboard)

    def note_read(
        self, object_hash: int, offset: int, job: JobContext | None, now_s: float, tick: float
    ) -> bool:
        self._tick = max(tick, self._tick)
        explained = self._reads.note_read(object_hash, offset, job, now_s, tick)
        self._ask(tick)
        return explained

    def note_reads(
        self,
        object_hashes: Hashes,
        offsets: Ids,
        jobs: Sequence[JobContext | None],
        now_s: float,
        tick: float,
    ) -> Bits:
        self._tick = max(tick, self._tick)
        explained = self._reads.note_reads(object_hashes, offsets, jobs, now_s, tick)
        self._ask(tick)
        return explained
