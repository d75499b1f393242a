"""Frozen scores: the score columns from which an epoch was first drawn, so that all ranks draw the same
epoch.

Laws: all ranks that ask for an epoch get its frozen column, until two other epochs were asked for. A column
without any score is not frozen, because scores may still come.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shadeproxy.hints.scoreboard import Scores

_KEPT = 2


class Frozen(NamedTuple):
    """The frozen column of one epoch. ``mean_loss``: the value that the first caller gave."""

    column: Scores
    mean_loss: float | None


class FrozenScores:
    """The frozen columns of the last two epochs of each job."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Frozen]] = {}

    def get(self, job: str, epoch: int) -> Frozen | None:
        """Return the frozen scores of ``epoch``; None if there are none."""
        return self._jobs.get(job, {}).get(epoch)

    def take(self, job: str, epoch: int, column: Callable[[], Scores], mean_loss: float | None) -> Frozen:
        """Return the frozen scores of ``epoch``. The first call freezes the result of ``column()``."""
        known = self.get(job, epoch)
        if known is not None:
            return known
        new = Frozen(column(), mean_loss)
        if not np.isnan(new.column).all():
            epochs = self._jobs.setdefault(job, {})
            epochs[epoch] = new
            if len(epochs) > _KEPT:
                del epochs[next(iter(epochs))]
        return new

    def forget(self, job: str) -> None:
        """Drop the frozen columns of a deleted job or an ended run."""
        self._jobs.pop(job, None)
