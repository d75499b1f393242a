"""The time that training waits for data (``/v1/stats`` shows it as stall), and the time that it computes."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Batch = TypeVar("Batch")


class StallMeter:
    """Adds up how long a loop waits for its batches, and how long it is busy with them: the seconds from
    asking an iterator for a batch to getting it, and from getting it to asking for the next one. For one
    thread.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lap_s = self._computed_s = 0.0
        self.total_s = 0.0

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches, and time the wait for each. The first wait includes the start of
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
