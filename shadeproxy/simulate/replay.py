"""Replays one trace with one policy and one cache: which reads hit.

Columns are by object id instead of by slot, and hits cost no call; every decision is the product's:
``policy.key``, ``choose_beaten``, ``EvictionPool``, ``StagingShare``, ``ReuseEstimator``. The order of the
calls is that of engine/placement/placement.py (``find_place``, ``find_staging_place``, ``note_miss``) for one
tier that counts bytes; tests/simulate/test_replay.py compares the two read by read.
"""

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.members import Members, Slots
from shadeproxy.engine.index.residents import NO_TIER
from shadeproxy.engine.placement.eviction_pool import SAMPLE, EvictionPool, draw_positions
from shadeproxy.policy.base import Column, PageColumns, Policy
from shadeproxy.policy.reuse import ReuseEstimator
from shadeproxy.policy.select import choose_beaten
from shadeproxy.policy.staging import StagingShare
from shadeproxy.simulate.announced import Announce, NextUses, require_epochs
from shadeproxy.simulate.trace import Trace

_BLOCK = 256  # reads that the reuse estimator learns together, as in the engine
_MOST_SAMPLED = 65_536
_LONG_TRACE = 1_000_000
"""Reads from which the eviction pool is used for all caches, in a tenth of the time. For shorter traces a
cache of up to ``SAMPLE`` pages is ranked whole for every newcomer, as in the engine."""

# One row for each object: gathering a sample of rows takes a fifth of the time of columns, and a third of
# that of a record type.
_FACTS = np.dtype([(name, np.float64) for name in ("last_use", "admitted", "uses", "weight", "size_bytes")])

Hits = NDArray[np.bool_]


class Replay:
    """A cache of ``capacity_bytes``; ``run`` once."""

    def __init__(
        self, trace: Trace, policy: Policy, capacity_bytes: int, *, announce: Announce, seed: int = 0
    ) -> None:
        """Raise ConfigError when the trace lacks an array that ``announce`` needs."""
        objects = trace.objects
        self._trace = trace
        self._policy = policy
        self._policy_of_staging = replace(policy, admits_always=True)
        self._capacity = capacity_bytes
        self._rng = np.random.default_rng(seed)
        self._rank_all = SAMPLE if len(trace.ids) <= _LONG_TRACE else 0
        require_epochs(trace, announce)
        self._next_uses = NextUses(trace, announce) if announce.epochs and policy.looks_ahead else None
        sizes = np.ones(objects, dtype=np.int64) if trace.sizes is None else trace.sizes
        self._facts = np.zeros(objects, _FACTS)
        self._facts["size_bytes"] = sizes
        self._facts["weight"] = np.nan
        # The columns of ``Drawable``: an id keeps its page, so its generation never changes.
        self.tier = np.full(objects, NO_TIER, dtype=np.int8)
        self.generation = np.zeros(objects, dtype=np.int64)
        self.last_use = self._facts["last_use"]
        # An element of a memoryview takes a third of the time of one of an ndarray, to read and to write.
        self.tiers, self.generations, self._sizes = self.tier.data, self.generation.data, sizes.data
        self.last_uses, self._admitted, self._uses = (
            cast("memoryview[float]", self._facts[name].data) for name in ("last_use", "admitted", "uses")
        )
        self._position = np.full(objects, -1, dtype=np.int64).data
        self._members = Members()
        self._used = 0
        self._tick = 0
        self._reuse = ReuseEstimator()
        self._staging = StagingShare(policy.staging_share)
        # Without a share staging decides nothing, and is not called.
        self._stages = policy.staging_share > 0
        self._drawn = EvictionPool(self, 0)
        # The engine ranks a drawn victim again for each of at most sixteen newcomers; here its key is kept.
        self._keys_when_drawn = np.zeros(objects)
        self._keys = self._keys_when_drawn.data
        self._group = np.zeros(2 * _BLOCK, dtype=np.intp)
        # The length is the number of pages ranked at once.
        self._never, self._idle_after = np.full(SAMPLE, np.inf), np.full(SAMPLE, np.inf)
        self._observed: list[float] = []

    def run(self) -> Hits:
        """Return which reads found their object in the cache: bool[n]."""
        reads = len(self._trace.ids)
        hits = np.zeros(reads, dtype=np.bool_)
        rows = _weight_rows(self._trace)
        starts = sorted({*range(0, reads, _BLOCK), *rows})
        for start, stop in zip(starts, [*starts[1:], reads], strict=True):
            if start in rows and self._trace.weights is not None:
                self._facts["weight"] = _normalised(self._trace.weights[rows[start]])
            hits[start:stop] = self._read(start, stop)
        return hits

    # ------------------------------------------------------------------ reads

    def _read(self, start: int, stop: int) -> Hits:
        ids = self._trace.ids[start:stop]
        bars = self._bars(ids.astype(np.int64), start, stop).tolist()
        tiers, last_use, uses = self.tiers, self.last_uses, self._uses
        staged, observed = self._members.staged, self._observed
        hits, tick, first = bytearray(stop - start), start, np.nan
        for number, page in enumerate(ids.tolist()):
            tick += 1
            if tiers[page] < 0:
                observed.append(first)
                if len(observed) >= _BLOCK:
                    self._learn(tick)
                self._tick = tick
                self._miss(page, bars[number])
                continue
            hits[number] = 1
            observed.append(tick - last_use[page])
            last_use[page] = tick
            uses[page] += 1
            if staged and page in staged:
                staged.move_to_end(page)
                self._staging.on_staged_hit()
        if len(observed) >= _BLOCK:
            self._learn(stop)
        return np.frombuffer(hits, dtype=np.bool_)

    def _miss(self, page: int, bar: float) -> None:
        if self._stages:
            self._staging.on_miss(page, self._capacity, self._tick)
        # A newcomer's features; it becomes a member only if it wins a place.
        self.last_uses[page] = self._admitted[page] = self._tick
        self._uses[page] = 1.0
        size = self._sizes[page]
        if self._find_place(size, bar):
            self._position[page] = self._members.append(page)
        elif not self._stages:
            return
        elif self._find_staging_place(size):
            self._position[page] = -1
            self._members.staged[page] = size
            self._members.staged_bytes += size
        else:
            self._staging.on_bypass(page, size)
            return
        self.tiers[page] = 0
        self._used += size

    def _find_place(self, size: int, bar: float) -> bool:
        if not self._stages:
            free = self._capacity - self._used
            return free >= size or self._displace(bar, size - free, self._policy)
        room, members = int(self._staging.share() * self._capacity), self._members
        if room < size and members.staged:
            self._release_staged()
        held_back = max(room if size <= room else 0, members.staged_bytes)
        free = self._capacity - held_back - (self._used - members.staged_bytes)
        if free >= size:
            return True
        self._staging.on_crowded(size, self._capacity)
        return self._displace(bar, size - max(free, 0), self._policy)

    def _find_staging_place(self, size: int) -> bool:
        room, members = int(self._staging.share() * self._capacity), self._members
        if size > room:
            return False
        while members.staged and members.staged_bytes + size > room:
            oldest = next(iter(members.staged))
            self._staging.on_bypass(oldest, self._sizes[oldest], held_bytes=members.staged_bytes)
            self._evict(oldest)
        while self._used + size > self._capacity:
            if not self._displace(-np.inf, size, self._policy_of_staging):
                return False
        return True

    # ------------------------------------------------------------------ victims

    def _displace(self, bar: float, need_bytes: int, policy: Policy) -> bool:
        if self._members.count > self._rank_all:
            worst = self._drawn.worst(self._tick)
            if worst is None:
                worst = self._draw()
            if self._keys[worst] <= bar:
                return False
            if self._sizes[worst] >= need_bytes:
                self._evict(worst)
                return True
        members = self._sample(need_bytes)
        chosen = choose_beaten(policy, self._columns(members), bar, need_bytes)
        if chosen is None:
            return False
        for victim in members[chosen].tolist():
            self._evict(victim)
        return True

    def _draw(self) -> int:
        members = self._members.slots
        drawn = members[draw_positions(self._rng, len(members), SAMPLE)]
        keys = self._policy.key(self._columns(drawn))
        named = self._drawn.renew(drawn, keys, self._tick)
        self._keys_when_drawn[drawn[named]] = keys[named]
        worst = self._drawn.worst(self._tick)
        assert worst is not None, "a page that was just drawn is as it was"
        return worst

    def _sample(self, need_bytes: int) -> Slots:
        members = self._members.slots
        if len(members) <= SAMPLE:
            return members.copy()
        drawn = members[draw_positions(self._rng, len(members), SAMPLE)]
        drawn_bytes = int(self._facts["size_bytes"][drawn].sum())
        if drawn_bytes >= 2 * need_bytes:
            return drawn
        wanted = min(len(drawn) * 2 * need_bytes // max(drawn_bytes, 1) + 1, _MOST_SAMPLED)
        return members[draw_positions(self._rng, len(members), wanted)]

    def _evict(self, page: int) -> None:
        members = self._members
        if self._position[page] < 0:
            members.staged_bytes -= members.staged.pop(page)
        else:
            moved = members.swap_remove(self._position[page])
            if moved >= 0:
                self._position[moved] = self._position[page]
        self.tiers[page] = NO_TIER
        self._used -= self._sizes[page]

    def _release_staged(self) -> None:
        members = self._members
        for page in list(members.staged):
            members.staged_bytes -= members.staged.pop(page)
            self._position[page] = members.append(page)

    # ------------------------------------------------------------------ facts

    def _columns(self, pages: Slots) -> PageColumns:
        next_use, facts = self._next_uses, self._facts.take(pages)
        count = len(pages)
        if count > len(self._never):
            self._never, self._idle_after = np.full(count, np.inf), np.full(count, self._idle_after[0])
        return PageColumns(
            next_use_s=self._never[:count] if next_use is None else next_use.until(pages, self._tick - 1),
            idle_after=self._idle_after[:count],
            draw=self._rng.random(count),
            tick=float(self._tick),
            last_use=facts["last_use"],
            admitted=facts["admitted"],
            uses=facts["uses"],
            weight=facts["weight"],
            size_bytes=facts["size_bytes"],
        )

    def _bars(self, pages: Slots, start: int, stop: int) -> Column:
        """Return the keys that the objects of a block would have as newcomers, each at its own read.

        Only differences to the tick count in a key, so one tick will do for all of them.
        """
        next_use = None if self._next_uses is None else self._next_uses.begin(start, stop)
        if self._policy.admits_always:
            return np.full(len(pages), -np.inf)
        now = np.zeros(len(pages))
        return self._policy.key(
            PageColumns(
                next_use_s=_never(len(pages)) if next_use is None else next_use,
                weight=self._facts["weight"][pages],
                last_use=now,
                admitted=now,
                uses=np.ones(len(pages)),
                size_bytes=self._facts["size_bytes"][pages],
                idle_after=_never(len(pages)),
                draw=self._rng.random(len(pages)),
                tick=0.0,
            )
        )

    def _learn(self, tick: int) -> None:
        count = len(self._observed)
        ticks = np.arange(tick - count + 1.0, tick + 1)
        self._reuse.observe(self._group[:count], ticks, self._observed)
        self._idle_after[:] = self._reuse.idle_after(self._group[:1])
        self._observed.clear()


def _never(count: int) -> Column:
    return np.full(count, np.inf)


def _weight_rows(trace: Trace) -> dict[int, int]:
    """Return the rows of the weights by the read from which each is known."""
    if trace.weights is None or trace.epochs is None:
        return {}
    newest = np.maximum.accumulate(trace.epochs)
    starts = [0, *(np.flatnonzero(np.diff(newest)) + 1).tolist()]
    return {start: int(newest[start]) for start in starts}


def _normalised(row: NDArray[np.float32]) -> Column:
    """Return weights as the scoreboard does: their mean is 1; all zeros become the mean."""
    weights = row.astype(np.float64)
    known = weights[~np.isnan(weights)]
    mean = float(known.mean()) if len(known) else 1.0
    return weights / mean if mean > 0 else weights + 1.0
