"""The rate at which a job reads.

Laws: there is no clock: times are arguments. A pause (an evaluation, a checkpoint) does not lower the rate.
An unmeasured rate is nan, never a guess. Whether the job still reads at all is decided in liveness.py.
"""

import math

_HALF_LIFE_S = 15.0
_SHORTEST_S = 0.05
_PAUSE_S = 2.0
_PAUSE_GAPS = 8


class JobPace:
    """The reads of one job over time. ``now_s``: the time of its announcement."""

    def __init__(self, now_s: float) -> None:
        self.last_s = now_s
        self._reads = 0.0
        self._busy_s = 0.0
        self._gap_s = 0.0
        self._began = False

    @property
    def rate_per_s(self) -> float:
        """Samples a second while the job reads; nan until it is measured."""
        return self._reads / self._busy_s if self._busy_s >= _SHORTEST_S else math.nan

    def note(self, reads: int, now_s: float) -> None:
        """Add ``reads`` made since the last note."""
        gap_s = now_s - self.last_s
        self.last_s = max(now_s, self.last_s)
        if not self._began:
            self._began = True
            return
        if gap_s > max(_PAUSE_S, _PAUSE_GAPS * self._gap_s):
            # A longer gap raises the limit for the next gap. So a job that became slow is measured as slow.
            self._gap_s = max(2 * self._gap_s, gap_s / (2 * _PAUSE_GAPS))
            return
        if gap_s > 0:
            kept = 0.5 ** (gap_s / _HALF_LIFE_S)
            self._reads *= kept
            self._busy_s = self._busy_s * kept + gap_s
            self._gap_s += (gap_s - self._gap_s) / 8
        self._reads += reads
