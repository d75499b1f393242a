"""Jobs: their datasets, ranks, weights and signs of life.

Laws: callers pass the time as ``now_s``. A job that is silent for ``expires_s`` stops counting until its next
sign of life. A job that stays silent FORGET_AFTER times as long is forgotten with its scores. A job is in use
while it counts and not all of its ranks have ended. While a job is in use, its dataset cannot be replaced.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shadeproxy.core.errors import Conflict, InvalidRequest, TooManyHints, UnknownName
from shadeproxy.hints.needs import JobNeed

_NEW_RUN_S = 60.0
MAX_JOBS = 256
DEFAULT_EXPIRES_S = 3600.0
FORGET_AFTER = 168  # Multiples of ``expires_s``: a week, with the default of an hour.
_MOST_EPOCH = (1 << 31) - 1
_MOST_POSITION = 1 << 24  # A job may announce this many ids in all (``MAX_JOB_IDS``).


class Progress(NamedTuple):
    """The position of one rank: ``position`` samples into ``epoch``."""

    epoch: int
    position: int


class LoaderSettings(NamedTuple):
    """The loader of each rank, as the SDK reports it: torch's ``num_workers``, ``batch_size`` and
    ``prefetch_factor``, and how many samples of a batch one worker reads at a time.
    """

    workers: int
    batch_size: int
    prefetch_factor: int
    reads_at_once: int = 1


@dataclass(slots=True)
class Job:
    """A job. ``dataset``: None if the job scores objects by key; its samples are then a growing set.

    ``begun``: ranks that have begun the present run. ``resumes``: the job also draws from scores of earlier
    runs. ``best_effort``: the job has given up its need.
    """

    name: str
    dataset: str | None = None
    world_size: int = 1
    weight: float = 1.0
    expires_s: float = DEFAULT_EXPIRES_S
    seen_s: float = 0.0
    live: bool = True
    progress: dict[int, Progress] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    resumes: bool = False
    loader: LoaderSettings | None = None
    need: JobNeed | None = None
    best_effort: bool = False

    @property
    def in_use(self) -> bool:
        """True if the job counts and has not ended, so that it may still name its samples by id."""
        return self.live and len(self.ended) < self.world_size

    def last_sign_s(self, now_s: float) -> float:
        """Return the time of the last sign of life of a job that was stored, or that another proxy knows. A
        job that was in use counts as alive now, because perhaps only the proxy was away, and not the job.
        """
        return now_s if self.in_use else min(self.seen_s, now_s)

    def position(self, epoch: int | None) -> int | None:
        """Return how many samples of ``epoch`` all ranks together have finished; None unless all of them are
        in ``epoch``.
        """
        if len(self.progress) < self.world_size or any(at.epoch != epoch for at in self.progress.values()):
            return None
        return sum(at.position for at in self.progress.values())


def ignore(*_of: object) -> None:
    """Do nothing: the default of callbacks."""


class Jobs:
    """The registered jobs by name. ``on_epoch`` is called when a job begins an epoch."""

    def __init__(self, on_epoch: Callable[[Job], None] = ignore) -> None:
        self.by_name: dict[str, Job] = {}
        """The registered jobs. Callers may read it but must not change it."""
        self._begun: dict[str, tuple[int, float]] = {}  # The latest epoch, and the time it was last reported.
        self._on_epoch = on_epoch

    def __iter__(self) -> Iterator[Job]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def get(self, name: str) -> Job:
        """Return the job. Raises UnknownName."""
        job = self.by_name.get(name)
        if job is None:
            raise UnknownName(f"job {name!r} is not registered", hint=f"register it: PUT /v1/jobs/{name}")
        return job

    def put(self, job: Job, now_s: float) -> Job:
        """Register ``job``, or update the job of that name. Every rank may call this.

        The dataset of a registered job cannot change, because its scores belong to it. Ended ranks count as
        running again. A registration that states no need keeps the present need, because an operator may have
        set it. Raises Conflict, and TooManyHints when there are MAX_JOBS jobs.
        """
        self.check(job)
        known = self.by_name.get(job.name)
        if known is None:
            known = self.by_name[job.name] = job
        else:
            if not known.in_use:
                self._begun.pop(job.name, None)
                known.begun = set(range(known.world_size))
            known.ended = set()
        known.world_size, known.weight, known.expires_s = job.world_size, job.weight, job.expires_s
        if job.need is not None or job.best_effort:
            known.need, known.best_effort = job.need, job.best_effort
        known.progress = {rank: at for rank, at in known.progress.items() if rank < job.world_size}
        self._hear(known, now_s)
        return known

    def check(self, job: Job) -> None:
        """Raise the errors of ``put``."""
        known = self.by_name.get(job.name)
        if known is None and len(self.by_name) >= MAX_JOBS:
            raise TooManyHints(
                f"{MAX_JOBS} jobs are registered already, and in use",
                hint="delete finished ones: DELETE /v1/jobs/NAME",
            )
        if known is not None and known.dataset != job.dataset:
            raise Conflict(
                f"job {job.name!r} is registered with dataset {known.dataset!r}, not {job.dataset!r}",
                hint="delete the job first, or choose another name",
            )

    def begin(self, name: str, rank: int, *, resumes: bool) -> bool:
        """Note that a process of ``rank`` has started. Return whether a new run begins: it does if the rank
        has begun the present run already. Raises UnknownName, InvalidRequest (rank outside the world size).
        """
        job = self.get(name)
        check_rank(job, rank)
        is_new = rank in job.begun
        job.begun = {rank} if is_new else job.begun | {rank}
        job.resumes = resumes
        return is_new

    def end(self, name: str, rank: int) -> None:
        """Note that a rank has ended. Raises UnknownName, InvalidRequest (rank outside the world size)."""
        job = self.get(name)
        check_rank(job, rank)
        job.ended.add(rank)

    def on(self, dataset: str) -> list[Job]:
        """Return the jobs of ``dataset``."""
        return [job for job in self if job.dataset == dataset]

    def renew(self, job: Job) -> None:
        """Prepare ``job`` for another manifest of its dataset. An ended job keeps its registration alone. A
        job that has not ended is deleted, because the ids that it sends would now name other samples.
        """
        self._remove(job.name)
        if len(job.ended) >= job.world_size:
            self.by_name[job.name] = replace(job, progress={})

    def delete(self, name: str) -> Job:
        """Forget the job and return it. Raises UnknownName."""
        job = self.get(name)
        self._remove(name)
        return job

    def touch(self, name: str, now_s: float, epoch: int | None = None) -> None:
        """Note a sign of life of ``name``, in ``epoch``; ignore a job that is not registered."""
        job = self.by_name.get(name)
        if job is not None:
            self._hear(job, now_s)
            self._note_epoch(job, epoch, now_s)

    def report(self, name: str, rank: int, progress: Progress, now_s: float) -> Job:
        """Note the position of a rank. Raises UnknownName, InvalidRequest (rank outside the world size)."""
        job = self.get(name)
        check_rank(job, rank)
        job.progress[rank] = progress
        job.ended.discard(rank)
        self._hear(job, now_s)
        self._note_epoch(job, progress.epoch, now_s)
        return job

    def _note_epoch(self, job: Job, epoch: int | None, now_s: float) -> None:
        if epoch is None:
            return
        latest, heard_s = self._begun.get(job.name, (-1, 0.0))
        # A report of an earlier epoch comes from a rank that is behind the others. After a pause it comes
        # from a job that was restarted.
        is_new = epoch > latest or (epoch < latest and now_s - heard_s >= _NEW_RUN_S)
        if is_new or epoch == latest:
            self._begun[job.name] = (epoch, now_s)
        if is_new:
            self._on_epoch(job)

    def expire(self, now_s: float) -> list[Job]:
        """Stop counting silent jobs. Remove the jobs that were silent FORGET_AFTER times as long, and return
        these.
        """
        for job in self.by_name.values():
            job.live = now_s - job.seen_s < job.expires_s
        forgotten = [job for job in self if now_s - job.seen_s >= job.expires_s * FORGET_AFTER]
        for job in forgotten:
            self._remove(job.name)
        return forgotten

    def _remove(self, name: str) -> None:
        del self.by_name[name]
        self._begun.pop(name, None)

    @staticmethod
    def _hear(job: Job, now_s: float) -> None:
        job.seen_s = now_s
        job.live = True


def refuse_if_any(users: list[Job]) -> None:
    """Raise Conflict if there are ``users`` of a dataset, which must then stay as it is."""
    for job in users:
        raise Conflict(
            f"dataset {job.dataset!r} is in use by job {job.name!r}",
            hint=f"delete the job first (DELETE /v1/jobs/{job.name}), or use another dataset name",
        )


def check_progress(job: str, rank: int, progress: Progress, *, announced: int | None, samples: int) -> None:
    """Check a reported position. ``announced``: number of samples of that epoch and rank, or None if unknown.
    ``samples``: number of samples of the dataset. Raises InvalidRequest.
    """
    hint = "position is how many samples this rank has finished in this epoch, of those that it announced"
    if progress.epoch > _MOST_EPOCH:
        raise InvalidRequest(
            f"epoch {progress.epoch}: at most {_MOST_EPOCH} is believed", hint="count epochs from 0 on"
        )
    if announced is not None and progress.position > announced:
        raise InvalidRequest(
            f"position {progress.position}, but rank {rank} of job {job!r} has announced {announced} samples "
            f"of epoch {progress.epoch}",
            hint=hint,
        )
    most = max(samples, _MOST_POSITION)
    if progress.position > most:
        raise InvalidRequest(
            f"position {progress.position} in epoch {progress.epoch}: at most {most} is believed", hint=hint
        )


def check_rank(job: Job, rank: int) -> None:
    """Raise InvalidRequest if the rank is outside the job's world size."""
    if rank >= job.world_size:
        raise InvalidRequest(
            f"rank {rank} of job {job.name!r}, whose world size is {job.world_size}",
            hint="register the job with its real world_size",
        )
