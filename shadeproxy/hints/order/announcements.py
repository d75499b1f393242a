"""Announcements as jobs sent them: ids by job, epoch and rank, checked and bounded.

Laws: a refused announcement changes nothing. Accepted arrays never change, so any thread may read them. The
total number of ids is bounded, because an id takes up to 20 bytes here and in the order tracker.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import Conflict, InvalidRequest, UnknownName
from shadeproxy.hints.order.sequence import OrderIds

MAX_JOB_IDS = 1 << 24
"""Maximum announced ids of one job, over all ranks and epochs: thirteen epochs of ImageNet."""

MAX_IDS = 1 << 25
MAX_EPOCHS = 1024
"""Maximum announced epochs of one job."""

ByEpoch = dict[int, dict[int, OrderIds]]


class Announcement(NamedTuple):
    """Checked ids of ``rank`` in ``epoch``, from position ``offset`` on. ``digest``: the digest of the
    dataset that these ids belong to.
    """

    job: str
    epoch: int
    rank: int
    offset: int
    ids: OrderIds
    digest: str


class Announcements:
    """Announced ids by job, epoch and rank."""

    def __init__(self, *, max_ids: int = MAX_IDS, max_job_ids: int = MAX_JOB_IDS) -> None:
        self._max_ids = max_ids
        self._max_job_ids = max_job_ids
        self._jobs: dict[str, ByEpoch] = {}
        self._elsewhere: set[tuple[str, int]] = set()
        self._announced: set[str] = set()
        """Jobs that have announced ids in their present run, even if the ids are forgotten by now."""
        self.everywhere = False
        """True if this proxy caches a share of the objects (share.py). Announcements of ranks that read
        through other proxies then count here too, because their reads of the share come here.
        """
        self.total = 0
        """Number of ids held, over all jobs."""
        self.pieces = 0
        """Number of announcements held: each is the ids of one rank in one epoch."""

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def were_made(self, job: str) -> bool:
        """Return whether the job has announced ids in its present or latest run."""
        return job in self._announced

    def begin_run(self, job: str) -> None:
        """Note that a new run of the job begins."""
        if job not in self:
            self._announced.discard(job)

    def of(self, job: str) -> ByEpoch:
        """Return a copy of the job's announcements that count at this proxy. The arrays of ids are shared,
        not copied.
        """
        found = {
            epoch: {rank: ids for rank, ids in ranks.items() if not self.is_elsewhere(job, rank)}
            for epoch, ranks in self._jobs.get(job, {}).items()
        }
        return {epoch: ranks for epoch, ranks in found.items() if ranks}

    def is_elsewhere(self, job: str, rank: int) -> bool:
        """Return whether the rank's announcements count only at the other proxy through which it reads."""
        return not self.everywhere and (job, rank) in self._elsewhere

    def move(self, job: str, rank: int, *, elsewhere: bool) -> bool:
        """Note whether a rank reads through another proxy. Return whether this changes which announcements
        count here.
        """
        changed = ((job, rank) in self._elsewhere) is not elsewhere
        if changed:
            self._elsewhere ^= {(job, rank)}
        return changed and not self.everywhere

    def jobs(self) -> list[str]:
        """Return the names of jobs with announcements."""
        return list(self._jobs)

    def count(self, job: str) -> int:
        """Return the number of ids that the job has announced."""
        return sum(len(ids) for ranks in self._jobs.get(job, {}).values() for ids in ranks.values())

    def names(self) -> list[str]:
        """Return the ``order_name`` of every announcement."""
        return [
            order_name(job, epoch, rank)
            for job, epochs in self._jobs.items()
            for epoch, ranks in epochs.items()
            for rank in ranks
        ]

    def ranks(self, job: str, epoch: int) -> set[int]:
        """Return the ranks that announced ids of an epoch."""
        return set(self._jobs.get(job, {}).get(epoch, ()))

    def ids(self, job: str, epoch: int, rank: int) -> OrderIds | None:
        return self._jobs.get(job, {}).get(epoch, {}).get(rank)

    def put(self, new: Announcement) -> None:
        """Store ids; they replace all ids of that rank and epoch from their offset on. Raises the errors of
        ``check``.
        """
        self.check(new)
        epochs = self._jobs.get(new.job, {})
        known = epochs.get(new.epoch, {}).get(new.rank)
        ids = new.ids
        if new.offset:
            assert known is not None, "an offset without a gap has ids before it"
            ids = np.concatenate([known[: new.offset], new.ids])
        self._jobs.setdefault(new.job, epochs).setdefault(new.epoch, {})[new.rank] = ids
        self._announced.add(new.job)
        self.total += len(ids) - (0 if known is None else len(known))
        self.pieces += known is None

    def check(self, new: Announcement) -> None:
        """Raise InvalidRequest (the offset leaves a gap), Conflict (too many ids or epochs)."""
        epochs = self._jobs.get(new.job, {})
        known = epochs.get(new.epoch, {}).get(new.rank)
        before = 0 if known is None else len(known)
        if new.offset > before:
            raise InvalidRequest(
                f"offset {new.offset}, but rank {new.rank} has announced {before} ids of epoch {new.epoch}",
                hint=f"send pieces in order: the next one begins at offset={before}",
            )
        more = new.offset + len(new.ids) - before
        self._bound(self.count(new.job) + more, self._max_job_ids, f"job {new.job!r} has")
        self._bound(self.total + more, self._max_ids, "all jobs together have")
        if new.epoch not in epochs and len(epochs) >= MAX_EPOCHS:
            raise Conflict(
                f"job {new.job!r} has announced {MAX_EPOCHS} epochs already",
                hint="announce the next few epochs only",
            )

    def drop(self, job: str, epoch: int | None = None, rank: int | None = None) -> list[tuple[int, int]]:
        """Forget the job's announcements, or only those of one epoch or rank. Return (epoch, rank) of each
        that was forgotten.
        """
        epochs = self._jobs.get(job, {})
        gone = [
            (number, of)
            for number, ranks in epochs.items()
            for of in ranks
            if epoch in {None, number} and rank in {None, of}
        ]
        for number, of in gone:
            self.total -= len(epochs[number].pop(of))
            self.pieces -= 1
            if not epochs[number]:
                del epochs[number]
        if not epochs:
            self._jobs.pop(job, None)
        if epoch is None and rank is None:
            self._elsewhere = {at for at in self._elsewhere if at[0] != job}
            self._announced.discard(job)
        return gone

    def drop_before(self, job: str, epoch: int, rank: int) -> list[tuple[int, int]]:
        """Forget the announcements of a rank for epochs before ``epoch``. Return (epoch, rank) of each of
        these.
        """
        past = [
            number for number, ranks in self._jobs.get(job, {}).items() if number < epoch and rank in ranks
        ]
        return [at for number in past for at in self.drop(job, number, rank)]

    @staticmethod
    def _bound(count: int, most: int, whose: str) -> None:
        if count > most:
            raise Conflict(
                f"{whose} {count} announced ids with these; at most {most} are kept",
                hint="announce fewer epochs ahead, or withdraw: DELETE /v1/jobs/NAME/epochs/EPOCH/order",
            )


def check_order(ids: NDArray[np.integer] | list[int], count: int, *, dataset: str) -> OrderIds:
    """Return a read-only copy of ``ids`` as u32[k]. Raises InvalidRequest that names the first bad id."""
    try:
        column = np.array(ids, dtype=np.int64 if isinstance(ids, list) else None)
    except OverflowError:
        column = np.array([min(max(item, -1), 1 << 32) for item in ids], dtype=np.int64)
    if len(column) and (int(column.min()) < 0 or int(column.max()) >= count):
        first = int(np.flatnonzero((column < 0) | (column >= count))[0])
        raise InvalidRequest(
            f"ids[{first}] is {ids[first]}, but {dataset} has {count} samples",
            hint=f"ids are 0 to {count - 1}: announce ids of the job's dataset",
        )
    column = column.astype(np.uint32, copy=False)
    column.flags.writeable = False
    return column


def unknown_order(job: str, epoch: int) -> UnknownName:
    """Return the error for a call that withdraws an epoch which the job has not announced."""
    return UnknownName(
        f"job {job!r} has announced no order of epoch {epoch}",
        hint=f"announced epochs are in GET /v1/jobs/{job}",
    )


def order_name(job: str, epoch: int, rank: int) -> str:
    """Return the name under which the durable state keeps one rank's order of an epoch."""
    return f"{job}/{epoch}/{rank}"


def order_of(name: str) -> tuple[str, int, int]:
    """Return (job, epoch, rank) of an ``order_name``. Raises ValueError."""
    job, epoch, rank = name.rsplit("/", 2)
    return job, int(epoch), int(rank)
