"""Circuit breakers: they stop the requests to a server that failed, and let single attempts through after
growing pauses. No I/O.

An open breaker refuses requests. After a pause it lets one request probe the server. The pause doubles with
each probe that fails. So a dead proxy costs training one failed request in each pause, not one for each
sample.
"""

import threading
import time
from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import NamedTuple

_MOST_BREAKERS = 256


class BreakerDecision(Enum):
    """The answer to the question whether a request may be sent. ALLOW: yes. PROBE: yes, but this one only,
    and with a short timeout. REFUSE: no.
    """

    ALLOW = auto()
    PROBE = auto()
    REFUSE = auto()


class Outage(NamedTuple):
    """The state of an open breaker: the time of the next probe, the pause, and why it opened. Another process
    of the same machine can use it.
    """

    probe_at: float
    pause_s: float
    reason: str


class CircuitBreaker:
    """A thread-safe circuit breaker. Times are in seconds of ``clock``. ``reason``: why the breaker last
    opened.
    """

    def __init__(
        self, pause_s: float, *, max_pause_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_pause_s = pause_s
        self._max_pause_s = max(pause_s, max_pause_s)
        self._pause_s = pause_s
        self._clock = clock
        self._probe_at: float | None = None
        self._lock = threading.Lock()
        self.reason = ""

    @property
    def is_open(self) -> bool:
        """True from a failure until the server answers again."""
        return self._probe_at is not None

    @property
    def outage(self) -> Outage | None:
        """The state of the breaker while it is open; None if it is closed. It takes no lock, because after a
        fork the parent's lock may stay locked.
        """
        probe_at = self._probe_at
        return None if probe_at is None else Outage(probe_at, self._pause_s, self.reason)

    def follow(self, outage: Outage) -> None:
        """Open as another breaker is open, for as long."""
        with self._lock:
            self._probe_at, self._pause_s, self.reason = outage

    def hurry(self, pause_s: float) -> None:
        """Shorten the current pause to ``pause_s``, because a caller needs this server and has no other
        one.
        """
        with self._lock:
            if self._probe_at is not None:
                self._probe_at = min(self._probe_at, self._clock() + pause_s)

    def ask(self) -> BreakerDecision:
        """Decide whether a request may be sent now. After the answer PROBE, call ``failed`` or ``succeeded``
        when the request has ended. If neither is called, one request after another pause is a probe too.
        """
        with self._lock:
            if self._probe_at is None:
                return BreakerDecision.ALLOW
            now = self._clock()
            if now < self._probe_at:
                return BreakerDecision.REFUSE
            self._probe_at = now + self._pause_s
            return BreakerDecision.PROBE

    def failed(self, decision: BreakerDecision, reason: str) -> None:
        """Note that a request that ``ask`` answered with ``decision`` failed because of ``reason``. Open the
        breaker.
        """
        with self._lock:
            self.reason = reason
            if decision is BreakerDecision.PROBE:
                self._pause_s = min(2 * self._pause_s, self._max_pause_s)
            elif self._probe_at is not None:
                return  # A parallel request has already opened the breaker.
            self._probe_at = self._clock() + self._pause_s

    def succeeded(self) -> None:
        """Close the breaker, because the server answered."""
        with self._lock:
            self._probe_at = None
            self._pause_s = self._first_pause_s


class CircuitBreakers:
    """Circuit breakers by name. Thread-safe.

    Only open breakers are kept, at most ``most``. If one more opens, the one that opened first is dropped,
    and so counts as closed.
    """

    def __init__(
        self, pause_s: float, *, most: int = _MOST_BREAKERS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pause_s = pause_s
        self._most = most
        self._clock = clock
        self._open: dict[Hashable, CircuitBreaker] = {}  # By name; the one that opened first is first.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, name: Hashable) -> BreakerDecision:
        """Decide for ``name``, as ``CircuitBreaker.ask`` does."""
        with self._lock:
            breaker = self._open.get(name)
        return BreakerDecision.ALLOW if breaker is None else breaker.ask()

    def failed(self, name: Hashable, decision: BreakerDecision, reason: str) -> None:
        """Note a failure of ``name``, as ``CircuitBreaker.failed`` does."""
        with self._lock:
            breaker = self._open.get(name)
            if breaker is None:
                breaker = self._open[name] = CircuitBreaker(self._pause_s, clock=self._clock)
            if len(self._open) > self._most:
                del self._open[next(iter(self._open))]
        breaker.failed(decision, reason)

    def succeeded(self, name: Hashable) -> None:
        """Close the breaker of ``name``, as ``CircuitBreaker.succeeded`` does."""
        with self._lock:
            self._open.pop(name, None)
