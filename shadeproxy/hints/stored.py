"""The durable state of the hint registry: exports an item, such as one job, as bytes, and restores it.

Laws: a damaged or foreign blob raises StateError and changes nothing. Items are restored in the order of
KINDS, because scores and orders need their jobs, and jobs their datasets.
"""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import RequestError, StateError
from shadeproxy.hints import durable
from shadeproxy.hints.dataset_uses import DatasetUses
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.growing import GrowingSet, Space
from shadeproxy.hints.jobs import Job, Jobs, Progress
from shadeproxy.hints.order.announcements import Announcement, order_of
from shadeproxy.hints.order.orders import Orders
from shadeproxy.hints.scoreboard import ScoreColumn, Scores

KINDS = ("datasets", "uses", "jobs", "scores", "orders", "positions")
"""Kinds of durable state, in the order in which ``restore`` needs them."""


class StoredHints:
    """The part of the hint registry that survives a restart."""

    page_size: int
    datasets: dict[str, Dataset]
    uses: DatasetUses
    jobs: Jobs
    scoreboard: dict[str, ScoreColumn]
    growing: dict[str, GrowingSet]
    orders: Orders

    @abstractmethod
    def space(self, name: str) -> Space: ...

    @abstractmethod
    def scores(self, name: str, *, to_draw: bool = False) -> Scores: ...

    @abstractmethod
    def check_order(
        self, name: str, ids: list[int] | NDArray[np.integer], *, epoch: int, rank: int, offset: int = 0
    ) -> Announcement: ...

    def column(self, name: str, space: Space) -> ScoreColumn:
        """Return the score column of a job, with room for all of its samples."""
        column = self.scoreboard.get(name)
        if column is None:
            of = (space.groups, space.pages) if isinstance(space, Dataset) else (None, None)
            column = self.scoreboard[name] = ScoreColumn(space.count, *of)
        column.grow(space.count)
        return column

    def export(self, kind: str, name: str) -> bytes | None:
        """Return the stored form of an item, or None if the item no longer exists. For datasets and orders
        any thread may call it; for other kinds the event loop only.
        """
        exports = {
            "datasets": self._export_dataset,
            "uses": self._export_use,
            "jobs": self._export_job,
            "scores": self._export_scores,
            "orders": self._export_order,
            "positions": self._export_position,
        }
        return exports[kind](name)

    def _export_dataset(self, name: str) -> bytes | None:
        dataset = self.datasets.get(name)
        return None if dataset is None else durable.dump_dataset(dataset)

    def _export_use(self, name: str) -> bytes | None:
        used_s = self.uses.get(name)
        return None if used_s is None else durable.dump_use(used_s)

    def _export_job(self, name: str) -> bytes | None:
        return durable.dump_job(self.jobs.get(name)) if name in self.jobs else None

    def _export_scores(self, name: str) -> bytes | None:
        if name not in self.jobs or name not in self.scoreboard:
            return None
        space, scores = self.space(name), self.scores(name)
        column = self.scoreboard[name]
        of_run = column.of_run[: len(scores)]
        digest, hashes = (space.digest, None) if isinstance(space, Dataset) else (None, space.hashes)
        return durable.dump_scores(durable.ScoresOf(digest, scores, hashes, of_run, column.position))

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
        """Restore an item from the bytes of ``export``. Call it for one kind after the other, in the order of
        KINDS. Raises StateError.

        An error changes nothing. A job that was in use counts as alive (``Job.last_sign_s``). Other jobs
        stay silent since their last sign of life.
        """
        if kind == "datasets":
            self.datasets[name] = durable.load_dataset(blob, self.page_size)
            self.uses.note(name, now_s)  # An older release stored none.
        elif kind == "uses":
            self.uses.restore(name, min(durable.load_use(blob), now_s))
        elif kind == "jobs":
            self._restore_job(durable.load_job(blob), now_s)
        elif kind == "orders":
            self._restore_order(name, *durable.load_order(blob))
        elif kind == "positions":
            self._restore_position(name, durable.load_position(blob))
        else:
            assert kind == "scores", kind
            self._restore_scores(name, durable.load_scores(blob))

    def _restore_job(self, job: Job, now_s: float) -> None:
        if job.dataset is None:
            self.growing[job.name] = GrowingSet(f"job:{job.name}")
        elif job.dataset not in self.datasets:
            raise StateError(f"stored job {job.name!r} names dataset {job.dataset!r}, which is not stored")
        was_in_use = job.in_use
        self.jobs.put(job, job.last_sign_s(now_s)).live = was_in_use

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

    def _restore_position(self, name: str, position: Progress) -> None:
        if name not in self.jobs:
            raise StateError(f"stored position of {name!r}, which is not a stored job")
        self.orders.resume(name, position)

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
        self.column(name, space).restore(stored.values, stored.of_run, stored.position)
