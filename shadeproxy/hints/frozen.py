"""Frozen scores: the score column from which the first rank drew an epoch. All ranks draw the epoch from this
column, and so draw the same samples.

Laws: all ranks that ask for an epoch get its frozen column, until columns of two other epochs have been
frozen since. A column without any score is not frozen, because scores may still come.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shadeproxy.hints.scoreboard import Scores

KEPT_EPOCHS = 2
"""The number of epochs of each job whose frozen columns are kept."""


class Frozen(NamedTuple):
    """The frozen column of one epoch. ``mean_loss``: the mean loss that came with the column, if one did."""

    column: Scores
    mean_loss: float | None


class FrozenScores:
    """The frozen columns of the last two epochs of each job."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Frozen]] = {}

    def get(self, job: str, epoch: int) -> Frozen | None:
        """Return the frozen scores of ``epoch``; None if there are none."""
        return self._jobs.get(job, {}).get(epoch)

    def names(self) -> list[tuple[str, int]]:
        """Return (job, epoch) of each frozen column. Those of one job are in the order in which their columns
        were frozen.
        """
        return [(job, epoch) for job, epochs in self._jobs.items() for epoch in epochs]

    def take(self, job: str, epoch: int, column: Callable[[], Scores], mean_loss: float | None) -> Frozen:
        """Return the frozen scores of ``epoch``. The first call freezes the result of ``column()``, if it has
        any score.
        """
        known = self.get(job, epoch)
        if known is not None:
            return known
        new = Frozen(column(), mean_loss)
        if not np.isnan(new.column).all():
            epochs = self._jobs.setdefault(job, {})
            epochs[epoch] = new
            if len(epochs) > KEPT_EPOCHS:
                del epochs[next(iter(epochs))]
        return new

    def merge(self, job: str, epoch: int, frozen: Frozen) -> None:
        """Take a frozen column from a snapshot. The snapshot may be older than the columns here, so those of
        the last epochs stay. The epochs of a run follow each other.
        """
        epochs = {epoch: frozen} | self._jobs.get(job, {})
        self._jobs[job] = dict(sorted(epochs.items())[-KEPT_EPOCHS:])

    def forget(self, job: str) -> None:
        """Drop the frozen columns of a deleted job or an ended run."""
        self._jobs.pop(job, None)
