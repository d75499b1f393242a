"""A circuit breaker for a server that failed: a growing pause between attempts, without I/O.

One request at a time may probe a shut gate, and only after the pause; the pause doubles while probes fail. So
a dead proxy costs training one failed request a pause, not one a sample.
"""

import threading
import time
from collections.abc import Callable, Hashable
from enum import Enum, auto

_MOST_GATES = 256


class BreakerDecision(Enum):
    """OPEN: ask. PROBE: ask; this is the only request, and should not wait long. SHUT: do not ask."""

    OPEN = auto()
    PROBE = auto()
    SHUT = auto()


class CircuitBreaker:
    """Thread-safe. Times in seconds of ``clock``. ``reason``: why it was shut last."""

    def __init__(
        self, pause_s: float, *, max_pause_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_pause_s = pause_s
        self._max_pause_s = max(pause_s, max_pause_s)
        self._pause_s = pause_s
        self._clock = clock
        self._reopens_at: float | None = None
        self._lock = threading.Lock()
        self.reason = ""

    def hurry(self, pause_s: float) -> None:
        """Shorten the pause to ``pause_s``, because a caller waits for this server and has no other."""
        with self._lock:
            if self._reopens_at is not None:
                self._reopens_at = min(self._reopens_at, self._clock() + pause_s)

    def ask(self) -> BreakerDecision:
        """Return whether this request may go. A PROBE must be followed by ``failed`` or ``succeeded``, or the
        pause begins again.
        """
        with self._lock:
            if self._reopens_at is None:
                return BreakerDecision.OPEN
            now = self._clock()
            if now < self._reopens_at:
                return BreakerDecision.SHUT
            self._reopens_at = now + self._pause_s
            return BreakerDecision.PROBE

    def failed(self, passage: BreakerDecision, reason: str) -> None:
        """Note that the request with ``passage`` got no answer, because of ``reason``."""
        with self._lock:
            self.reason = reason
            if passage is BreakerDecision.PROBE:
                self._pause_s = min(2 * self._pause_s, self._max_pause_s)
            elif self._reopens_at is not None:
                return  # Another request of the same time has already shut the gate.
            self._reopens_at = self._clock() + self._pause_s

    def succeeded(self) -> None:
        """Open the gate: the server answered."""
        with self._lock:
            self._reopens_at = None
            self._pause_s = self._first_pause_s


class CircuitBreakers:
    """A gate for each of many names. Thread-safe.

    Only shut gates are kept, at most ``most``; beyond that, the one that was shut first opens.
    """

    def __init__(
        self, pause_s: float, *, most: int = _MOST_GATES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pause_s = pause_s
        self._most = most
        self._clock = clock
        self._shut: dict[Hashable, CircuitBreaker] = {}  # oldest first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._shut)

    def ask(self, name: Hashable) -> BreakerDecision:
        """Return the passage of ``name``; see ``CircuitBreaker.ask``."""
        with self._lock:
            gate = self._shut.get(name)
        return BreakerDecision.OPEN if gate is None else gate.ask()

    def failed(self, name: Hashable, passage: BreakerDecision, reason: str) -> None:
        """Note a failure of ``name``; see ``CircuitBreaker.failed``."""
        with self._lock:
            gate = self._shut.get(name)
            if gate is None:
                gate = self._shut[name] = CircuitBreaker(self._pause_s, clock=self._clock)
            if len(self._shut) > self._most:
                del self._shut[next(iter(self._shut))]
        gate.failed(passage, reason)

    def succeeded(self, name: Hashable) -> None:
        """Open the gate of ``name``; see ``CircuitBreaker.succeeded``."""
        with self._lock:
            self._shut.pop(name, None)
