"""The pace at which the rest of big objects is fetched, although no reader has asked for it.

Laws: pure state; callers pass the time. While readers wait for the origin, such fetches take at most a
twentieth of the time, one after another. So they come in the end, and readers hardly notice them
(docs/adr/0081).
"""

_AT_A_TIME = 2
_QUIET_S = 0.1  # Readers that asked for a missing page so short a time ago may ask for more.
_FIRST_S = 1.0  # Once readers begin to wait for the origin, the first fetch waits so long.
_BUSY_SHARE = 1 / 20


class BackgroundPace:
    """Decides when the next page of the rest of an object may be fetched."""

    def __init__(self) -> None:
        self._flying = self._wanted = 0
        self._quiet_s = self._next_s = 0.0

    def may_start(self, now_s: float, wanted: int, *, demanded: bool) -> bool:
        """Return whether one more such fetch may start. ``wanted``: the number of missing pages that readers
        have wanted so far. ``demanded``: True if a reader waits for the origin now.
        """
        if demanded or wanted != self._wanted:
            if now_s >= self._quiet_s:
                self._next_s = max(self._next_s, now_s + _FIRST_S)
            self._wanted, self._quiet_s = wanted, now_s + _QUIET_S
        if now_s < self._quiet_s:
            return not self._flying and now_s >= self._next_s
        return self._flying < _AT_A_TIME

    def begin(self) -> None:
        """Note the begin of such a fetch."""
        self._flying += 1

    def end(self, now_s: float, took_s: float) -> None:
        """Note the end of such a fetch, which took ``took_s``."""
        self._flying -= 1
        self._next_s = now_s + took_s * (1 / _BUSY_SHARE - 1)
