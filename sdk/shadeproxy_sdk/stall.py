"""The time that training waits for data (``/v1/stats`` shows it as stall), and the time that it computes."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Batch = TypeVar("Batch")


class StallMeter:
    """Adds up the seconds between asking an iterator for a batch and getting it, and those between getting it
    and asking for the next one. For one thread.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lap_s = self._computed_s = 0.0
        self.total_s = 0.0

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches and time each wait, including the first one, in which workers start."""
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
