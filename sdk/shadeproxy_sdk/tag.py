"""The job, epoch and rank that every process of a training run names in its requests.

A job has two possible names, because another run may use the first one. The epoch and the choice of the name
are integers in shared memory. So DataLoader workers that live longer than an epoch (``persistent_workers``)
notice when these change.
"""

from shadeproxy_sdk.shared import SharedInteger


class JobTag:
    """The value of ``x-shade-job`` for one rank. ``asked``: the name that the user gave. ``other``: the name
    to use if ``asked`` is taken.
    """

    def __init__(self, asked: str, other: str, rank: int) -> None:
        self._names = (asked, other)
        self._renamed = SharedInteger()
        self.rank = rank
        self.epoch = SharedInteger()

    @property
    def job(self) -> str:
        """The name that the job has now."""
        return self._names[self._renamed.value]

    @property
    def other(self) -> str | None:
        """The second name while the job does not use it; otherwise None."""
        return None if self._renamed.value else self._names[1]

    def rename(self) -> None:
        """Switch to the other name, in every process of this rank."""
        self._renamed.value = 1

    def headers(self) -> dict[str, str]:
        """Return the header field for a read that is made now."""
        return {"x-shade-job": f"{self.job};epoch={self.epoch.value};rank={self.rank}"}
