"""What was known of the samples when half of an epoch had been reported: the next one is drawn from that.

Law: the moment is counted in reported samples, never in time, so the same reports give the same draw however
fast anybody was. Not thread-safe, no I/O.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.scoreboard import Scoreboard


class Known(NamedTuple):
    """``weights``: f32 (samples,), nan where unknown. ``mean_loss``: None where nobody can tell that all
    ranks agree on.
    """

    weights: NDArray[np.float32]
    mean_loss: float | None

    @classmethod
    def told(cls, column: bytes, mean_loss: str | None) -> "Known":
        """What the proxy answered: the column's bytes, and the header field, which may be no number."""
        try:
            value = float(mean_loss or "nan")
        except ValueError:
            value = math.nan
        return cls(np.frombuffer(column, dtype="<f4"), value if math.isfinite(value) else None)


class Halfway:
    """Counts the reports of the epoch that was begun last, and keeps what was known at its half."""

    def __init__(self) -> None:
        self._epoch = -1
        self._counted = self._half = 0
        self._known: dict[int, Known] = {}

    def begin(self, epoch: int, start: int, length: int) -> None:
        """``epoch`` begins at sample ``start`` of ``length``; a half that was passed stays as it was."""
        self._epoch, self._counted, self._half = epoch, start, (length + 1) // 2
        self._known = {known: value for known, value in self._known.items() if known >= epoch - 1}

    def count(self, epoch: int, samples: int, board: Scoreboard) -> None:
        """``samples`` more of ``epoch`` are on ``board``."""
        if epoch != self._epoch:
            return
        self._counted += samples
        if self._half <= self._counted and epoch not in self._known:
            self._known[epoch] = Known(board.weights.copy(), board.mean_loss())

    def known(self, epoch: int) -> Known | None:
        """What was known at the half of ``epoch``; None when it was not reached."""
        return self._known.get(epoch)
