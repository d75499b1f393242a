"""The scores of this process's samples, as numpy columns. Pure arithmetic, no threads, no I/O.

SHADE (Khan et al., FAST'23, section 4.1): in a batch sorted by loss, the sample at place j (0 = smallest
loss) weighs ln(j + 10). Only the order within a batch counts, so scores can be compared across epochs and
scales of loss.
"""

import struct

import numpy as np
from numpy.typing import ArrayLike, NDArray

_RANK_OFFSET = 10
_KEPT_EPOCHS = 3
_HUGE = float(np.finfo(np.float32).max)


class Scoreboard:
    """The latest scores of ``samples`` samples. Not thread-safe.

    ``weights``: float32 (samples,), nan before a sample's first loss.
    """

    def __init__(self, samples: int) -> None:
        self.weights: NDArray[np.float32] = np.full(samples, np.nan, dtype=np.float32)
        self._unsent: NDArray[np.bool_] = np.zeros(samples, dtype=np.bool_)
        self._losses: dict[int, tuple[float, int]] = {}

    def apply(self, epoch: int, ids: ArrayLike, losses: ArrayLike) -> int:
        """Rank the samples of one batch by loss. Return how many of them were refused because their loss is
        not finite.

        ``ids``: integers (b,). ``losses``: floats, one for each id. If a sample occurs twice, the larger of
        its losses decides. Raises ValueError for other shapes and for unknown ids; then nothing is applied.
        """
        chosen, values = np.asarray(ids), np.asarray(losses, dtype=np.float64)
        if chosen.ndim != 1 or values.size != chosen.size:
            raise ValueError(f"{chosen.shape} ids and {values.shape} losses: give one loss per sample")
        if not np.issubdtype(chosen.dtype, np.integer):
            raise ValueError(f"ids are {chosen.dtype}, not integers: pass the ids that the loader yields")
        if chosen.size and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self.weights):
            raise ValueError(
                f"an id is outside 0 .. {len(self.weights) - 1}: pass the ids that the loader yields"
            )
        values = values.reshape(-1)
        finite = np.isfinite(values)
        chosen, values = chosen[finite], values[finite]
        if chosen.size:
            order = np.argsort(values, kind="stable")
            ranked = chosen[order]
            self.weights[ranked] = np.log(np.arange(_RANK_OFFSET, _RANK_OFFSET + ranked.size))
            self._unsent[ranked] = True
            total, count = self._losses.get(epoch, (0.0, 0))
            # Limit each loss. Otherwise the sum could become infinite, and the means and draws that follow
            # from it nan.
            self._losses[epoch] = (total + float(values.clip(-_HUGE, _HUGE).sum()), count + values.size)
            for old in sorted(self._losses)[:-_KEPT_EPOCHS]:
                del self._losses[old]
        return int(finite.size - finite.sum())

    def mean_loss(self) -> float | None:
        """Return the mean loss of the samples in the latest epoch with reports; None before the first
        report.
        """
        if not self._losses:
            return None
        total, count = self._losses[max(self._losses)]
        return total / count

    @property
    def unsent(self) -> int:
        """Number of samples whose latest score must still be sent."""
        return int(self._unsent.sum())

    def take(self, limit: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Return ids and scores of up to ``limit`` samples whose scores are unsent. From now on they count as
        sent, unless ``put_back`` gets their ids.
        """
        ids = np.flatnonzero(self._unsent)[:limit].astype(np.uint32)
        self._unsent[ids] = False
        return ids, self.weights[ids]

    def put_back(self, ids: NDArray[np.uint32]) -> None:
        """Mark the scores of ``ids`` as unsent, because they did not arrive."""
        self._unsent[ids] = True

    def again(self) -> None:
        """Mark all known scores as unsent, because the proxy has forgotten them."""
        self._unsent |= np.isfinite(self.weights)

    def resume(self, column: bytes) -> bool:
        """Use the scores of an earlier run, f32 (samples,), for samples without a score. Return whether any
        sample got a score.
        """
        if len(column) != self.weights.nbytes:
            return False
        weights = np.frombuffer(column, dtype="<f4")
        new = np.isnan(self.weights) & np.isfinite(weights)
        self.weights[new] = weights[new]
        return bool(new.any())

    def state(self) -> tuple[NDArray[np.float32], dict[int, tuple[float, int]]]:
        """Return copies of the weights and of the sums of losses by epoch (sum, count)."""
        return self.weights.copy(), dict(self._losses)

    def restore(self, weights: NDArray[np.float32], losses: dict[int, tuple[float, int]]) -> None:
        """Restore the result of ``state``, and mark its scores as unsent, because the proxy has no scores of
        the new run. Raises ValueError when it has another number of samples.
        """
        if weights.shape != self.weights.shape:
            raise ValueError(f"the state is of {len(weights)} samples, the dataset has {len(self.weights)}")
        self.weights[:] = weights
        self._losses = dict(losses)
        # Samples without a score in the state have none to send, even if one of theirs was unsent.
        self._unsent[:] = np.isfinite(self.weights)


def pack_scores(ids: NDArray[np.uint32], scores: NDArray[np.float32]) -> bytes:
    """Pack ``application/vnd.shadeproxy.scores``: u32 count, u32 ids, f32 scores, little-endian."""
    return struct.pack("<I", ids.size) + ids.astype("<u4").tobytes() + scores.astype("<f4").tobytes()
