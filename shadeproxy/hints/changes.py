"""Changes of the hint registry, as objects that can be checked, applied, and sent to other proxies.

Control calls make changes at this proxy; in a cluster, the other proxies send theirs. Laws: ``check`` raises
the error that ``apply`` would raise now, and changes no hint. ``apply`` checks again,
because the registry may have changed since ``check``. The same changes in the same order lead to the same
hints at every proxy.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import Conflict
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.frozen import Frozen
from shadeproxy.hints.jobs import Job, Progress, check_rank
from shadeproxy.hints.needs import JobNeed
from shadeproxy.hints.order.announcements import Announcement
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.scoreboard import Batch, Scores

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Change(Protocol[Result_co]):
    """One change of the hint registry."""

    def check(self, hints: HintRegistry) -> None: ...

    def apply(self, hints: HintRegistry, now_s: float, /) -> Result_co: ...


class Changes(Protocol):
    """Makes changes: at this proxy alone, or at every proxy of a cluster."""

    async def make(self, change: Change[Result]) -> Result:
        """Make a change, and return its result once this proxy has applied it. Raises the errors of the
        change's ``check``.
        """
        ...

    async def caught_up(self) -> None:
        """Wait until a starting proxy has the hints of its cluster, or knows that it cannot get them now."""
        ...


class OwnChanges:
    """Makes changes at this proxy alone."""

    def __init__(self, hints: HintRegistry, clock: Clock) -> None:
        self._hints = hints
        self._clock = clock

    async def make(self, change: Change[Result]) -> Result:
        return change.apply(self._hints, self._clock.now_s())

    async def caught_up(self) -> None:
        """Return at once, because this proxy gets no hints from other proxies."""


class PlainChange(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base class of changes that can be encoded, and so sent to the other proxies of a cluster. Changes that
    hold arrays or a whole dataset are not of this class.
    """


@dataclass(frozen=True, slots=True)
class PutDataset:
    """Register a dataset; see ``HintRegistry.put_dataset``."""

    dataset: Dataset

    def check(self, hints: HintRegistry) -> None:
        hints.check_dataset(self.dataset)

    def apply(self, hints: HintRegistry, now_s: float) -> bool:
        is_new = hints.put_dataset(self.dataset)
        hints.uses.note(self.dataset.name, now_s)
        return is_new


class DeleteDataset(PlainChange, frozen=True):
    """Delete a dataset; see ``HintRegistry.delete_dataset``."""

    name: str

    def check(self, hints: HintRegistry) -> None:
        hints.check_unused(self.name)

    def apply(self, hints: HintRegistry, _now_s: float) -> None:
        hints.delete_dataset(self.name)


class PutJob(PlainChange, frozen=True):
    """Register or update a job. ``begins``: the rank whose process has just started, if one has.
    ``resumes``: the run of that rank also draws from scores of earlier runs. ``digest``: the digest that the
    dataset must have; "" if it may have any. ``need``: the need that the registration states, if any.
    ``best_effort``: the job gives up its need.
    """

    name: str
    dataset: str | None
    world_size: int
    weight: float
    expires_s: float
    begins: int | None = None
    resumes: bool = False
    digest: str = ""
    need: JobNeed | None = None
    best_effort: bool = False

    def check(self, hints: HintRegistry) -> None:
        """Raise UnknownName, Conflict, InvalidRequest (rank outside the world size)."""
        job = self.job()
        if self.begins is not None:
            check_rank(job, self.begins)
        if self.digest and self.dataset is not None and hints.dataset(self.dataset).digest != self.digest:
            raise Conflict(
                f"dataset {self.dataset!r} has another manifest at this proxy than the job {self.name!r}",
                hint="register the dataset under another name",
            )
        hints.check_job(job)

    def apply(self, hints: HintRegistry, now_s: float) -> Job:
        self.check(hints)
        known = hints.put_job(self.job(), now_s)
        if self.begins is not None:
            hints.begin_run(known.name, self.begins, resumes=self.resumes)
        return known

    def job(self) -> Job:
        """Return the job as this change registers it, without signs of life."""
        return Job(
            self.name,
            self.dataset,
            self.world_size,
            self.weight,
            self.expires_s,
            need=self.need,
            best_effort=self.best_effort,
        )


class DeleteJob(PlainChange, frozen=True):
    """Delete a job; see ``HintRegistry.delete_job``."""

    name: str

    def check(self, hints: HintRegistry) -> None:
        hints.jobs.get(self.name)

    def apply(self, hints: HintRegistry, _now_s: float) -> None:
        hints.delete_job(self.name)


class EndRank(PlainChange, frozen=True):
    """Note that a rank has ended; see ``HintRegistry.end_rank``."""

    name: str
    rank: int

    def check(self, hints: HintRegistry) -> None:
        check_rank(hints.jobs.get(self.name), self.rank)

    def apply(self, hints: HintRegistry, _now_s: float) -> None:
        hints.end_rank(self.name, self.rank)


class WithdrawOrder(PlainChange, frozen=True):
    """Withdraw what ``rank`` announced for an epoch; see ``Orders.withdraw``. Rank None means all ranks."""

    name: str
    epoch: int
    rank: int | None

    def check(self, hints: HintRegistry) -> None:
        hints.orders.check_withdrawal(self.name, self.epoch, self.rank)

    def apply(self, hints: HintRegistry, now_s: float) -> None:
        hints.orders.withdraw(self.name, self.epoch, self.rank, now_s)


@dataclass(frozen=True, slots=True)
class ReportProgress:
    """Report the position of a rank; see ``HintRegistry.report_progress``."""

    name: str
    rank: int
    progress: Progress

    def check(self, hints: HintRegistry) -> None:
        hints.check_progress(self.name, self.rank, self.progress)

    def apply(self, hints: HintRegistry, now_s: float) -> None:
        hints.report_progress(self.name, self.rank, self.progress, now_s)


@dataclass(frozen=True, slots=True)
class PutScores:
    """Write scores; see ``HintRegistry.apply``. The batch was checked when it was made."""

    name: str
    batch: Batch

    def check(self, hints: HintRegistry) -> None:
        hints.jobs.get(self.name)

    def apply(self, hints: HintRegistry, now_s: float) -> int:
        return hints.apply(self.name, self.batch, now_s)


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce the sample ids that a rank will read; see ``Orders.put``. The ids were checked when the
    announcement was made.
    """

    announcement: Announcement

    def check(self, hints: HintRegistry) -> None:
        hints.orders.check(self.announcement)

    def apply(self, hints: HintRegistry, now_s: float) -> None:
        hints.orders.put(self.announcement, now_s)
        hints.jobs.touch(self.announcement.job, now_s)


@dataclass(frozen=True, slots=True)
class FreezeScores:
    """Freeze a score column for an epoch of a job. All ranks draw the epoch from the first column that is
    frozen for it. See ``FrozenScores.take``.
    """

    name: str
    epoch: int
    column: Scores
    mean_loss: float | None

    def check(self, hints: HintRegistry) -> None:
        hints.jobs.get(self.name)

    def apply(self, hints: HintRegistry, _now_s: float) -> Frozen:
        hints.jobs.get(self.name)
        return hints.frozen.take(self.name, self.epoch, lambda: self.column, self.mean_loss)
