"""Unannounced reads: reads of one job that its order does not have near the job's place.

They serve to find the job elsewhere in its order. Law: each search in vain delays the next one, so a false
order costs next to nothing.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from shadeproxy.hints.datasets import Ids
from shadeproxy.hints.order.accuracy import OrderAccuracy
from shadeproxy.hints.order.sequence import Epoch, OrderSequence, Places

_KEPT = 256
_FIRST_READS = 32
_MOST_OTHERS = 8
_LEAST_EPOCHS = 3  # of the places looked at: in a shorter epoch chance would do


class UnannouncedReads:
    """The latest unannounced reads of a job."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=_KEPT)
        self._seek_at = _KEPT

    def note(self, samples: Iterable[int]) -> None:
        """Add samples that were read without having been announced."""
        self._latest.extend(samples)

    def are_many(self, accuracy: OrderAccuracy) -> bool:
        """Return whether the job may be somewhere else in its order."""
        return not accuracy.believed and accuracy.surprises >= self._seek_at

    def take(self, accuracy: OrderAccuracy, most: int) -> Ids:
        """Return at most ``most`` of the latest; the next search waits for twice as many."""
        self._seek_at = 2 * accuracy.surprises
        return np.array(list(self._latest)[-most:], dtype=np.int64)

    def begin(self, sequence: OrderSequence, epoch: Epoch, next_at: Places, near: int) -> Ids | None:
        """Return the latest reads if they are the first of ``epoch``, which is the next one; else None.

        ``next_at``: the place of each sample that is not over yet; ``near``: how many places are looked at.
        """
        if len(self._latest) < _FIRST_READS or epoch.distinct < _LEAST_EPOCHS * near:
            return None
        latest = np.array(list(self._latest)[-_FIRST_READS:], dtype=np.int64)
        places = next_at[latest]
        unread = places < epoch.start
        places[unread] = sequence.next[places[unread]]
        first = (places >= epoch.start) & (places < epoch.start + near)
        return latest[first] if np.count_nonzero(first) >= _FIRST_READS - _MOST_OTHERS else None

    def found(self, accuracy: OrderAccuracy) -> None:
        """Forget the reads, which have served to find the job."""
        self._latest.clear()
        self._seek_at = accuracy.surprises + _KEPT
