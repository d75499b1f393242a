"""The pace of prefetching for a job: how far it looks ahead of the job's reads, and how many pages it has in
flight.

Pure state; times are arguments. Two numbers are derived (design 6.7). The *depth*, pages in flight, hides the
latency at the rate of reading (Little's law, and half as much again). The *window*, samples looked ahead, is
the depth plus the *reach*: a loader's workers read many batches at a time, so the next read may be any of the
next thousand samples of the order. Law: when depth and window are too small, readers find their page still on
its way. Then both grow, and shrink slowly afterwards.
"""

import math

_SPARE = 1.5
_FEWEST = 4
_FIRST_DEPTH = 16
_FIRST_REACH = 16.0
_FAST_S = 0.5
_REACH_HALF_LIFE_S = 30.0
_MOST_BOOST = 16.0
_BOOST_HALF_LIFE_S = 5.0
_BOOSTED = 4.0  # Above this boost, lateness has another cause than latency.
_LEAST_SHARE = 0.25
_MORE_SHARE = 1.25
_SHARE_HALF_LIFE_S = 60.0
_LEARNING = 1 / 32
_FIRST_LATENCY_S = 0.1
# Small: a first guess that is too big for a small cache would never be corrected, and a few fetches teach
# better.
_FIRST_SIZE_BYTES = 64 * 1024


def depth(rate_per_s: float, miss_ratio: float, latency_s: float) -> int:
    """Return the number of pages to have in flight so that none is late: ceil(1.5 x rate x misses x latency),
    but at least a few.
    """
    return max(_FEWEST, math.ceil(_SPARE * rate_per_s * miss_ratio * latency_s))


class Latency:
    """Mean time of a fetch and mean length of a page, over the latest few dozen fetches."""

    def __init__(self, page_size: int) -> None:
        self.mean_s = _FIRST_LATENCY_S
        self.size_bytes = float(min(page_size, _FIRST_SIZE_BYTES))
        self._count = 0

    def note(self, latency_s: float, size_bytes: int) -> None:
        """Note a fetch that took ``latency_s`` and brought a page of ``size_bytes``."""
        self._count += 1
        share = max(1 / self._count, _LEARNING)
        self.mean_s += (latency_s - self.mean_s) * share
        self.size_bytes += (size_bytes - self.size_bytes) * share


class FetchPace:
    """The pace of one job's reads."""

    def __init__(self, now_s: float) -> None:
        self.miss_ratio = 1.0
        self.share = _LEAST_SHARE
        """Share of a full cache that unread pages may take. A small share saves bytes. A large share saves
        time if the link, not the latency, holds up the job (Cao et al., SIGMETRICS 1995: aggressive
        prefetching).
        """
        self._last_s = now_s
        self._rate_per_s = math.nan
        self._fast_per_s = 0.0
        self._reach = _FIRST_REACH
        self._boost = 1.0
        self._boosted_s = -math.inf

    def note_reads(self, count: int, rate_per_s: float, now_s: float) -> None:
        """Note ``count`` samples read since the last call. ``rate_per_s``: the job's long-term
        mean, or nan.
        """
        elapsed_s = max(now_s - self._last_s, 0.0)
        self._last_s = now_s
        # While a reader waits, the measured rate is that of its answers, not the rate at which it could read.
        kept = math.exp(-elapsed_s / _FAST_S)
        self._fast_per_s = self._fast_per_s * kept + count / _FAST_S
        self._rate_per_s = rate_per_s
        self._boost = 1.0 + (self._boost - 1.0) * 0.5 ** (elapsed_s / _BOOST_HALF_LIFE_S)
        faded = 0.5 ** (elapsed_s / _SHARE_HALF_LIFE_S)
        self.share = _LEAST_SHARE + (self.share - _LEAST_SHARE) * faded
        self._reach *= 0.5 ** (elapsed_s / _REACH_HALF_LIFE_S)

    def note_reach(self, place: int) -> None:
        """Note that a sample at ``place`` among the coming samples was read."""
        self._reach = max(self._reach, place + 1.0)

    def note_misses(self, missing: int, seen: int) -> None:
        """Note that ``missing`` of ``seen`` coming samples were not resident."""
        if seen:
            share = min(1.0, seen * _LEARNING)
            self.miss_ratio += (missing / seen - self.miss_ratio) * share

    def note_late(self, latency_s: float, now_s: float) -> None:
        """Note that a reader came before its page did. A correction shows its effect only after
        ``latency_s``.
        """
        if now_s - self._boosted_s >= latency_s:
            self._boosted_s = now_s
            if self._boost >= _BOOSTED:
                self.share = min(_MORE_SHARE * self.share, 1.0)
            self._boost = min(2 * self._boost, _MOST_BOOST)

    @property
    def rate_per_s(self) -> float:
        """Samples a second: the recent rate or the long-term mean, whichever is larger; nan
        until measured.
        """
        return self._rate_per_s if math.isnan(self._rate_per_s) else max(self._rate_per_s, self._fast_per_s)

    def depth(self, latency_s: float) -> int:
        """Return the number of pages to have in flight."""
        if math.isnan(self.rate_per_s):
            return _FIRST_DEPTH
        return math.ceil(self._boost * depth(self.rate_per_s, self.miss_ratio, latency_s))

    def window(self, latency_s: float) -> int:
        """Return the number of samples to look ahead."""
        rate = 0.0 if math.isnan(self.rate_per_s) else self.rate_per_s
        return math.ceil(self._reach + self._boost * max(_SPARE * rate * latency_s, _FEWEST))
