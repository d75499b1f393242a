"""Queue of a disk's reads. A disk is *behind* if one more read would end later than a GET from the origin.

Laws: plain defs decide. A disk counts as behind only by measured times of the disk and of the origin, and
only while the origin answers.
"""

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic

from shadeproxy.engine.storage.medium import RunIO, run_io
from shadeproxy.telemetry.stats import Stats

_ALWAYS_FINE_S = 0.02
"""A read that the disk ends within this time always goes to the disk. Shorter times vary too much to be
compared, and each byte from the origin may cost money.
"""

_WEIGHT = 1 / 16
"""Weight of the newest read in the mean time of a read."""

_TRIED_EVERY_S = 1.0
"""Each disk gets at least one read in this time, even if it is behind. Without reads, it could not show that
it is fast again.
"""

_LEAST_GETS = 32
"""Least number of GETs over which the origin's mean is taken."""


class OriginPace:
    """Mean time of the origin's latest GETs, from ``stats``."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._requests = 0
        self._sum_s = 0.0
        self._sum_bytes = 0
        self._mean_s = inf
        self._mean_bytes = 1.0

    def get_s(self, size_bytes: int) -> float:
        """Return the seconds that a GET of ``size_bytes`` probably takes: the mean of the latest 32 GETs or
        more.

        If ``size_bytes`` is more than the mean size of those GETs, the time grows in proportion. Otherwise
        many short answers, such as refusals, would make a long page seem quick. Return inf if the origin does
        not answer now, or has not answered 32 GETs yet.
        """
        counted = self._stats.origin.get("get")
        if counted is not None and (new := counted.requests - self._requests) >= _LEAST_GETS:
            self._mean_s = (counted.latency_sum_s - self._sum_s) / new
            self._mean_bytes = max((counted.bytes - self._sum_bytes) / new, 1.0)
            self._requests, self._sum_s = counted.requests, counted.latency_sum_s
            self._sum_bytes = counted.bytes
        if self._stats.origin_health().get("answering", True) is not True:
            return inf
        return self._mean_s * max(1.0, size_bytes / self._mean_bytes)


class LoadQueue:
    """Runs the reads of page bodies on one medium, and measures how long they take. ``origin_s``: see
    ``OriginPace.get_s``.
    """

    def __init__(self, origin_s: Callable[[int], float], *, now_s: Callable[[], float] = monotonic) -> None:
        self._origin_s = origin_s
        self._now_s = now_s
        self._waiting = 0
        self._pace_s = 0.0
        """Mean time from the end of one read to the end of the next, while reads run or wait. 0: not measured
        yet.
        """
        self._ended_s = 0.0
        """The time when the last read ended, or when the first read after a pause began."""

    async def run(self, load: RunIO | None, work: Callable[[], None]) -> None:
        """Run the read ``work`` by ``run_io``, and measure when it ends. A read that fails ends too."""
        if not self._waiting:
            self._ended_s = self._now_s()
        self._waiting += 1
        given_up = False
        try:
            await run_io(load, work)
        except asyncio.CancelledError:
            given_up = True
            raise
        finally:
            self._waiting -= 1
            self._note_end(given_up=given_up)

    def _note_end(self, *, given_up: bool) -> None:
        now_s = self._now_s()
        spacing_s = now_s - self._ended_s
        if given_up and spacing_s <= self._pace_s:
            # The caller has left, but the read may still run. So the spacing is only a lower bound.
            return
        self._ended_s = now_s
        self._pace_s += (spacing_s - self._pace_s) * (_WEIGHT if self._pace_s else 1.0)

    def is_behind(self, size_bytes: int) -> bool:
        """Return whether one more read would end later than a GET of ``size_bytes`` probably would."""
        ends_s = (self._waiting + 1) * self._pace_s
        if ends_s <= _ALWAYS_FINE_S or ends_s <= self._origin_s(size_bytes):
            return False
        return self._waiting > 0 or self._now_s() - self._ended_s < _TRIED_EVERY_S
