"""Counts failed fetches in a row, and says when prefetching should pause, and for how long.

Laws: pure state. Each further failure doubles the pause, up to a limit.
"""

from shadeproxy.core.errors import OriginError, Overloaded

_IN_A_ROW = 3
_REFUSALS_IN_A_ROW = 32  # One refusal may concern only its object. This many in a row concern the origin.
_MOST_DOUBLINGS = 10  # Failures are counted as long as the origin is away: 2**failures must stay small.
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.1, 5.0


class FailureCounter:
    """The failures since the last success."""

    def __init__(self) -> None:
        self._failures = self._refusals = 0

    def note_success(self) -> None:
        """Forget all failures."""
        self._failures = self._refusals = 0

    def note(self, error: BaseException) -> float:
        """Note a fetch that failed. Return the seconds to pause; 0 if fetches may go on."""
        if isinstance(error, Overloaded):
            return 0.0  # Demand reads took the memory first.
        if isinstance(error, OriginError) and not error.retryable:
            # The object is missing, forbidden, or has changed: that says nothing about other objects.
            self._refusals += 1
            if self._refusals < _REFUSALS_IN_A_ROW:
                return 0.0
        self._failures += 1
        doublings = min(self._failures - _IN_A_ROW, _MOST_DOUBLINGS)
        return 0.0 if doublings < 0 else min(_FIRST_PAUSE_S * 2**doublings, _MOST_PAUSE_S)
