"""Unannounced reads: reads of one job that its order does not have near the job's place.

They serve to find the job elsewhere in its order. Law: each search in vain delays the next one, so a false
order costs next to nothing.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from shadeproxy.engine.knowledge.datasets import Ids
from shadeproxy.engine.knowledge.truth import Truth

_KEPT = 256


class Strays:
    """The latest unannounced reads of a job."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=_KEPT)
        self._seek_at = _KEPT

    def note(self, samples: Iterable[int]) -> None:
        """Add samples that were read without having been announced."""
        self._latest.extend(samples)

    def are_many(self, truth: Truth) -> bool:
        """Return whether the job may be somewhere else in its order."""
        return not truth.believed and truth.surprises >= self._seek_at

    def take(self, truth: Truth, most: int) -> Ids:
        """Return at most ``most`` of the latest; the next search waits for twice as many."""
        self._seek_at = 2 * truth.surprises
        return np.array(list(self._latest)[-most:], dtype=np.int64)

    def found(self, truth: Truth) -> None:
        """Forget the reads, which have served to find the job."""
        self._latest.clear()
        self._seek_at = truth.surprises + _KEPT
