"""The jobs that are open in this process: for calls that may leave the job out."""

import os
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from shadeproxy_sdk.errors import ConfigError


class _OfRank(Protocol):
    """The names of a job; ``Job`` itself imports this module."""

    rank: int

    @property
    def name(self) -> str: ...


OneJob = TypeVar("OneJob", bound=_OfRank)


class OpenJobs(Generic[OneJob]):
    """The jobs that were made and not closed, by process: a fork inherits the list, not the jobs."""

    def __init__(self) -> None:
        self._jobs: WeakSet[OneJob] = WeakSet()
        self._pid = os.getpid()

    def add(self, job: OneJob) -> None:
        """Add ``job``. It replaces one of the same name and rank, because notebooks make jobs again."""
        if self._pid != os.getpid():
            self._jobs, self._pid = WeakSet(), os.getpid()
        for other in [one for one in self._jobs if (one.name, one.rank) == (job.name, job.rank)]:
            self._jobs.discard(other)
        self._jobs.add(job)

    def discard(self, job: OneJob) -> None:
        """Remove ``job`` when it is closed."""
        self._jobs.discard(job)

    def only(self) -> OneJob:
        """Return the one open job. Raises ConfigError when there is none, or more than one."""
        jobs = list(self._jobs) if self._pid == os.getpid() else []
        if len(jobs) == 1:
            return jobs[0]
        if not jobs:
            raise ConfigError(
                "announce(sampler) found no open job in this process: make it first, as in "
                'job = client.job("NAME", dataset=client.manifest(bucket=..., prefix=...))'
            )
        names = ", ".join(sorted(job.name for job in jobs))
        raise ConfigError(
            f"{len(jobs)} jobs are open in this process ({names}): write announce(sampler, job), or close "
            "those that are over"
        )
