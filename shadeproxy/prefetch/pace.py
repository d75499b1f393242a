"""The pace of prefetching for a job: how far to look ahead of the job's reads, and how many pages to have in
flight.

The *depth* is the number of pages in flight that hides the latency at the job's rate of reading (Little's
law, times 1.5). The *window* is the number of samples to look ahead: those that cover the latency, plus the
*reach*. A loader's workers read many batches at a time, so the next read may be any of the next thousand
samples of the order. The reach is how far such reads go. Laws: pure state; callers pass the time. A reader
that finds its page still on its way shows that depth and window are too small. Then both grow, and shrink
slowly afterwards.
"""

import math

SPARE = 1.5
PAUSE_S = 0.02  # Shortest pause between two rounds of decisions.
_REST, _LONGEST_PAUSE_S = 16, 0.2  # A pause is n times as long as the round before it, up to 0.2 s.
FEWEST = 4
_FIRST_DEPTH = 16
_FIRST_REACH = 16.0
_FAST_S = 0.5
_REACH_HALF_LIFE_S = 30.0
_MOST_BOOST = 16.0
_BOOST_HALF_LIFE_S = 5.0
_BOOSTED = 4.0  # From this boost on, late pages have another cause than latency.
LEAD = 2.0  # A page is early if its read is further away than this multiple of the depth.
# An early page displaces only a page whose read is this many times further away (docs/adr/0036).
EARLY_PRICE = 8.0
MOST_READY = 4  # Unread pages take at most 1 / n of the capacity of all tiers.
_MOST_LOST, _FEW_LOST = 0.1, 0.02
# Pages are lost in bursts. If the mean were over fewer pages, prefetching would stop when only three in a
# hundred are lost.
_LOST_LEARNING = 1 / 128
_LOST_HALF_LIFE_S = 20.0
_LEAST_SHARE = 0.25
_MORE_SHARE = 1.25
_SHARE_HALF_LIFE_S = 60.0
_LEARNING = 1 / 32
_FIRST_LATENCY_S = 0.1
# First guess of the length of a page. It is small: a guess too big for a small cache would allow no fetch,
# and only fetches correct the guess.
_FIRST_SIZE_BYTES = 64 * 1024


def depth(rate_per_s: float, miss_ratio: float, latency_s: float) -> int:
    """Return how many pages must be in flight so that none comes late: ceil(1.5 x rate x misses x latency),
    but at least a few.
    """
    return max(FEWEST, math.ceil(SPARE * rate_per_s * miss_ratio * latency_s))


def pause_after(spent_s: float) -> float:
    """Return the pause after a round of decisions that took ``spent_s``. The longer the round, the longer the
    pause: with a hundred jobs a round takes 8 ms, and with the shortest pause after each, rounds would take a
    quarter of a core.
    """
    return min(max(PAUSE_S, _REST * spent_s), _LONGEST_PAUSE_S)


class Latency:
    """Mean duration of a fetch and mean length of a page, over the latest few dozen fetches."""

    def __init__(self, page_size: int) -> None:
        self.mean_s = _FIRST_LATENCY_S
        self.size_bytes = float(min(page_size, _FIRST_SIZE_BYTES))
        self._count = 0

    def note(self, latency_s: float, size_bytes: int) -> None:
        """Record a fetch that took ``latency_s`` and brought a page of ``size_bytes``."""
        self._count += 1
        share = max(1 / self._count, _LEARNING)
        self.mean_s += (latency_s - self.mean_s) * share
        self.size_bytes += (size_bytes - self.size_bytes) * share


class FetchPace:
    """Decides how far to prefetch ahead of one job's reads, and how much of a full cache unread pages may
    take.
    """

    def __init__(self, now_s: float) -> None:
        self.miss_ratio = 1.0
        self.share = _LEAST_SHARE
        """Share of a full cache that unread pages may take. A small share saves bytes. A large share saves
        time if the job waits for the link, and not for the latency (Cao et al., SIGMETRICS 1995: aggressive
        prefetching).
        """
        self._last_s = now_s
        self._rate_per_s = math.nan
        self._fast_per_s = 0.0
        self._reach = _FIRST_REACH
        self._boost = 1.0
        self._boosted_s = -math.inf
        self._lost = 0.0  # Share of the latest prefetched pages that were lost.
        self.pays = True
        """False if many prefetched pages were lost before their readers came; true again when few were."""

    def note_reads(self, count: int, rate_per_s: float, now_s: float) -> None:
        """Record that ``count`` samples were read since the last call. ``rate_per_s``: the job's mean rate
        over a long time, or nan.
        """
        elapsed_s = max(now_s - self._last_s, 0.0)
        self._last_s = now_s
        # The mean over a long time includes the waits of readers. The rate of the last half second shows how
        # fast they can read.
        kept = math.exp(-elapsed_s / _FAST_S)
        self._fast_per_s = self._fast_per_s * kept + count / _FAST_S
        self._rate_per_s = rate_per_s
        self._boost = 1.0 + (self._boost - 1.0) * 0.5 ** (elapsed_s / _BOOST_HALF_LIFE_S)
        faded = 0.5 ** (elapsed_s / _SHARE_HALF_LIFE_S)
        self.share = _LEAST_SHARE + (self.share - _LEAST_SHARE) * faded
        self._reach *= 0.5 ** (elapsed_s / _REACH_HALF_LIFE_S)
        self._lost *= 0.5 ** (elapsed_s / _LOST_HALF_LIFE_S)
        if self._lost < _FEW_LOST:
            self.pays = True

    def note_reach(self, place: int) -> None:
        """Record that the job read the sample at ``place`` in the list of its coming samples."""
        self._reach = max(self._reach, place + 1.0)

    def note_misses(self, missing: int, seen: int) -> None:
        """Record that ``missing`` of ``seen`` coming samples were not resident."""
        if seen:
            share = min(1.0, seen * _LEARNING)
            self.miss_ratio += (missing / seen - self.miss_ratio) * share

    def note_used(self) -> None:
        """Record that a prefetched page was read."""
        self._lost *= 1 - _LOST_LEARNING

    def note_lost(self) -> None:
        """Record that a prefetched page was gone before its reader came. The reader fetched it again. Pages
        that are lost after prefetching stopped were fetched before, and do not count. Otherwise a job that
        was restarted with another order would get no pages for minutes.
        """
        if self.pays:
            self._lost += (1 - self._lost) * _LOST_LEARNING
            self.pays = self._lost <= _MOST_LOST

    def note_late(self, latency_s: float, now_s: float) -> None:
        """Record that a reader came before its page did. Depth and window are raised, at most once in
        ``latency_s``, because a change has no effect earlier.
        """
        if now_s - self._boosted_s >= latency_s:
            self._boosted_s = now_s
            if self._boost >= _BOOSTED:
                self.share = min(_MORE_SHARE * self.share, 1.0)
            self._boost = min(2 * self._boost, _MOST_BOOST)

    def is_early(self, place: int, latency_s: float) -> bool:
        """Return whether the page of the coming sample at ``place`` would be in time even if it were fetched
        later.
        """
        if math.isnan(self.rate_per_s):
            return False
        return place > LEAD * max(SPARE * self.rate_per_s * latency_s, FEWEST)

    @property
    def rate_per_s(self) -> float:
        """Samples read per second: the rate of the last half second or the mean over a long time, whichever
        is larger. nan until it is measured.
        """
        return self._rate_per_s if math.isnan(self._rate_per_s) else max(self._rate_per_s, self._fast_per_s)

    def depth(self, latency_s: float) -> int:
        """Return how many pages should be in flight for the job."""
        if math.isnan(self.rate_per_s):
            return _FIRST_DEPTH
        return math.ceil(self._boost * depth(self.rate_per_s, self.miss_ratio, latency_s))

    def window(self, latency_s: float) -> int:
        """Return how many samples of the order to look ahead of the job's reads."""
        rate = 0.0 if math.isnan(self.rate_per_s) else self.rate_per_s
        return math.ceil(self._reach + self._boost * max(SPARE * rate * latency_s, FEWEST))
