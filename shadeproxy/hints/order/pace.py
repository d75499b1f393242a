"""The rate at which a job reads.

Laws: there is no clock: callers pass the time. A pause (an evaluation, a checkpoint) does not lower the rate.
An unmeasured rate is nan, never a guess. The module liveness.py decides whether the job still reads at all.
"""

import math

_HALF_LIFE_S = 15.0
_SHORTEST_S = 0.05
_PAUSE_S = 2.0
_PAUSE_GAPS = 8


class JobPace:
    """The rate of one job's reads. ``now_s``: the time of its announcement."""

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
        """Note how many reads the job has made since the last call."""
        gap_s = now_s - self.last_s
        self.last_s = max(now_s, self.last_s)
        if not self._began:
            self._began = True
            return
        if gap_s > max(_PAUSE_S, _PAUSE_GAPS * self._gap_s):
            # This gap counts as a pause, but raises the limit for the next one. So a job that became slow is
            # soon measured as slow.
            self._gap_s = max(2 * self._gap_s, gap_s / (2 * _PAUSE_GAPS))
            return
        if gap_s > 0:
            kept = 0.5 ** (gap_s / _HALF_LIFE_S)
            self._reads *= kept
            self._busy_s = self._busy_s * kept + gap_s
            self._gap_s += (gap_s - self._gap_s) / 8
        self._reads += reads
