"""The hint registry: datasets, jobs, scores and orders, for the engine and the control listener.

Laws: no I/O, clock or coroutine. Methods run on the event loop, unless their docstring says otherwise.
Every call checks first and changes afterwards, so a refused call changes nothing. When an item changes that
must survive a restart, the registry calls ``dirty(kind, name)``. The composition root then calls ``export``
for the item and stores the bytes.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import Conflict, InvalidRequest, TooManyHints, UnknownName
from shadeproxy.core.off_loop import OffLoop, at_once
from shadeproxy.hints.dataset_uses import DatasetUses
from shadeproxy.hints.datasets import Bits, Dataset, Hashes, Ids
from shadeproxy.hints.expectations import Expectations
from shadeproxy.hints.frozen import FrozenScores
from shadeproxy.hints.growing import GrowingSet, Space, namespace_of, ref_of, title_of
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job, Jobs, Progress, check_progress, check_rank, ignore, refuse_if_any
from shadeproxy.hints.order.announcements import Announcement, check_order
from shadeproxy.hints.order.orders import Orders
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.hints.pages import PAGE_SIZE_BYTES
from shadeproxy.hints.scoreboard import Batch, ScoreColumn, Scores, Weights, check_ids, check_scores
from shadeproxy.hints.stored import StoredHints

MAX_DATASETS = 256


class HintRegistry(StoredHints):
    """Registry of access hints. ``page_size``: bytes of a page of the cache. ``on_run`` is called with a
    job's name when its first run or a new run begins. ``off_loop`` runs computations that would hold the
    event loop.
    """

    def __init__(
        self,
        *,
        dirty: Callable[[str, str], None] = ignore,
        page_size: int = PAGE_SIZE_BYTES,
        on_epoch: Callable[[Job], None] = ignore,
        on_run: Callable[[str], None] = ignore,
        on_lost: Callable[[Orders, str], None] = ignore,
        on_orders_changed: Callable[[], None] = ignore,
        off_loop: OffLoop = at_once,
    ) -> None:
        self.page_size = page_size
        self.datasets: dict[str, Dataset] = {}
        self.jobs = Jobs(on_epoch)
        self.scoreboard: dict[str, ScoreColumn] = {}
        self.growing: dict[str, GrowingSet] = {}
        self.dirty = dirty
        self.uses = DatasetUses(dirty)
        self.frozen = FrozenScores()
        self._on_run = on_run
        self.orders = Orders(
            self.jobs,
            self.dataset,
            page_size=page_size,
            dirty=dirty,
            on_lost=on_lost,
            on_change=on_orders_changed,
        )
        known = (self.jobs, self.orders, self.scoreboard, self.space)
        self.expectations = Expectations(*known, page_size=page_size, off_loop=off_loop)

    # ------------------------------------------------------------------ datasets

    def dataset(self, name: str) -> Dataset:
        """Return the dataset. Raises UnknownName."""
        dataset = self.datasets.get(name)
        if dataset is None:
            hint = f"register it: PUT /v1/datasets/{name}"
            raise UnknownName(f"dataset {name!r} is not registered", hint=hint)
        return dataset

    def put_dataset(self, dataset: Dataset) -> bool:
        """Register a dataset. Return False, and change nothing, if the same manifest has this name already.

        If another manifest had the name, it is replaced. Ended jobs on it lose their scores and orders,
        because their ids were of that manifest. Raises Conflict when a job in use is on it, and
        TooManyHints when there are MAX_DATASETS.
        """
        if not self.check_dataset(dataset):
            return False
        for job in self.jobs.on(dataset.name):
            self.jobs.renew(job)  # A job that is silent but not ended is deleted, and must register again.
            self._forget(job)
        self.datasets[dataset.name] = dataset
        self.dirty("datasets", dataset.name)
        return True

    def check_dataset(self, dataset: Dataset) -> bool:
        """Return whether ``put_dataset`` would change something. Raises the errors of ``put_dataset``."""
        known = self.datasets.get(dataset.name)
        if known is not None and known.digest == dataset.digest:
            return False
        if known is None and len(self.datasets) >= MAX_DATASETS:
            hint = "delete unused ones: DELETE /v1/datasets/NAME"
            raise TooManyHints(f"{MAX_DATASETS} datasets are registered already, and in use", hint=hint)
        refuse_if_any([job for job in self.jobs.on(dataset.name) if job.in_use])
        return True

    def delete_dataset(self, name: str) -> None:
        """Forget the dataset. Raises UnknownName, Conflict (a job uses it)."""
        self.check_unused(name)
        del self.datasets[name]
        self.dirty("datasets", name)
        self.uses.forget(name)

    def check_unused(self, name: str) -> None:
        """Raise UnknownName if there is no such dataset, Conflict if a job uses it."""
        self.dataset(name)
        refuse_if_any(self.jobs.on(name))

    # ------------------------------------------------------------------ jobs

    def put_job(self, job: Job, now_s: float) -> Job:
        """Register or update a job; an ended job may change its dataset. Raises UnknownName, Conflict."""
        if self.check_job(job):
            self.delete_job(job.name)
        known = self.jobs.put(job, now_s)
        if known.dataset is None:
            self.growing.setdefault(known.name, GrowingSet(f"job:{known.name}"))
        self.dirty("jobs", known.name)
        return known

    def check_job(self, job: Job) -> bool:
        """Return whether ``put_job`` would first delete an ended job of that name. Raises the errors of
        ``put_job``. If the registered job has the same samples in a dataset of another name, that name is
        written into ``job``.
        """
        digest = None if job.dataset is None else self.dataset(job.dataset).digest
        known = self.jobs.get(job.name) if job.name in self.jobs else None
        if known is not None and known.dataset not in (None, job.dataset):
            assert known.dataset is not None, "as compared"
            if self.datasets[known.dataset].digest == digest:
                job.dataset = known.dataset  # The dataset has a new name, but the same samples.
        if known is not None and known.dataset != job.dataset and not known.in_use:
            return True
        self.jobs.check(job)
        return False

    def begin_run(self, name: str, rank: int, *, resumes: bool) -> None:
        """Begin a run; see ``Jobs.begin``. A new run does not draw from scores of earlier runs unless it
        ``resumes``, but they still rank pages. Raises the errors of ``Jobs.begin``.
        """
        is_first = not self.jobs.get(name).begun
        is_new = self.jobs.begin(name, rank, resumes=resumes)
        if is_new:
            self.frozen.forget(name)
            self.orders.end_run(name)
            self.orders.announced.begin_run(name)
            if (column := self.scoreboard.get(name)) is not None:
                column.of_run[:] = False
                self.dirty("scores", name)
        if is_new or is_first:  # A job may have run under an earlier registration, before its first run here.
            self._on_run(name)
        self.dirty("jobs", name)

    def delete_job(self, name: str) -> None:
        """Forget the job, its scores and its orders. Raises UnknownName."""
        self._forget(self.jobs.delete(name))

    def end_rank(self, name: str, rank: int) -> None:
        """Note that a rank has ended, and drop its orders. Raises UnknownName, InvalidRequest."""
        self.jobs.end(name, rank)
        self.orders.end(name, rank)
        self.dirty("jobs", name)

    def report_progress(self, name: str, rank: int, progress: Progress, now_s: float) -> None:
        """Note the position of a rank. Raises UnknownName, InvalidRequest."""
        self.check_progress(name, rank, progress)
        self.jobs.report(name, rank, progress, now_s)
        self.orders.progress(name, rank, progress, now_s)
        self.dirty("jobs", name)

    def check_progress(self, name: str, rank: int, progress: Progress) -> None:
        """Check a reported position. Raises UnknownName, InvalidRequest."""
        announced = self.orders.announced.ids(name, progress.epoch, rank)
        told = None if announced is None else len(announced)
        check_progress(name, rank, progress, announced=told, samples=self.space(name).count)
        check_rank(self.jobs.get(name), rank)

    def expire(self, now_s: float) -> None:
        """Stop using the hints of silent jobs, and forget jobs that were silent for much longer. The caller
        repeats this now and then.
        """
        self.orders.tick(now_s)
        live = [job for job in self.jobs if job.live]
        for job in self.jobs.expire(now_s):
            self._forget(job)
        for job in live:
            if not job.live and job.name in self.jobs:
                self.dirty("jobs", job.name)  # A restart must not take it for alive.

    def _forget(self, job: Job) -> None:
        self.orders.forget(job.name)
        self.expectations.forget(job.name)
        self.frozen.forget(job.name)
        self.scoreboard.pop(job.name, None)
        self.growing.pop(job.name, None)
        if job.dataset is not None:
            self.uses.note(job.dataset, job.seen_s)
        self.dirty("jobs", job.name)
        self.dirty("scores", job.name)

    def space(self, name: str) -> Space:
        """Return the samples of job ``name``: its dataset, or its scored objects. Raises UnknownName."""
        job = self.jobs.get(name)
        return self.growing[name] if job.dataset is None else self.datasets[job.dataset]

    # ------------------------------------------------------------------ orders

    def check_order(
        self, name: str, ids: list[int] | NDArray[np.integer], *, epoch: int, rank: int, offset: int = 0
    ) -> Announcement:
        """Check one rank's announced ids, in any thread. Raises UnknownName (job), InvalidRequest."""
        job, space = self.jobs.get(name), self.space(name)
        if not isinstance(space, Dataset):
            raise InvalidRequest(
                f"job {name!r} was registered without a dataset, so it has no ids to announce",
                hint="register the objects (PUT /v1/datasets/NAME) and name that dataset in PUT /v1/jobs",
            )
        check_rank(job, rank)
        checked = check_order(ids, space.count, dataset=title_of(space))
        return Announcement(name, epoch, rank, offset, checked, space.digest)

    def set_share(self, share: OwnedShare | None) -> None:
        """Set the share of the objects whose reads this proxy answers, for all ranks of all jobs. In a
        cluster in which each object has one owner, call it at each change of the view. A share that has the
        number of the present share changes nothing. At the start the share is None: this proxy answers all
        reads that reach it.

        The orders of jobs are built again with the samples in the share, off the event loop (``on_lost``).
        Each job keeps its place. Announcements, scores, frozen columns and positions cover all objects,
        whatever the share.
        """
        self.orders.set_share(share)

    # ------------------------------------------------------------------ scores

    def check_by_ids(self, name: str, ids: list[int] | Ids, scores: list[float] | Scores) -> Batch:
        """Check scores by sample id, in any thread. Raises UnknownName (job), InvalidRequest."""
        space = self.space(name)
        column = check_scores(scores, len(ids), what="ids")
        return Batch(space, column, ids=check_ids(ids, space.count, dataset=title_of(space)))

    def check_by_keys(self, name: str, scores: dict[str, float], namespace: str | None = None) -> Batch:
        """Check scores by "bucket/key". A score counts for all samples of its object. Raises like
        ``check_by_ids``.
        """
        space = self.space(name)
        column = check_scores(list(scores.values()), len(scores), what="keys")
        within = namespace_of(space) if namespace is None else namespace
        refs = [ref_of(path, within) for path in scores]
        if isinstance(space, GrowingSet):
            return Batch(space, column, hashes=[object_hash(ref) for ref in refs])
        found = space.samples_at(refs)
        for ref, samples in zip(refs, found, strict=True):
            if not samples:
                hint = "scores name objects of the job's dataset, as BUCKET/KEY"
                raise InvalidRequest(f"{ref.bucket}/{ref.key} is not in {title_of(space)}", hint=hint)
        sizes = [len(samples) for samples in found]
        ids = np.array([item for samples in found for item in samples], dtype=np.int64)
        return Batch(space, np.repeat(column, sizes), ids=ids)

    def apply(self, name: str, batch: Batch, now_s: float) -> int:
        """Write checked scores. They count in the ranking of pages at once. Return how many were written.

        Raises UnknownName or Conflict when the job was deleted or registered again since the check, and
        InvalidRequest when a job without a dataset scores too many objects.
        """
        if self.space(name) is not batch.space:
            raise Conflict(f"job {name!r} was registered again meanwhile", hint="send the scores again")
        ids = batch.ids
        if batch.hashes is not None:
            assert isinstance(batch.space, GrowingSet)
            ids = batch.space.add(batch.hashes)
        assert ids is not None
        column = self.column(name, batch.space)
        if len(ids):
            column.set(ids, batch.scores)
            self.dirty("scores", name)
        self.jobs.touch(name, now_s)
        return len(ids)

    def scores(self, name: str, *, to_draw: bool = False) -> Scores:
        """Return a copy of the job's scores: f32[n] over its samples, nan where unknown. Raises UnknownName.
        ``to_draw``: only scores from which the present run may draw.
        """
        count, column = self.space(name).count, self.scoreboard.get(name)
        if column is None:
            return np.full(count, np.nan, dtype=np.float32)
        return column.copy(count, of_run=to_draw and not self.jobs.get(name).resumes)

    # ------------------------------------------------------------------ questions of the engine

    def weights_of(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Weights:
        """Return the weight of each page, f64[k]: 1 for a job's mean sample, nan if no live job scored the
        page.

        ``object_hashes`` and ``numbers``, both of shape (k,), name the pages. The weight of a page is the sum
        over its samples. If several jobs on one dataset scored it, the result is the mean of their weights
        for the page, in which each job counts by its own weight. If several datasets have the page, the
        largest of their results counts. bench/results.md has the time for 1,024 of 1 M pages.
        """
        weights = np.full(len(object_hashes), np.nan)
        for space, jobs in self._scored():
            weights = np.fmax(weights, self._average(jobs, space.units_of(object_hashes, numbers)))
        return weights

    def jobs_of(self, hashes: Hashes | list[int]) -> list[str | None]:
        """Return for each object the only job whose dataset holds it; None if there is no such job, or
        several. Jobs in use have precedence over ended jobs. Takes about 3 us a dataset, and 0.1 us an
        object.
        """
        jobs = self.jobs.by_name.values()
        if not (live := jobs and [job for job in jobs if job.live and job.dataset is not None]):
            return [None] * len(hashes)
        hashes = np.asarray(hashes, np.uint64)
        names: list[str | None] = [None, *(job.name for job in live)]
        readers, which = np.zeros((2, len(hashes)), dtype=np.int64)
        for in_use in (True, False):
            unread = readers == 0
            for index, job in enumerate(live, 1):
                if job.in_use is in_use and job.dataset is not None:
                    inside = unread & (self.datasets[job.dataset].groups.find(hashes) >= 0)
                    readers += inside
                    which[inside] = index
        which[readers != 1] = 0
        return [names[index] for index in which.tolist()]

    def residency(self, name: str) -> Callable[[Hashes, NDArray[np.uint32]], Bits]:
        """Return a function that tells which samples lie in given pages (object hashes, page numbers).

        Any thread may call the function. Raises UnknownName.
        """
        space = self.space(name)
        if isinstance(space, Dataset):
            return space.residency
        known = space.hashes  # A copy, because the set grows on the event loop.
        return lambda hashes, _numbers: np.isin(known, hashes)

    def _scored(self) -> Iterator[tuple[Space, list[Job]]]:
        by_space: dict[int, tuple[Space, list[Job]]] = {}
        for job in self.jobs:
            column = self.scoreboard.get(job.name)
            if job.live and column is not None and column.known:
                space = self.space(job.name)
                by_space.setdefault(id(space), (space, []))[1].append(job)
        return iter(by_space.values())

    def _average(self, jobs: list[Job], places: Ids) -> Weights:
        if len(jobs) == 1:
            return self.scoreboard[jobs[0].name].unit_weights(places)
        total, share = np.zeros(len(places)), np.zeros(len(places))
        for job in jobs:
            weights = self.scoreboard[job.name].unit_weights(places)
            known = ~np.isnan(weights)
            total[known] += weights[known] * job.weight
            share[known] += job.weight
        average = np.full(len(places), np.nan)
        np.divide(total, share, out=average, where=share > 0)
        return average
