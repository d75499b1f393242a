"""Replays the loop of one rank: workers read batches ahead, and training takes them in order.

The rules are those of torch's DataLoader: batch k belongs to worker k mod W, a worker reads one batch at a
time, and begins batch k once training has taken batch k - W x prefetch factor. A miss waits for the origin's
first byte, then for its turn on the one link. A replay of 65,536 samples takes 0.2 s.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import cast

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES = 65_536
"""Samples that are replayed; the time of a longer epoch is scaled up."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One rank's loader. Times in seconds, for one sample.

    ``reads_at_once``: reads that one worker has under way. ``compute_s``: time of training. ``client_s``:
    time that a worker is busy with a sample, whatever its source. ``miss_s``: what a miss takes longer than
    that, until its last byte over an idle link. ``link_s``: the share of ``miss_s`` for which a miss occupies
    the link to the origin; 0 if the link never fills.
    """

    workers: int
    batch_size: int
    prefetch_factor: int
    reads_at_once: int
    compute_s: float
    client_s: float
    miss_s: float
    link_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result for an epoch: its duration, and how long training waited for data, in seconds."""

    wall_s: float
    stall_s: float


def replay(
    loop: Loop, samples: int, hit_ratio: float, *, seed: int = 0, most: int = MOST_SAMPLES
) -> Replayed:
    """Replay an epoch of ``samples`` reads, in which hits (the share ``hit_ratio``) are spread at random.

    At most ``most`` reads are replayed, and the result is scaled up.
    """
    count = min(samples, most)
    if not count:
        return Replayed(0.0, 0.0)
    hits = _spread(count, hit_ratio, seed)
    taken = _Run(loop, hits).run()
    compute_s = count * loop.compute_s
    scale = samples / count
    return Replayed(taken * scale, max(taken - compute_s, 0.0) * scale)


def _spread(count: int, hit_ratio: float, seed: int) -> list[bool]:
    hits = np.zeros(count, dtype=np.bool_)
    hits[: round(count * min(max(hit_ratio, 0.0), 1.0))] = True
    shuffled: NDArray[np.bool_] = np.random.default_rng(seed).permutation(hits)
    return cast("list[bool]", shuffled.tolist())


class _Run:
    """One replay. Call ``run`` once."""

    def __init__(self, loop: Loop, hits: Sequence[bool]) -> None:
        self._loop = loop
        self._hits = hits
        workers = max(loop.workers, 1)
        self._batches = ceil(len(hits) / loop.batch_size)
        # Without workers, training itself reads the next batch after it has finished the last one.
        self._ahead = workers * loop.prefetch_factor if loop.workers else 1
        self._stride = workers
        self._ready = [inf] * self._batches
        self._taken: list[float] = []
        self._link_free_s = 0.0
        self._events: list[tuple[float, int, int]] = []
        """(time, batch, lane): the lane of the batch's worker has finished a read."""
        self._left = [0] * self._batches
        self._next = [0] * self._batches
        self._waiting: dict[int, tuple[int, float]] = {}
        """Worker that waits until training takes the batch: its own next batch, and when it was free."""

    def run(self) -> float:
        """Return the time at which training has finished the last batch."""
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
        return min(self._loop.batch_size, len(self._hits) - first)

    def _begin(self, batch: int, free_s: float) -> None:
        """Let a worker that is free since ``free_s`` begin its batch, or wait until it may."""
        if batch >= self._batches:
            return
        needed = batch - self._ahead
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
        # An entry at the start of the read, so that misses reach the link in the order of time.
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
        loop = self._loop
        if self._hits[sample]:
            return now + loop.client_s
        arrives_s = now + loop.miss_s - loop.link_s
        if loop.link_s:
            self._link_free_s = arrives_s = max(arrives_s, self._link_free_s) + loop.link_s
        return arrives_s + loop.client_s

    def _take(self) -> None:
        """Let training take the batches that are ready, in order, and workers begin that waited for it."""
        while (number := len(self._taken)) < self._batches and self._ready[number] < inf:
            free_s = self._taken[-1] + self._batch_s(number - 1) if number else 0.0
            self._taken.append(max(self._ready[number], free_s))
            if number in self._waiting:
                batch, since_s = self._waiting.pop(number)
                self._begin(batch, since_s)
