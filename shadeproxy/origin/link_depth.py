"""``LinkDepth``: calculates how many bytes should be under way at the origin. They should fill the link, but
not make a longer queue at its other end.

Law: times are from the clock that is passed in. The link is full with as many bytes as its highest recent
rate times the time that a read takes while few are under way. The depth is a multiple of these bytes. So from
time to time only few reads are let through for an interval, as BBR does (Cardwell et al., 2016); unlike BBR,
the mean of the last two such times counts. A rate is taken since a moment from which on as many reads have
come as were under way then: answers that arrive together were sent since the answers before them. Until rate
and time are measured, the number of bytes is not limited.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

_GAIN = 1.5
_INTERVAL_S = 0.1
_INTERVAL_READS, _PROBE_READS = 16, 8
_LONGEST_S = 1.0
_RATES = 64  # Number of intervals of which the highest rate counts.
_TIMES = 2  # Number of probes of which the mean time counts.
_PROBE_AFTER_S = 30.0
# A probe ends if no read comes for this time: reads that hang must not hold up all others.
_LONGEST_WAIT_S = 5.0


class _Mark(NamedTuple):
    """The reads and bytes that had come at a time, and how many reads were under way then."""

    at_s: float
    reads: int
    came_bytes: float
    flying: int


class LinkDepth:
    """Measures one link, and calculates how many bytes to have under way on it. ``now_s``: returns a
    monotonic time. ``few_reads``: so many reads may always be under way.
    """

    def __init__(self, now_s: Callable[[], float], *, few_reads: int = 4) -> None:
        self._now_s = now_s
        self._few_reads = few_reads
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._is_probing = False
        self._is_draining = False
        self._probed_s = 0.0
        self._began_s = self._last_s = self._came_s = now_s()
        self._area = self._bytes = 0.0
        self._reads = 0
        self._came = _Mark(self._began_s, 0, 0.0, 0)
        self._marks = deque([self._came], maxlen=_RATES)

    @property
    def rate_per_s(self) -> float:
        """The highest recent rate, in bytes a second; 0 until it is measured."""
        return max(self._rates, default=0.0)

    @property
    def latency_s(self) -> float:
        """The time that a read takes while few are under way; 0 until it is measured."""
        return sum(self._times) / len(self._times) if self._times else 0.0

    @property
    def depth_bytes(self) -> float:
        """Bytes to have under way; infinite until rate and time are measured."""
        return _GAIN * self.rate_per_s * self.latency_s if self._times and self._rates else float("inf")

    def has_room(self, flying: int, flying_bytes: float) -> bool:
        """Return True if one more read may begin while ``flying`` reads of ``flying_bytes`` are under way."""
        if flying < self._few_reads:
            return True
        if self._is_probing:
            waited_s = self._now_s() - self._came_s
            if waited_s <= _LONGEST_WAIT_S:
                return False
            # The link is slow, and a read takes at least so long; or the reads hang, and the depth becomes
            # too large, which harms less than a link that stands idle.
            self._times.append(waited_s)
            self._is_probing = self._is_draining = False
            self._begin()
        return flying_bytes < self.depth_bytes

    def note(self, flying: int, flying_bytes: float, came_bytes: float) -> None:
        """Take in the reads and bytes that were under way since the last call. ``came_bytes``: bytes of a
        read that has just ended; 0 if none has.
        """
        now_s = self._now_s()
        self._area += flying_bytes * (now_s - self._last_s)
        self._last_s = now_s
        if came_bytes or not flying:
            self._came_s = now_s
        if not came_bytes:
            return
        self._bytes += came_bytes
        self._reads += 1
        self._came = _Mark(now_s, self._came.reads + 1, self._came.came_bytes + came_bytes, flying)
        elapsed_s = now_s - self._began_s
        if self._is_draining:
            if flying <= self._few_reads:
                self._is_draining = False
                self._begin()
        elif elapsed_s >= _INTERVAL_S and (
            self._reads >= (_PROBE_READS if self._is_probing else _INTERVAL_READS) or elapsed_s >= _LONGEST_S
        ):
            self._end()

    def resume(self, flying: int) -> None:
        """Measure on from now, after a time in which ``note`` was not called. ``flying``: reads under way."""
        self._is_probing = self._is_draining = False
        self._came_s = self._now_s()
        self._came = _Mark(self._came_s, self._came.reads, self._came.came_bytes, flying)
        self._marks.clear()
        self._begin()

    def _begin(self) -> None:
        self._began_s = self._last_s = self._now_s()
        self._area = self._bytes = 0.0
        self._reads = 0
        self._marks.append(self._came)

    def _end(self) -> None:
        """Learn the rate or the time from an interval, and begin the next interval."""
        if self._is_probing:
            self._times.append(self._area / self._bytes)  # Little's law
            self._is_probing = False
        else:
            self._rates.append(self._rate())
            if not self._times or self._last_s - self._probed_s >= _PROBE_AFTER_S:
                self._is_probing = self._is_draining = True
                self._probed_s = self._last_s
        self._begin()

    def _rate(self) -> float:
        """Return the rate since the latest mark from which on as many reads have come as were under way then;
        since the first mark if there is none.
        """
        now = self._came
        whole = (mark for mark in reversed(self._marks) if now.reads - mark.reads >= mark.flying)
        since = next(whole, self._marks[0])
        return (now.came_bytes - since.came_bytes) / (now.at_s - since.at_s)
