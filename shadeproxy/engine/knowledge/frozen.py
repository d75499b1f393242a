"""Score columns as they were when an epoch was first drawn: so that all ranks of a job draw the same one.

Law: what was frozen for an epoch is what everybody gets who asks for that epoch, until two later ones were
asked for; a column without any score is not frozen, because it may only be early.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shadeproxy.engine.knowledge.scoreboard import Scores

_KEPT = 2


class Frozen(NamedTuple):
    """``mean_loss``: as the first who asked gave it."""

    column: Scores
    mean_loss: float | None


class FrozenScores:
    """The last two frozen columns of each job."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Frozen]] = {}

    def take(self, job: str, epoch: int, column: Callable[[], Scores], mean_loss: float | None) -> Frozen:
        """What is frozen for ``epoch``; the first who asks freezes ``column()``."""
        known = self._jobs.get(job, {}).get(epoch)
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
        """The job is gone."""
        self._jobs.pop(job, None)
