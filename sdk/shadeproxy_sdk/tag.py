"""Whose reads these are: the job, epoch and rank that every process of a training run puts on its requests.

The epoch is one shared integer, so that DataLoader workers that live longer than an epoch
(``persistent_workers``) see it change.
"""

from shadeproxy_sdk.shared import SharedInteger


class JobTag:
    """The value of ``x-shade-job``."""

    def __init__(self, job: str, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.epoch = SharedInteger()

    def headers(self) -> dict[str, str]:
        """The header field of a read that is made now."""
        return {"x-shade-job": f"{self.job};epoch={self.epoch.value};rank={self.rank}"}
