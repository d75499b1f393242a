"""The hint registry: datasets, jobs, scores and orders, for the engine and the control listener.

Laws: no I/O and no clock. Methods are plain and run on the event loop, unless their docstring says otherwise.
Every call checks first and changes afterwards, so a refused call changes nothing. ``dirty(kind, name)``
reports state that must survive a restart. The composition root then calls ``export`` and stores the bytes.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import Conflict, InvalidRequest, RequestError, StateError, UnknownName
from shadeproxy.hints import durable
from shadeproxy.hints.datasets import Bits, Dataset, Hashes, Ids
from shadeproxy.hints.expectations import Expectations
from shadeproxy.hints.frozen import FrozenScores
from shadeproxy.hints.growing import GrowingSet, Space, namespace_of, ref_of, title_of
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job, Jobs, Progress, check_progress, check_rank, ignore, refuse_if_any
from shadeproxy.hints.order.announcements import Announcement, check_order
from shadeproxy.hints.order.orders import Orders, order_of
from shadeproxy.hints.pages import PAGE_SIZE_BYTES
from shadeproxy.hints.scoreboard import Batch, ScoreColumn, Scores, Weights, check_ids, check_scores

KINDS = ("datasets", "jobs", "scores", "orders", "positions")
"""Kinds of durable state, in the order in which ``restore`` needs them."""

MAX_DATASETS = 256


class HintRegistry:
    """Registry of access hints. ``page_size``: bytes of a page of the cache."""

    def __init__(
        self,
        *,
        dirty: Callable[[str, str], None] = ignore,
        page_size: int = PAGE_SIZE_BYTES,
        on_epoch: Callable[[Job], None] = ignore,
        on_lost: Callable[[Orders, str], None] = ignore,
        on_orders_changed: Callable[[], None] = ignore,
    ) -> None:
        self._page_size = page_size
        self.datasets: dict[str, Dataset] = {}
        self.jobs = Jobs(on_epoch)
        self.scoreboard: dict[str, ScoreColumn] = {}
        self._growing: dict[str, GrowingSet] = {}
        self._dirty = dirty
        self.frozen = FrozenScores()
        self.orders = Orders(
            self.jobs,
            self.dataset,
            page_size=page_size,
            dirty=dirty,
            on_lost=on_lost,
            on_change=on_orders_changed,
        )
        known = (self.jobs, self.orders, self.scoreboard, self.space)
        self.expectations = Expectations(*known, page_size=page_size)

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

        Ended jobs on another manifest of that name lose their scores and orders, whose ids are of that
        manifest. Raises Conflict when a job in use is on that manifest, or when there are MAX_DATASETS.
        """
        known = self.datasets.get(dataset.name)
        if known is not None and known.digest == dataset.digest:
            return False
        if known is None and len(self.datasets) >= MAX_DATASETS:
            hint = "delete unused ones: DELETE /v1/datasets/NAME"
            raise Conflict(f"{MAX_DATASETS} datasets are registered already", hint=hint)
        users = self.jobs.on(dataset.name)
        refuse_if_any([job for job in users if job.in_use])
        for job in users:
            self.jobs.renew(job)  # A job that is silent but not ended is deleted, and must register again.
            self._forget(job)
        self.datasets[dataset.name] = dataset
        self._dirty("datasets", dataset.name)
        return True

    def delete_dataset(self, name: str) -> None:
        """Forget the dataset. Raises UnknownName, Conflict (a job uses it)."""
        self.dataset(name)
        refuse_if_any(self.jobs.on(name))
        del self.datasets[name]
        self._dirty("datasets", name)

    # ------------------------------------------------------------------ jobs

    def put_job(self, job: Job, now_s: float) -> Job:
        """Register or update a job; an ended job may change its dataset. Raises UnknownName, Conflict."""
        digest = None if job.dataset is None else self.dataset(job.dataset).digest
        if job.name in self.jobs and (known := self.jobs.get(job.name)).dataset != job.dataset:
            if known.dataset is not None and self.datasets[known.dataset].digest == digest:
                job.dataset = known.dataset  # The dataset has a new name, but the same samples.
            elif not known.in_use:
                self.delete_job(job.name)
        known = self.jobs.put(job, now_s)
        if known.dataset is None:
            self._growing.setdefault(known.name, GrowingSet(f"job:{known.name}"))
        self._dirty("jobs", known.name)
        return known

    def begin_run(self, name: str, rank: int, *, resumes: bool) -> None:
        """Begin a run; see ``Jobs.begin``. Scores of earlier runs still rank pages. Raises what that
        raises.
        """
        if self.jobs.begin(name, rank, resumes=resumes):
            self.frozen.forget(name)
            if (column := self.scoreboard.get(name)) is not None:
                column.of_run[:] = False
                self._dirty("scores", name)
        self._dirty("jobs", name)

    def delete_job(self, name: str) -> None:
        """Forget the job, its scores and its orders. Raises UnknownName."""
        self._forget(self.jobs.delete(name))

    def end_rank(self, name: str, rank: int) -> None:
        """Note that a rank has ended, and drop its orders. Raises UnknownName, InvalidRequest."""
        self.jobs.end(name, rank)
        self.orders.end(name, rank)
        self._dirty("jobs", name)

    def report_progress(self, name: str, rank: int, progress: Progress, now_s: float) -> None:
        """Note the position of a rank. Raises UnknownName, InvalidRequest."""
        announced = self.orders.announced.ids(name, progress.epoch, rank)
        told = None if announced is None else len(announced)
        check_progress(name, rank, progress, announced=told, samples=self.space(name).count)
        self.jobs.report(name, rank, progress, now_s)
        self.orders.progress(name, rank, progress, now_s)
        self._dirty("jobs", name)

    def expire(self, now_s: float) -> None:
        """Drop the hints of silent jobs from use, and forget long silent jobs. Call it now and then."""
        self.orders.tick(now_s)
        for job in self.jobs.expire(now_s):
            self._forget(job)

    def _forget(self, job: Job) -> None:
        self.orders.forget(job.name)
        self.expectations.forget(job.name)
        self.frozen.forget(job.name)
        self.scoreboard.pop(job.name, None)
        self._growing.pop(job.name, None)
        self._dirty("jobs", job.name)
        self._dirty("scores", job.name)

    def space(self, name: str) -> Space:
        """Return the samples of job ``name``: its dataset, or its scored objects. Raises UnknownName."""
        job = self.jobs.get(name)
        return self._growing[name] if job.dataset is None else self.datasets[job.dataset]

    # ------------------------------------------------------------------ orders

    def check_order(
        self, name: str, ids: list[int] | NDArray[np.integer], *, epoch: int, rank: int, offset: int = 0
    ) -> Announcement:
        """Check one rank's announced ids. Any thread. Raises UnknownName (job), InvalidRequest."""
        job, space = self.jobs.get(name), self.space(name)
        if not isinstance(space, Dataset):
            raise InvalidRequest(
                f"job {name!r} was registered without a dataset, so it has no ids to announce",
                hint="register the objects (PUT /v1/datasets/NAME) and name that dataset in PUT /v1/jobs",
            )
        check_rank(job, rank)
        checked = check_order(ids, space.count, dataset=title_of(space))
        return Announcement(name, epoch, rank, offset, checked, space.digest)

    # ------------------------------------------------------------------ scores

    def check_by_ids(self, name: str, ids: list[int] | Ids, scores: list[float] | Scores) -> Batch:
        """Check scores by sample id. Any thread. Raises UnknownName (job), InvalidRequest."""
        space = self.space(name)
        column = check_scores(scores, len(ids), what="ids")
        return Batch(space, column, ids=check_ids(ids, space.count, dataset=title_of(space)))

    def check_by_keys(self, name: str, scores: dict[str, float], namespace: str | None = None) -> Batch:
        """Check scores by "bucket/key", each for all samples of the object. Raises like ``check_by_ids``."""
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
        """Write checked scores, which rank pages at once. Return how many were written.

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
        column = self._column(name, batch.space)
        if len(ids):
            column.set(ids, batch.scores)
            self._dirty("scores", name)
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

    def _column(self, name: str, space: Space) -> ScoreColumn:
        column = self.scoreboard.get(name)
        if column is None:
            of = (space.groups, space.pages) if isinstance(space, Dataset) else (None, None)
            column = self.scoreboard[name] = ScoreColumn(space.count, *of)
        column.grow(space.count)
        return column

    # ------------------------------------------------------------------ questions of the engine

    def weights_of(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Weights:
        """Return the weight of each page, f64[k]: 1 is a job's mean sample, nan if no live job scored the
        page.

        ``object_hashes`` and ``numbers``, both of shape (k,), name the pages. The weight of a page is the sum
        over its samples. Weights by jobs on one dataset are averaged by the weights of the jobs; of several
        datasets the largest weight counts. Time for 1,024 of 1 M: see bench/results.md.
        """
        weights = np.full(len(object_hashes), np.nan)
        for space, jobs in self._scored():
            weights = np.fmax(weights, self._average(jobs, space.units_of(object_hashes, numbers)))
        return weights

    def jobs_of(self, hashes: Hashes | list[int]) -> list[str | None]:
        """Return for each object the only job whose dataset holds it; None if there is no job or several.
        Jobs in use have precedence over ended jobs. Takes about 3 us a dataset, and 0.1 us an object.
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

    # ------------------------------------------------------------------ durable state

    def export(self, kind: str, name: str) -> bytes | None:
        """Return the stored form, None if gone. Datasets and orders: any thread; others: the event loop."""
        exports = {
            "datasets": self._export_dataset,
            "jobs": self._export_job,
            "scores": self._export_scores,
            "orders": self._export_order,
            "positions": self._export_position,
        }
        return exports[kind](name)

    def _export_dataset(self, name: str) -> bytes | None:
        dataset = self.datasets.get(name)
        return None if dataset is None else durable.dump_dataset(dataset)

    def _export_job(self, name: str) -> bytes | None:
        return durable.dump_job(self.jobs.get(name)) if name in self.jobs else None

    def _export_scores(self, name: str) -> bytes | None:
        if name not in self.jobs or name not in self.scoreboard:
            return None
        space, scores = self.space(name), self.scores(name)
        of_run = self.scoreboard[name].of_run[: len(scores)]
        digest, hashes = (space.digest, None) if isinstance(space, Dataset) else (None, space.hashes)
        return durable.dump_scores(durable.ScoresOf(digest, scores, hashes, of_run))

    def _export_position(self, name: str) -> bytes | None:
        position = self.orders.position(name)
        return None if position is None else durable.dump_position(position)

    def _export_order(self, name: str) -> bytes | None:
        job, epoch, rank = order_of(name)
        ids = self.orders.announced.ids(job, epoch, rank)
        if ids is None:
            return None
        space = self.space(job)
        assert isinstance(space, Dataset), "orders are of datasets"
        return durable.dump_order(space.digest, ids)

    def restore(self, kind: str, name: str, blob: bytes, now_s: float) -> None:
        """Restore the bytes from ``export``, kinds in the order of KINDS. Raises StateError.

        An error changes nothing. A restored job counts as alive: perhaps only the proxy was silent.
        """
        if kind == "datasets":
            self.datasets[name] = durable.load_dataset(blob, self._page_size)
        elif kind == "jobs":
            self._restore_job(durable.load_job(blob), now_s)
        elif kind == "orders":
            self._restore_order(name, *durable.load_order(blob))
        elif kind == "positions":
            self.orders.resume(name, durable.load_position(blob))
        else:
            assert kind == "scores", kind
            self._restore_scores(name, durable.load_scores(blob))

    def _restore_job(self, job: Job, now_s: float) -> None:
        if job.dataset is None:
            self._growing[job.name] = GrowingSet(f"job:{job.name}")
        elif job.dataset not in self.datasets:
            raise StateError(f"stored job {job.name!r} names dataset {job.dataset!r}, which is not stored")
        self.jobs.put(job, now_s)

    def _restore_order(self, name: str, digest: str, ids: NDArray[np.uint32]) -> None:
        try:
            job, epoch, rank = order_of(name)
            announcement = self.check_order(job, ids, epoch=epoch, rank=rank)
            space = self.space(job)
            if not isinstance(space, Dataset) or space.digest != digest:
                raise StateError(f"the stored order {name!r} is of another dataset")
            self.orders.restore(announcement)
        except (ValueError, RequestError) as error:
            raise StateError(f"the stored order {name!r} is of no use: {error}") from None

    def _restore_scores(self, name: str, stored: durable.ScoresOf) -> None:
        if name not in self.jobs:
            raise StateError(f"stored scores of {name!r}, which is not a stored job")
        space = self.space(name)
        if isinstance(space, Dataset):
            fits = stored.digest == space.digest and len(stored.values) == space.count
        else:
            fits = stored.hashes is not None
        if not fits:
            raise StateError(f"stored scores of job {name!r} are of another dataset")
        if isinstance(space, GrowingSet) and stored.hashes is not None:
            space.add(stored.hashes.tolist())
        self._column(name, space).restore(stored.values, stored.of_run)
