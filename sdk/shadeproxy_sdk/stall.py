"""Measures how long training waits for data, which ``/v1/stats`` shows as stall, and how long training
computes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Batch = TypeVar("Batch")


class StallMeter:
    """Adds up two times of a loop over batches, in seconds. The loop waits from asking the iterator for a
    batch until it gets the batch. It is busy from then until it asks for the next batch. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lap_s = self._computed_s = 0.0
        self.total_s = 0.0

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches, and measure both times. The first wait includes the start of a DataLoader's
        workers.
        """
        asked_at = self._clock()
        for batch in batches:
            got_at = self._clock()
            self._add(got_at - asked_at)
            yield batch
            asked_at = self._clock()
            self._computed_s += asked_at - got_at
        self._add(self._clock() - asked_at)

    def lap(self) -> float:
        """Return the seconds waited since the last call of ``lap``."""
        lap_s, self._lap_s = self._lap_s, 0.0
        return lap_s

    def computed(self) -> float:
        """Return the seconds in which the loop was busy with batches since the last call of ``computed``."""
        computed_s, self._computed_s = self._computed_s, 0.0
        return computed_s

    def _add(self, wait_s: float) -> None:
        self._lap_s += wait_s
        self.total_s += wait_s
