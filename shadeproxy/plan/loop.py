"""Replays the loop of one rank: workers read batches ahead, and training takes the batches in order.

The rules are those of torch's DataLoader: batch k belongs to worker k mod W. A worker reads one batch at a
time, and begins batch k once training has taken batch k - W x prefetch factor. A miss waits for the origin's
first byte, then for its turn on the one link. With an announced order the proxy fetches the next missing
samples of the order, as long as fewer than ``unread`` fetched samples wait for their readers. A replay of
65,536 samples takes 0.3 s.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from math import ceil, inf
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.prefetch.pace import PAUSE_S

MOST_SAMPLES = 65_536
"""Most samples that are replayed. The time of a longer epoch is scaled up."""

_LEAST_SAMPLES = 8192
"""An epoch with fewer samples is replayed several times, because its time depends on where its misses happen
to lie.
"""

_MOST_TIMES = 8

_DRAWN = 8192  # Number of random waits that are drawn. After the last one, the first is used again.

# The proxy notes a read of a sample that was fetched ahead a little later: it notes reads together, once this
# time has passed since the first of them.
_NOTED_S = 0.01


@dataclass(frozen=True, slots=True)
class Loop:
    """One rank's loader, and the times of its reads, in seconds for one sample.

    ``reads_at_once``: most reads that one worker has under way. ``compute_s``: time in which training
    computes a sample. ``client_s``: time that a worker is busy with a sample, whatever its source.
    ``miss_s``: further time of a miss, until its last byte has come over an idle link.
    ``link_s``: the part of ``miss_s`` for which a miss occupies the link to the origin; 0 if the link never
    fills. ``unread``: most samples that were fetched ahead and wait for their readers; 0: nothing is fetched
    ahead. ``spread``: standard deviation of the logarithm of a miss's time without the link's part; it does
    not change the mean.
    """

    workers: int
    batch_size: int
    prefetch_factor: int
    reads_at_once: int
    compute_s: float
    client_s: float
    miss_s: float
    link_s: float = 0.0
    unread: int = 0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay of an epoch: how long the epoch takes, and how long training waits for data in
    it, in seconds.
    """

    wall_s: float
    stall_s: float


def replay(
    loop: Loop, samples: int, hit_ratio: float, *, cold: bool = False, seed: int = 0, most: int = MOST_SAMPLES
) -> Replayed:
    """Replay an epoch of ``samples`` reads. The share ``hit_ratio`` of the reads are hits, spread at random.

    ``cold``: nothing was fetched ahead before the epoch began. ``most``: the most reads to replay; the result
    is scaled up to all reads of the epoch.
    """
    count = min(samples, most)
    if not count:
        return Replayed(0.0, 0.0)
    drawn = np.random.default_rng(seed)
    times = min(max(_LEAST_SAMPLES // count, 1), _MOST_TIMES)
    taken_s = 0.0
    for _ in range(times):
        origin = _Origin(loop, _factors(loop.spread, drawn))
        taken_s += _Run(loop, origin, _spread(count, hit_ratio, drawn), count, cold=cold).run() / times
    compute_s = count * loop.compute_s
    scale = samples / count
    return Replayed(taken_s * scale, max(taken_s - compute_s, 0.0) * scale)


def _spread(count: int, hit_ratio: float, drawn: np.random.Generator) -> list[bool]:
    """Return for each read whether it is a hit: first the reads of this epoch, then those of the next one."""
    hits = np.zeros(count, dtype=np.bool_)
    hits[: round(count * min(max(hit_ratio, 0.0), 1.0))] = True
    orders: list[NDArray[np.bool_]] = [drawn.permutation(hits) for _ in range(2)]
    return cast("list[bool]", np.concatenate(orders).tolist())


def _factors(spread: float, drawn: np.random.Generator) -> Iterator[float]:
    """Yield the waits of misses, as multiples of the mean wait: lognormal, like the times of object
    stores.
    """
    if not spread:
        return repeat(1.0)
    factors: NDArray[np.float64] = drawn.lognormal(-spread * spread / 2, spread, _DRAWN)
    return cycle(factors.tolist())


class _Origin:
    """Reads of the origin. Each waits for its first byte, and then for its turn on the link. ``factors``: the
    waits for the first byte, as multiples of the mean.
    """

    def __init__(self, loop: Loop, factors: Iterator[float]) -> None:
        self._factors = factors
        self._link_s = loop.link_s
        self._compute_s = loop.compute_s
        self._first_s = loop.miss_s - loop.link_s
        self._free_s = 0.0

    def read(self, now: float) -> float:
        """Begin a read at time ``now``, and return the time at which its last byte comes."""
        arrives_s = now + self._first_s * next(self._factors)
        if self._link_s:
            self._free_s = arrives_s = max(arrives_s, self._free_s) + self._link_s
        return arrives_s

    def backlog(self, count: int, miss_ratio: float) -> list[float]:
        """Return the times at which ``count`` reads end that began before the replay. If the link carries
        less than training reads, they end one after another. Otherwise all have ended when the replay begins.
        """
        if self._link_s * miss_ratio <= self._compute_s:
            return [0.0] * count
        self._free_s = count * self._link_s
        return [(number + 1) * self._link_s for number in range(count)]


class _Ahead:
    """Fetches missing samples in the order of the epoch, before their readers need them.

    The proxy decides on further fetches whenever a fetch has ended, and in rounds of ``PAUSE_S``. If a reader
    waits for a sample, the proxy learns of this read at once. If the sample had come in time, the proxy
    learns of the read a little later.
    """

    def __init__(self, origin: _Origin, hits: Sequence[bool], unread: int, *, cold: bool) -> None:
        self._origin = origin
        self._missing = [number for number, hit in enumerate(hits) if not hit]
        self._unread = unread
        self._at = 0
        self._begun: set[int] = set()
        self._there_s = dict[int, float]()
        """The time at which a sample's last byte comes, for each that was fetched and not read yet."""
        self._ends: list[float] = []
        """The times at which fetches end, as a heap."""
        self._noted: list[float] = []
        """The times at which the proxy will note reads of fetched samples, as a heap."""
        self._round_s, self._last_round_s = inf, -inf
        if not cold:
            self._at = min(unread, len(self._missing))
            there_s = origin.backlog(self._at, len(self._missing) / len(hits))
            self._there_s = dict(zip(self._missing[: self._at], there_s, strict=True))

    def take(self, sample: int, now: float) -> float | None:
        """Note that ``sample`` is read at time ``now``. If it was fetched ahead, return the time at which it
        comes or has come; None if no fetch of it has begun.
        """
        self._decide_until(now)
        found = self._there_s.pop(sample, None)
        if found is None:
            self._begun.add(sample)
            return None
        noted_s = now if found > now else now + _NOTED_S
        heapq.heappush(self._noted, noted_s)
        self._round_s = min(self._round_s, max(noted_s, self._last_round_s + PAUSE_S))
        return found

    def go_on(self, now: float) -> None:
        """Begin fetches while fewer than ``unread`` fetched samples wait for their readers."""
        while self._noted and self._noted[0] <= now:
            heapq.heappop(self._noted)
        while len(self._there_s) + len(self._noted) < self._unread and self._at < len(self._missing):
            sample = self._missing[self._at]
            self._at += 1
            if sample not in self._begun:
                self._there_s[sample] = end_s = self._origin.read(now)
                heapq.heappush(self._ends, end_s)

    def _decide_until(self, now: float) -> None:
        while (turn_s := min(self._round_s, self._ends[0] if self._ends else inf)) <= now:
            if turn_s == self._round_s:
                self._round_s, self._last_round_s = inf, turn_s
            else:
                heapq.heappop(self._ends)
            self.go_on(turn_s)


class _Run:
    """Replays the first ``count`` reads of ``hits``. Call ``run`` once."""

    def __init__(self, loop: Loop, origin: _Origin, hits: Sequence[bool], count: int, *, cold: bool) -> None:
        self._loop = loop
        self._hits = hits
        self._count = count
        workers = max(loop.workers, 1)
        self._batches = ceil(count / loop.batch_size)
        # Without workers, training itself reads the next batch after it has computed the last one.
        self._before = workers * loop.prefetch_factor if loop.workers else 1
        self._stride = workers
        self._ready = [inf] * self._batches
        self._taken: list[float] = []
        self._origin = origin
        self._ahead = _Ahead(self._origin, hits, loop.unread, cold=cold) if loop.unread else None
        self._events: list[tuple[float, int, int]] = []
        """Events (time, batch, lane), as a heap. Lane i of the batch's worker ends a read; lane -1 - i stands
        for the begin of a read in lane i.
        """
        self._left = [0] * self._batches
        self._next = [0] * self._batches
        self._waiting: dict[int, tuple[int, float]] = {}
        """Waiting workers. The key is the batch that training must take first. The value is the batch that
        the worker begins then, and the time since which the worker is free.
        """

    def run(self) -> float:
        """Return when training has computed the last batch."""
        if self._ahead is not None:
            self._ahead.go_on(0.0)
        for batch in range(min(self._stride, self._batches)):
            self._begin(batch, 0.0)
        while self._events:
            now, batch, lane = heapq.heappop(self._events)
            self._read_ended(now, batch, lane)
        return self._taken[-1] + self._batch_s(self._batches - 1)

    def _batch_s(self, batch: int) -> float:
        return self._size(batch) * self._loop.compute_s

    def _size(self, batch: int) -> int:
        first = batch * self._loop.batch_size
        return min(self._loop.batch_size, self._count - first)

    def _begin(self, batch: int, free_s: float) -> None:
        """Let a worker that is free since ``free_s`` begin ``batch``, or let it wait until it may begin."""
        if batch >= self._batches:
            return
        needed = batch - self._before
        if needed < 0:
            start_s = free_s
        elif needed < len(self._taken):
            done_s = self._batch_s(needed) if not self._loop.workers else 0.0
            start_s = max(free_s, self._taken[needed] + done_s)
        else:
            self._waiting[needed] = (batch, free_s)
            return
        size = self._size(batch)
        self._left[batch] = size
        self._next[batch] = batch * self._loop.batch_size
        for lane in range(min(self._loop.reads_at_once, size)):
            self._read(batch, lane, start_s)

    def _read(self, batch: int, lane: int, now: float) -> None:
        # Queue the start of the read as an event of its own, so that misses reach the link in the order of
        # time.
        heapq.heappush(self._events, (now, batch, -1 - lane))

    def _read_ended(self, now: float, batch: int, lane: int) -> None:
        if lane < 0:
            sample = self._next[batch]
            self._next[batch] += 1
            end_s = self._end_of(sample, now)
            heapq.heappush(self._events, (end_s, batch, -1 - lane))
            return
        self._left[batch] -= 1
        if self._next[batch] < batch * self._loop.batch_size + self._size(batch):
            self._read(batch, lane, now)
        elif not self._left[batch]:
            self._ready[batch] = now
            self._take()
            self._begin(batch + self._stride, now)

    def _end_of(self, sample: int, now: float) -> float:
        client_s = self._loop.client_s
        if self._hits[sample]:
            return now + client_s
        there_s = None if self._ahead is None else self._ahead.take(sample, now)
        return max(now, self._origin.read(now) if there_s is None else there_s) + client_s

    def _take(self) -> None:
        """Let training take the ready batches in order, and let workers that waited for this go on."""
        while (number := len(self._taken)) < self._batches and self._ready[number] < inf:
            free_s = self._taken[-1] + self._batch_s(number - 1) if number else 0.0
            self._taken.append(max(self._ready[number], free_s))
            if number in self._waiting:
                batch, since_s = self._waiting.pop(number)
                self._begin(batch, since_s)
