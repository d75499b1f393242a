"""A snapshot of the scores at the moment when half of an epoch was reported. The next epoch is drawn from it.

Law: the moment depends on the number of reported samples, never on time. So the same reports give the same
draw at any speed of training. Not thread-safe, no I/O.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.scoreboard import Scoreboard

_SHARED_WITHIN_S = 15.0
_BYTES_PER_S = 2 * 1024 * 1024


class ScoreSnapshot(NamedTuple):
    """Scores of samples at one moment. ``weights``: f32 (samples,), nan where unknown. ``mean_loss``: None if
    the ranks share no mean loss.
    """

    weights: NDArray[np.float32]
    mean_loss: float | None

    @classmethod
    def told(cls, column: bytes, mean_loss: str | None) -> "ScoreSnapshot":
        """Return the snapshot in the proxy's answer. ``column``: the weights of all samples, f32 in
        little-endian order. ``mean_loss``: the answer's header field; if it is no finite number, the mean
        loss counts as unknown.
        """
        try:
            value = float(mean_loss or "nan")
        except ValueError:
            value = math.nan
        return cls(np.frombuffer(column, dtype="<f4"), value if math.isfinite(value) else None)

    @property
    def has_scores(self) -> bool:
        """True if the score of any sample is known."""
        return bool(np.isfinite(self.weights).any())

    @property
    def shared_within_s(self) -> float:
        """Most seconds to wait for the proxy's column of all ranks' scores. A proxy of a cluster may have to
        wait too: up to 5 s to join the cluster after a start, and then up to 5 s for the column, longer if
        the column is long. A rank that gave up earlier would draw from its own scores, and the other ranks
        from the column.
        """
        return _SHARED_WITHIN_S + self.weights.nbytes / _BYTES_PER_S


class EpochSnapshot:
    """Counts the reported samples of the current epoch, and keeps a snapshot of the scores when half of them
    are reported.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._counted = self._half = 0
        self._known: dict[int, ScoreSnapshot] = {}

    @property
    def counted(self) -> int:
        """Number of samples of the current epoch that were reported, with those before a checkpoint."""
        return self._counted

    def begin(self, epoch: int, counted: int, length: int) -> None:
        """Begin ``epoch``, of which ``counted`` of ``length`` samples were reported before a checkpoint. Keep
        the snapshot of the previous epoch, and drop older ones. An epoch whose ``length`` is not known (0)
        gets no snapshot.
        """
        self._epoch, self._counted, self._half = epoch, counted, (length + 1) // 2
        self._known = {known: value for known, value in self._known.items() if known >= epoch - 1}

    def count(self, epoch: int, samples: int, board: Scoreboard) -> None:
        """Count ``samples`` more samples of ``epoch``, whose scores are on ``board``."""
        if epoch != self._epoch:
            return
        self._counted += samples
        if 0 < self._half <= self._counted and epoch not in self._known:
            self._known[epoch] = ScoreSnapshot(board.weights.copy(), board.mean_loss())

    def known(self, epoch: int) -> ScoreSnapshot | None:
        """Return the snapshot that was taken when half of ``epoch`` was reported; None if there is none."""
        return self._known.get(epoch)
