"""A schedule of faults for calls: the faults come first from a script, then from a seeded draw.

The schedule knows neither medium nor network. Equal script, rates, seed and order of calls give equal faults.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

Kind = TypeVar("Kind")


class Schedule(Generic[Kind]):
    """Decides which call gets which fault. Thread-safe.

    The first fault of ``script`` goes to the next call that the fault ``fits``; calls before this call get no
    fault. After the script's end, each fault that fits a call hits it with the fault's probability in
    ``rates``. ``noted`` is called with each fault, on the thread of the call.
    """

    def __init__(
        self,
        fits: Callable[[Kind, str], bool],
        *,
        script: Iterable[Kind] = (),
        rates: Mapping[Kind, float] | None = None,
        seed: int = 0,
        noted: Callable[[Kind], None] = lambda _kind: None,
    ) -> None:
        self._fits = fits
        self._script = deque(script)
        self._rates = dict(rates or {})
        self._random = random.Random(seed)
        self._noted = noted
        self._lock = threading.Lock()

    def enqueue(self, *kinds: Kind) -> None:
        """Append faults to the script."""
        with self._lock:
            self._script.extend(kinds)

    def hasten(self, kind: Kind) -> None:
        """Put ``kind`` at the front of the script, so that the next call that it fits gets it."""
        with self._lock:
            self._script.appendleft(kind)

    def end(self) -> None:
        """Stop injecting faults, for all later calls."""
        with self._lock:
            self._script.clear()
            self._rates.clear()

    def next(self, operation: str) -> Kind | None:
        """Return the fault for a call of ``operation``; None for no fault."""
        with self._lock:
            kind = self._draw(operation)
        if kind is not None:
            self._noted(kind)
        return kind

    def choose(self, stop: int) -> int:
        """Draw a number in [0, stop), which says at which place of a body a fault happens."""
        with self._lock:
            return self._random.randrange(stop)

    def _draw(self, operation: str) -> Kind | None:
        if self._script:
            return self._script.popleft() if self._fits(self._script[0], operation) else None
        drawn = self._random.random()
        for kind, rate in self._rates.items():
            if self._fits(kind, operation):
                if drawn < rate:
                    return kind
                drawn -= rate
        return None
