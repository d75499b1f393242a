"""Whose reads these are: the job, epoch and rank that every process of a training run puts on its requests.

Which of its two names the job goes by, and the epoch, are shared integers, so that DataLoader workers that
live longer than an epoch (``persistent_workers``) see them change.
"""

from shadeproxy_sdk.shared import SharedInteger


class JobTag:
    """The value of ``x-shade-job``. ``other``: the name that the job goes on by where ``asked`` is taken."""

    def __init__(self, asked: str, other: str, rank: int) -> None:
        self._names = (asked, other)
        self._renamed = SharedInteger()
        self.rank = rank
        self.epoch = SharedInteger()

    @property
    def job(self) -> str:
        """The job's name now."""
        return self._names[self._renamed.value]

    @property
    def other(self) -> str | None:
        """The name that is left to it; None once it goes by that."""
        return None if self._renamed.value else self._names[1]

    def rename(self) -> None:
        """Go on by the other name, in every process of this rank."""
        self._renamed.value = 1

    def headers(self) -> dict[str, str]:
        """The header field of a read that is made now."""
        return {"x-shade-job": f"{self.job};epoch={self.epoch.value};rank={self.rank}"}
