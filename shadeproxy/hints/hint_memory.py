"""Bounds the memory of registered hints: datasets, and the scores and orders of jobs.

Laws: each dataset counts once, however many jobs use it. The columns of a job on a dataset count from its
registration on, whether they exist yet or not, so that scores of a registered job always find room. Sizes are
computed from numbers of samples, and are rather too high than too low. Only new hints are refused, and before
they become a change: stored hints, and changes of other proxies of a cluster, are taken in even beyond the
limit. To make room, jobs that are not in use are forgotten, and datasets without a job that had no use for
``KEPT_S``: first the one that has been out of use for longest. Event loop only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from shadeproxy.core.errors import Conflict, HintMemoryFull, TooManyHints
from shadeproxy.core.units import format_size
from shadeproxy.hints.changes import Change, DeleteDataset, DeleteJob, PutDataset, PutJob, PutScores
from shadeproxy.hints.dataset_uses import KEPT_S
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.growing import GrowingSet
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import INDEX_BYTES
from shadeproxy.hints.order.announcements import Announcement
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.scoreboard import Batch

DEFAULT_BYTES = 4 << 30
_SETTING = "control.hint_memory"
_DATASET_BYTES, _JOB_BYTES, _RANK_BYTES = 40960, 8192, 400
"""Bytes of a dataset and of a job without their columns, and of each rank of a job. Most of the first are the
last answer of ``Groups.find``.
"""
_SAMPLE_BYTES, _PAGE_BYTES = 28, 24
"""Bytes a sample of a job's columns (scores 12, frozen 8, order 8), and a unit of the page index. More than
half of the twelve is the copy that waits to be stored.
"""
_PIECE_BYTES, _ID_BYTES, _SCORED_OBJECT_BYTES = 1024, 20, 148
"""Bytes of an announcement, of each of its ids, and of an object that a job without a dataset scored."""


def hint_bytes(hints: HintRegistry) -> int:
    """Return the bytes that all registered hints take. It does not look at single samples, ids or ranks."""
    held_bytes = sum(map(_dataset_bytes, hints.datasets.values()))
    held_bytes += sum(_job_bytes(hints, job) for job in hints.jobs)
    held_bytes += _SCORED_OBJECT_BYTES * sum(one.count for one in hints.growing.values())
    announced = hints.orders.announced
    return held_bytes + _PIECE_BYTES * announced.pieces + _ID_BYTES * announced.total


class HintMemory:
    """The memory of ``limit_bytes`` that ``hints`` may take. ``refused``: number of calls that found no
    room.
    """

    def __init__(self, hints: HintRegistry, limit_bytes: int = DEFAULT_BYTES) -> None:
        self._hints = hints
        self.limit_bytes = limit_bytes
        self.refused = 0
        self._held_bytes = 0

    # ------------------------------------------------------------------ what new hints take

    def more_for_dataset(self, dataset: Dataset) -> int:
        """Return the bytes that the hints take more with ``dataset``, at most."""
        known = self._hints.datasets.get(dataset.name)
        if known is None:
            return _dataset_bytes(dataset)
        if known.digest == dataset.digest:
            return 0
        jobs = len(self._hints.jobs.on(dataset.name))
        columns_bytes = _columns_bytes(dataset) - _columns_bytes(known)
        return _dataset_bytes(dataset) - _dataset_bytes(known) + jobs * columns_bytes

    def more_for_job(self, job: Job) -> int:
        """Return the bytes that the hints take more if ``job`` is registered. Raises UnknownName."""
        known = self._hints.jobs.by_name.get(job.name)
        return _job_bytes(self._hints, job) - (0 if known is None else _job_bytes(self._hints, known))

    def more_for_scores(self, batch: Batch) -> int:
        """Return the bytes that the hints take more with ``batch``: none if its job has a dataset."""
        if batch.hashes is None or not isinstance(batch.space, GrowingSet):
            return 0
        return _SCORED_OBJECT_BYTES * len(batch.space.unknown(batch.hashes))

    # ------------------------------------------------------------------ room

    @contextmanager
    def hold(self, more_bytes: int) -> Iterator[None]:
        """Let ``more_bytes`` count until the block ends, which makes the change that takes them. In a
        cluster this takes a while, and other calls find less room meanwhile.
        """
        more_bytes = max(more_bytes, 0)
        self._held_bytes += more_bytes
        try:
            yield
        finally:
            self._held_bytes -= more_bytes

    def to_forget(
        self, change: Change[Any], more_bytes: int, what: str, now_s: float
    ) -> DeleteJob | DeleteDataset | None:
        """Return the change that forgets a hint which is out of use, so that ``change`` finds room for
        ``more_bytes`` and its place among the datasets and jobs. Return None if there are both, or if nothing
        can be forgotten for the place. Hints that ``change`` needs are kept. Raises HintMemoryFull if there
        is no room without all that is out of use, either.
        """
        lack_bytes = self._lack_bytes(more_bytes)
        if lack_bytes <= 0 and not (more_bytes > 0 and self._lacks_place(change)):
            return None
        jobs = [job for job in self._hints.jobs if not job.in_use and job.name != _job_of(change)]
        datasets = self._idle_datasets(change, now_s)
        if lack_bytes > 0:
            idle_bytes = sum(map(self._bytes_of_job, jobs))
            idle_bytes += sum(_dataset_bytes(self._hints.dataset(name)) for name in datasets)
            if idle_bytes < lack_bytes:
                self._refuse(HintMemoryFull, what, more_bytes, "delete datasets and jobs that are not needed")
        elif isinstance(change, PutDataset):
            # Only a dataset makes a place for a dataset, so take one, with the jobs on it.
            datasets = dict(sorted(datasets.items(), key=itemgetter(1))[:1])
            jobs = [job for job in jobs if job.dataset in datasets]
        else:
            datasets = {}
        users = {job.dataset for job in self._hints.jobs}
        idle: list[tuple[float, DeleteJob | DeleteDataset]] = [
            (job.seen_s, DeleteJob(job.name)) for job in jobs
        ]
        idle += [(used_s, DeleteDataset(name)) for name, used_s in datasets.items() if name not in users]
        return min(idle, key=itemgetter(0))[1] if idle else None

    def _idle_datasets(self, change: Change[Any], now_s: float) -> dict[str, float]:
        """Return the datasets that no job in use names and that had no use for ``KEPT_S``, each with the time
        of its last use. Those that ``change`` needs are not among them.
        """
        hints, kept_dataset, kept_job = self._hints, _dataset_of(change), _job_of(change)
        used = {name: hints.uses.get(name) or 0.0 for name in hints.datasets if name != kept_dataset}
        for job in hints.jobs:
            if job.dataset in used:
                used_s = now_s if job.in_use or job.name == kept_job else job.seen_s
                used[job.dataset] = max(used[job.dataset], used_s)
        return {name: used_s for name, used_s in used.items() if now_s - used_s >= KEPT_S}

    def _lacks_place(self, change: Change[Any]) -> bool:
        try:
            change.check(self._hints)
        except TooManyHints:
            return True
        return False

    def check_order(self, new: Announcement) -> int:
        """Return the bytes that the hints take more with an announcement. Raises Conflict if there is no room
        for them. For the sake of an order no job is forgotten.
        """
        known = self._hints.orders.announced.ids(new.job, new.epoch, new.rank)
        more_bytes = _ID_BYTES * (new.offset + len(new.ids) - (0 if known is None else len(known)))
        more_bytes += _PIECE_BYTES * (known is None)
        if self._lack_bytes(more_bytes) > 0:
            self._hints.orders.check(new)  # If the call is wrong too, report that error.
            self._refuse(Conflict, f"the order of job {new.job!r}", more_bytes, "announce fewer epochs ahead")
        return more_bytes

    def check_manifest(self, name: str, least_bytes: int) -> None:
        """Raise HintMemoryFull if a dataset ``name`` of ``least_bytes`` or more can never find room."""
        known = self._hints.datasets.get(name)
        if least_bytes > max(self.limit_bytes, 0 if known is None else _dataset_bytes(known)):
            self._refuse(HintMemoryFull, f"dataset {name!r}", least_bytes, "split the dataset")

    def _lack_bytes(self, more_bytes: int) -> int:
        """Return how many bytes of ``more_bytes`` find no room. Changes that add nothing lack nothing."""
        if more_bytes <= 0:
            return 0
        return hint_bytes(self._hints) + self._held_bytes + more_bytes - self.limit_bytes

    def _bytes_of_job(self, job: Job) -> int:
        hints = self._hints
        held_bytes = _job_bytes(hints, job) + _ID_BYTES * hints.orders.announced.count(job.name)
        return held_bytes + (_SCORED_OBJECT_BYTES * hints.space(job.name).count if job.dataset is None else 0)

    def _refuse(self, kind: type[Conflict | HintMemoryFull], what: str, more_bytes: int, remedy: str) -> None:
        self.refused += 1
        held_bytes = hint_bytes(self._hints) + self._held_bytes
        raise kind(
            f"{what} would take {format_size(more_bytes)} of memory more, but datasets, scores and orders"
            f" hold {format_size(held_bytes)}, and may hold {format_size(self.limit_bytes)}",
            hint=f"{remedy}, or raise {_SETTING}",
        )


def _job_of(change: Change[Any]) -> str | None:
    return change.name if isinstance(change, PutJob | PutScores) else None


def _dataset_of(change: Change[Any]) -> str | None:
    """Return the name of the dataset that a change registers, or that its job names."""
    if isinstance(change, PutDataset):
        return change.dataset.name
    return change.dataset if isinstance(change, PutJob) else None


def _dataset_bytes(dataset: Dataset) -> int:
    return _DATASET_BYTES + dataset.column_bytes + INDEX_BYTES * dataset.count


def _job_bytes(hints: HintRegistry, job: Job) -> int:
    """Return the bytes that a job takes besides its dataset, its announcements and its scored objects."""
    columns_bytes = 0 if job.dataset is None else _columns_bytes(hints.dataset(job.dataset))
    return _JOB_BYTES + _RANK_BYTES * job.world_size + columns_bytes


def _columns_bytes(dataset: Dataset) -> int:
    pages = 0 if dataset.pages is None else len(dataset.pages)
    return _SAMPLE_BYTES * dataset.count + _PAGE_BYTES * pages
