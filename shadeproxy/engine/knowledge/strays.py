"""Reads of one job that were not announced about where it is: by them it is sought elsewhere in its order.

Law: the more often it was sought in vain the later it is sought again, so a false order costs
next to nothing.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from shadeproxy.engine.knowledge.datasets import Ids
from shadeproxy.engine.knowledge.truth import Truth

_KEPT = 256


class Strays:
    """The latest of them."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=_KEPT)
        self._seek_at = _KEPT

    def note(self, samples: Iterable[int]) -> None:
        """Read, and not announced."""
        self._latest.extend(samples)

    def are_many(self, truth: Truth) -> bool:
        """Whether the job may be somewhere else in its order."""
        return not truth.believed and truth.surprises >= self._seek_at

    def take(self, truth: Truth, most: int) -> Ids:
        """What to seek, ``most`` of them; the next time is when there were twice as many."""
        self._seek_at = 2 * truth.surprises
        return np.array(list(self._latest)[-most:], dtype=np.int64)

    def found(self, truth: Truth) -> None:
        """The job was found by them."""
        self._latest.clear()
        self._seek_at = truth.surprises + _KEPT
