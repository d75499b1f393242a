"""Which call suffers which fault: by a script, then by a seeded draw. Knows no medium and no network.

The same script, rates, seed and order of calls give the same faults.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

Kind = TypeVar("Kind")


class Schedule(Generic[Kind]):
    """Each entry of ``script`` befalls the first call that it ``fits``, in order; while one waits for its
    call the others pass. After the script's end every call suffers each fault that fits it with the
    probability in ``rates``. ``noted``: told of each fault, on whichever thread. Thread-safe.
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
        """Add to the script."""
        with self._lock:
            self._script.extend(kinds)

    def hasten(self, kind: Kind) -> None:
        """The next call that it fits suffers ``kind``."""
        with self._lock:
            self._script.appendleft(kind)

    def end(self) -> None:
        """No more faults."""
        with self._lock:
            self._script.clear()
            self._rates.clear()

    def next(self, operation: str) -> Kind | None:
        """What befalls a call of ``operation``."""
        with self._lock:
            kind = self._draw(operation)
        if kind is not None:
            self._noted(kind)
        return kind

    def choose(self, stop: int) -> int:
        """A number in [0, stop), for where in a body a fault strikes."""
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
