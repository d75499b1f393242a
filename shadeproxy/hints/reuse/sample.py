"""The reuse sample: pages whose reads teach the learner, each with its own history.

Pages are sampled by a hash with a secret seed, so that no client can choose which of its reads teach. The
sample keeps the histories of its pages itself. A ghost is looked up only when its page is read again, so from
ghosts the learner would never learn of pages that are not read again. Laws: no coroutines; at most ``most``
pages. When there are more, half of the pages leave the sample, chosen by their hash.
"""

from typing import NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy import kernels
from shadeproxy.policy.base import Column
from shadeproxy.policy.hazard import Evidence, Hazards, Index, Waits
from shadeproxy.policy.history import AGE_BINS, Histories, History, first_read, read_again

MOST = 16_384
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_ALL = (1 << 64) - 1
_LONGEST_IDLE = 2.0 ** (AGE_BINS / 2 - 1)

Hashes = NDArray[np.uint64]


class Reads(NamedTuple):
    """Reads that no hint explains, oldest first; columns of shape (n,). Several reads of a page in quick
    succession may count as one: ``lasts`` has the tick of the latest of them.
    """

    pages: Hashes
    groups: Index
    ticks: Column
    lasts: Column


class SampleState(NamedTuple):
    """The state of a sample, to be stored. ``pages``: the mixed hashes of the pages. All columns have shape
    (n,), as in ``ReuseSample``.
    """

    seed: int
    below: int
    pages: Hashes
    groups: Index
    states: Index
    reads: Index
    last: Column
    gap: Column
    seen: Column


class ReuseSample:
    """The sampled pages. ``seed``: secret, 64 bits. ``most``: largest number of pages."""

    def __init__(self, seed: int, *, most: int = MOST) -> None:
        self._seed = np.uint64(seed & _ALL)
        self._most = most
        self._below = 1 << 64
        self._at: dict[int, int] = {}  # By mixed hash of a page: its place in the columns.
        self._groups: Index = np.zeros(most, dtype=np.intp)
        self._states: Index = np.zeros(most, dtype=np.intp)
        self._reads: Index = np.zeros(most, dtype=np.intp)
        self._last, self._gap, self._seen = np.zeros((3, most))
        """``_seen``: for each page, the age up to which its time without a read was already counted."""
        columns = self._groups, self._states, self._reads, self._last, self._gap, self._seen
        self._kernels = kernels.SampleKernels(*columns) if kernels.COMPILED else None

    def __len__(self) -> int:
        return len(self._at)

    def state(self) -> SampleState:
        """Return a copy of the state of the sample."""
        count = len(self._at)
        pages = np.fromiter(self._at, np.uint64, count)
        groups, states, reads = self._groups[:count], self._states[:count], self._reads[:count]
        last, gap, seen = np.stack([self._last[:count], self._gap[:count], self._seen[:count]])
        counts = groups.copy(), states.copy(), reads.copy()
        return SampleState(int(self._seed), self._below, pages, *counts, last, gap, seen)

    @classmethod
    def restored(cls, state: SampleState) -> Self:
        """Return a sample with this state."""
        sample, count = cls(state.seed), len(state.pages)
        sample._below = state.below
        sample._at = {page: place for place, page in enumerate(state.pages.tolist())}
        sample._groups[:count], sample._states[:count], sample._reads[:count] = state[3:6]
        sample._last[:count], sample._gap[:count], sample._seen[:count] = state[6:]
        return sample

    def observe(self, reads: Reads, evidence: Evidence, hazards: Hazards, prefix_of: Index) -> None:
        """Note reads of sampled pages, and add what they show to ``evidence``. ``prefix_of``: the prefix of
        each group.
        """
        of, states, since, until = (self._observe if self._kernels is None else self._observe_all)(reads)
        if len(of):
            waits = Waits(prefix_of[of], states, since, until)
            evidence.expose(waits, hazards)
            evidence.meet(waits.prefixes, states, until)

    def _observe_all(self, reads: Reads) -> tuple[Index, Index, Column, Column]:
        """Return the result of ``_observe``, computed by the compiled kernels."""
        assert self._kernels is not None
        count, done, known = len(reads.pages), 0, 0
        found, ages = np.empty((2, count), np.intp), np.empty((2, count))
        while True:
            seed, most = int(self._seed), self._below - 1
            done, known = self._kernels.observe(self._at, seed, most, *reads, done, found, ages, known)
            if done == count:
                return found[0, :known], found[1, :known], ages[0, :known], ages[1, :known]
            self._halve()

    def _observe(self, reads: Reads) -> tuple[Index, Index, Column, Column]:
        """Add reads to the histories of pages. Return four columns for the reads of known pages: group,
        state, and the ages between which the page was not read.
        """
        found: list[tuple[int, int, float, float]] = []
        at, group_of, state = self._at, self._groups.data, self._states.data
        last, gap, seen = (cast("memoryview[float]", one.data) for one in (self._last, self._gap, self._seen))
        counts = self._reads.data
        pages, groups, ticks, lasts = self._mix(reads.pages), *reads[1:]
        if self._below < _ALL:
            inside = pages < self._below
            pages, groups, ticks, lasts = pages[inside], groups[inside], ticks[inside], lasts[inside]
        for page, group, tick, end in zip(
            pages.tolist(), groups.tolist(), ticks.tolist(), lasts.tolist(), strict=True
        ):
            place = at.get(page)
            if place is None:
                self._enter(page, group, end)
                at = self._at
                continue
            before = History(last[place], gap[place], counts[place], state[place])
            found.append((group_of[place], before.state, seen[place], tick - before.last))
            last[place], gap[place], counts[place], state[place] = read_again(before, tick)
            last[place], seen[place] = end, 0.0
        of, states, since, until = zip(*found, strict=True) if found else ((), (), (), ())
        return np.array(of, np.intp), np.array(states, np.intp), np.array(since), np.array(until)

    def enter(self, pages: Hashes, groups: Index, histories: Histories, tick: float) -> None:
        """Add pages of an earlier process, with their histories. From ``tick`` on they wait for their next
        read, like all sampled pages.
        """
        mixed = self._mix(pages)
        for number in np.flatnonzero(mixed < self._below if self._below < _ALL else mixed >= 0).tolist():
            page, last, gap, reads, state = mixed.item(number), *(one.item(number) for one in histories)
            if page not in self._at:
                self._enter(page, groups.item(number), last)
                if (place := self._at.get(page)) is not None:
                    self._gap[place], self._reads[place], self._states[place] = gap, reads, state
                    self._seen[place] = tick - last

    def waiting(self, tick: float, prefix_of: Index) -> Waits:
        """Return how long sampled pages have waited for a read since their waits were last counted.

        By these waits, the learner learns from a page also while it is not read. Pages that have waited
        longer than the greatest age in the table leave the sample.
        """
        if len(self._at) < self._most // 4:
            self._below = min(2 * self._below, 1 << 64)
        count = len(self._at)
        waited = tick - self._last[:count]
        waits = Waits(
            prefix_of[self._groups[:count]], self._states[:count].copy(), self._seen[:count].copy(), waited
        )
        self._seen[:count] = waited
        if count and waited.max() > _LONGEST_IDLE:
            self._keep(waited <= _LONGEST_IDLE)
        return waits

    def _enter(self, page: int, group: int, tick: float) -> None:
        while page < self._below and len(self._at) >= self._most:
            self._halve()
        if page < self._below:
            place = self._at[page] = len(self._at)
            self._groups[place], self._seen[place] = group, 0.0
            self._last[place], self._gap[place], self._reads[place], self._states[place] = first_read(tick)

    def _halve(self) -> None:
        self._below //= 2
        self._keep(np.fromiter(self._at, np.uint64, len(self._at)) < self._below)

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        stay = np.flatnonzero(kept)
        pages = list(self._at)
        for column in (self._groups, self._states, self._reads, self._last, self._gap, self._seen):
            column[: len(stay)] = column[stay]
        self._at = {pages[old]: place for place, old in enumerate(stay.tolist())}

    def _mix(self, pages: Hashes) -> Hashes:
        mixed = (pages ^ self._seed) * _STEP
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX
        return np.asarray(mixed ^ (mixed >> np.uint64(27)))
