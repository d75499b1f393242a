"""Measures the lag of the event loop: by how much everything on the loop is late, also every request.

Law: the lag is the delay of a timer that waits only for its time. So the lag grows when code blocks the loop,
and when the machine has no free processor time.
"""

import asyncio
from bisect import bisect_left
from itertools import accumulate
from typing import Any

from shadeproxy.telemetry.histogram import shown_quantiles

LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
RECENT_S = 60.0
_EVERY_S = 0.02


class LoopLag:
    """Two histograms of lags: of all lags since the start, and of the lags in the last minute or two."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(LAG_BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.max_s = 0.0
        self._recent = [0] * len(self.buckets)
        self._before = [0] * len(self.buckets)
        self._recent_max_s = 0.0
        self._before_max_s = 0.0
        self._since_s = 0.0

    def observe(self, lag_s: float, now_s: float) -> None:
        """Count a timer that fired ``lag_s`` seconds late. ``now_s``: the time at which it fired, by any
        monotonic clock.
        """
        if now_s - self._since_s > RECENT_S:
            self._before, self._recent, self._since_s = self._recent, [0] * len(self.buckets), now_s
            self._before_max_s, self._recent_max_s = self._recent_max_s, 0.0
        place = bisect_left(LAG_BOUNDS_S, lag_s)
        self.buckets[place] += 1
        self._recent[place] += 1
        self.sum_s += lag_s
        self.max_s = max(self.max_s, lag_s)
        self._recent_max_s = max(self._recent_max_s, lag_s)

    def quantile_s(self, share: float) -> float:
        """Return a lag that the share ``share`` of all lags does not exceed, rounded up to the bound of its
        bucket.

        The last bucket has no bound; for it, return the longest lag. Return 0 if nothing was measured.
        """
        return _quantile_s(self.buckets, share, self.max_s)

    def recent_quantile_s(self, share: float) -> float:
        """Return the same quantile as ``quantile_s``, but only of the lags in the last minute or two."""
        buckets = [sum(both) for both in zip(self._before, self._recent, strict=True)]
        return _quantile_s(buckets, share, max(self._before_max_s, self._recent_max_s))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of ``loop_lag_s`` in ``GET /v1/stats``; see docs/metrics.md."""
        return {
            "count": sum(self.buckets),
            "sum": self.sum_s,
            "max": self.max_s,
            **shown_quantiles(self.quantile_s),
            "recent_p99": self.recent_quantile_s(0.99),
        }


def _quantile_s(buckets: list[int], share: float, max_s: float) -> float:
    total = sum(buckets)
    if not total:
        return 0.0
    place = next(at for at, seen in enumerate(accumulate(buckets)) if seen >= share * total)
    return LAG_BOUNDS_S[place] if place < len(LAG_BOUNDS_S) else max_s


async def watch_loop(lag: LoopLag) -> None:
    """Measure the lag of the running event loop, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        now_s = loop.time()
        lag.observe(max(0.0, now_s - due_s), now_s)
