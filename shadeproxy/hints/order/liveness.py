"""Liveness of a job: its order lapses for prefetching when the job is silent for long, compared with its own
pace.

Laws: there is no clock: callers pass the time. A job may be silent for a few times its usual gap between
reads. The limit is tens of seconds at least, because a checkpoint takes so long, and minutes at most. A job
could send announcements and progress for ever without reading. So an announcement counts as a sign of life
only once between two reads, and progress only if it is further than ever before. Where other proxies answer
most of a job's reads, its signs of life there count as well.
"""

import math
from typing import NamedTuple

from shadeproxy.hints.jobs import Progress

_SHORTEST_S = 20.0
_LONGEST_S = 300.0
_GAPS = 4
_START_S = 300.0  # Time that a start may take before the first read: indexing a dataset, compiling a model.
_SHORT_GAP_S = 1.0  # Shorter gaps are ignored, so that a busy job costs almost nothing.
_HALF_LIFE_S = 60.0  # A long gap loses half of its effect in this time, so a pause raises the limit briefly.


class Silence(NamedTuple):
    """Seconds since a job's last sign of life, and the limit at which its order lapses."""

    silent_s: float
    limit_s: float

    @property
    def has_lapsed(self) -> bool:
        return self.silent_s >= self.limit_s


class Liveness:
    """Signs of life of one job. ``restored``: the job announced its order before a restart of the proxy, and
    has given no sign since.
    """

    def __init__(self, now_s: float, *, restored: bool = False) -> None:
        self.last_s = now_s
        self._waits = restored
        self._began = restored  # A restored job gets no time to start: it may be dead.
        self._announced = not restored
        self._gap_s = 0.0
        self._gap_at_s = now_s
        self._furthest: dict[int, Progress] = {}

    def hear(self, now_s: float) -> None:
        """Note a read by the job."""
        if now_s <= self.last_s and self._began and not (self._announced or self._waits):
            return  # Nothing changes: most reads come at the same time as another read.
        gap_s = now_s - self.last_s
        if gap_s >= _SHORT_GAP_S and self._began and not self._waits:
            gap_s = min(gap_s, _LONGEST_S / _GAPS)
            if gap_s >= self._usual_s(now_s):
                self._gap_s, self._gap_at_s = gap_s, now_s
        self._speak(now_s)
        self._began = True
        self._announced = False

    def announce(self, now_s: float, *, begins: bool) -> None:
        """Note an announcement by the job. ``begins``: the job begins again, and gets the time that a start
        may take.
        """
        if self._announced:
            return
        self._announced = True
        if begins:
            self._began = False
            self._furthest.clear()
        self._speak(now_s)

    def advance(self, rank: int, progress: Progress, now_s: float) -> None:
        """Note a rank's reported position. Only a position further than ever before is a sign of life."""
        before = self._furthest.get(rank)
        if before is None or progress > before:
            self._furthest[rank] = progress
            self.hear(now_s)

    def hear_of(self, seen_s: float) -> None:
        """Note the time of the job's latest sign of life at any proxy. It does not count as a read here: the
        gap between two such signs says nothing of the pace, and a job that has not begun keeps the time for
        its start.
        """
        if seen_s > self.last_s:
            self._speak(seen_s)

    def silence(self, now_s: float) -> Silence:
        """Return the seconds of the job's silence, and its limit."""
        silent_s = max(now_s - self.last_s, 0.0)
        if self._waits:
            return Silence(silent_s, 0.0)
        if not self._began:
            return Silence(silent_s, _START_S)
        return Silence(silent_s, min(max(_GAPS * self._usual_s(self.last_s), _SHORTEST_S), _LONGEST_S))

    def _speak(self, now_s: float) -> None:
        self.last_s = max(now_s, self.last_s)
        self._waits = False

    def _usual_s(self, now_s: float) -> float:
        """Return the longest recent gap between two reads."""
        elapsed_s = max(now_s - self._gap_at_s, 0.0)
        return self._gap_s * math.exp2(-elapsed_s / _HALF_LIFE_S)
