"""Replays one trace with one policy and one cache, and finds which reads are hits.

The product's own code makes every decision: ``policy.key``, ``choose_beaten``, ``EvictionPool``,
``ReuseLearner``, ``Ghosts``. For one tier that counts bytes, this module calls that code in the same order as
``find_place`` and ``note_miss`` of engine/placement/placement.py do. tests/simulate/test_replay.py compares
the results of both for each read. For speed, columns are indexed by object id instead of by slot, and a hit
calls no function.
"""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.members import Members, Slots
from shadeproxy.engine.index.residents import NO_TIER
from shadeproxy.engine.placement.eviction_pool import SAMPLE, EvictionPool, draw_positions, draw_to_rank
from shadeproxy.hints.reuse.durable import ResidentColumns
from shadeproxy.hints.reuse.ghosts import Ghosts
from shadeproxy.hints.reuse.learner import ReuseLearner
from shadeproxy.policy.base import Column, PageColumns, Policy
from shadeproxy.policy.hazard import LEAST_RATE
from shadeproxy.policy.history import Histories, History, first_read, read_again, told_by_uses
from shadeproxy.policy.select import choose_beaten
from shadeproxy.simulate.hints import Announce, require_epochs, score_updates
from shadeproxy.simulate.jobs import TraceJobs
from shadeproxy.simulate.restart import Restart, restarted
from shadeproxy.simulate.trace import Trace

_BLOCK = 256  # The learner gets this many reads at a time, as in the engine.
_MOST_SAMPLED = 65_536
_GHOSTS = 32  # Number of ghosts for each page that fits into the cache.
_LONG_TRACE = 1_000_000
"""Number of reads above which caches of every size use the eviction pool, which takes a tenth of the time. In
shorter traces, a cache of up to ``SAMPLE`` pages is ranked completely for every new page, as in the engine.
"""

# One row for each object, not one column for each feature: gathering a sample of the rows takes a fifth of
# the time that it takes from columns.
_FACTS = np.dtype([
    (name, np.float64)
    for name in ("last_use", "admitted", "uses", "weight", "size_bytes", "last", "gap", "reads", "state")
])  # fmt: skip

_NEVER = History(0.0, 0.0, 0, 0)

Hits = NDArray[np.bool_]


class Replay:
    """A cache of ``capacity_bytes`` through which the reads of a trace pass. Call ``run`` once.

    ``stores``: number of missed pages that got a place.
    """

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        capacity_bytes: int,
        *,
        announce: Announce,
        seed: int = 0,
        restart: Restart | None = None,
    ) -> None:
        """Set up the replay. Raises ConfigError if the trace lacks an array that ``announce`` needs."""
        self._restarts = restart
        objects = trace.objects
        self._trace = trace
        self._policy = policy
        self._capacity = capacity_bytes
        self._rng = np.random.default_rng(seed)
        self._rank_all = SAMPLE if len(trace.ids) <= _LONG_TRACE else 0
        require_epochs(trace, announce)
        hinted = (announce.any or trace.weights is not None) and policy.looks_ahead
        self._jobs = TraceJobs(trace, announce) if hinted else None
        self._updates = score_updates(trace, announce)
        sizes = np.ones(objects, dtype=np.int64) if trace.sizes is None else trace.sizes
        self._facts = np.zeros(objects, _FACTS)
        self._facts["size_bytes"] = sizes
        self._facts["weight"] = np.nan
        # The columns of ``Drawable``, by which the eviction pool sees that a page has changed. Here the page
        # of an id never changes, so neither does its generation.
        self.tier = np.full(objects, NO_TIER, dtype=np.int8)
        self.generation = np.zeros(objects, dtype=np.int64)
        self.location = np.zeros(objects, dtype=np.int64)  # Only bytes are counted: pages need no location.
        self.last_use = self._facts["last_use"]
        # Memoryviews, because reading or writing one element takes a third of the time that it takes in an
        # ndarray.
        self.tiers, self.generations, self._sizes = self.tier.data, self.generation.data, sizes.data
        self.last_uses, self._admitted, self._uses, self._last, self._gap, self._reads, self._state = (
            cast("memoryview[float]", self._facts[name].data)
            for name in ("last_use", "admitted", "uses", "last", "gap", "reads", "state")
        )
        self._position = np.full(objects, -1, dtype=np.int64).data
        self._members = Members()
        self._used = 0
        self.stores = 0
        self._tick = 0
        self._drawn = EvictionPool(self, 0)
        # The engine computes the key of a drawn victim again for each new page, and at most sixteen new pages
        # use one draw. Here the key is computed only once, at the draw.
        self._keys_when_drawn = np.zeros(objects)
        self._keys = self._keys_when_drawn.data
        self._learner = ReuseLearner(int(self._rng.integers(1 << 62)))
        self._ghosts = Ghosts(int(_GHOSTS * capacity_bytes // max(sizes.mean(), 1)))
        self.hashes = np.random.default_rng(seed).integers(
            1 << 63, size=objects, dtype=np.uint64
        ) * np.uint64(2)
        self._groups = (
            np.zeros(objects, dtype=np.intp) if trace.prefixes is None else trace.prefixes.astype(np.intp)
        )
        self._unexplained: list[tuple[int, float]] = []

    def run(self) -> Hits:
        """Replay the trace. Return which reads found their object in the cache: bool[n]."""
        reads = len(self._trace.ids)
        hits = np.zeros(reads, dtype=np.bool_)
        updates = self._updates
        restart = self._restarts
        starts = sorted({*range(0, reads, _BLOCK), *updates, *(() if restart is None else (restart.read,))})
        for start, stop in zip(starts, [*starts[1:], reads], strict=True):
            for first, end, scores in updates.get(start, ()):
                self._facts["weight"][first:end] = _normalised(scores)
            if restart is not None and start == restart.read:
                self._restart(float(start), lost=restart.lost)
            hits[start:stop] = self._read(start, stop)
        return hits

    def _restart(self, tick: float, *, lost: bool) -> None:
        """Continue as the next process would after a restart, with the state that survives it. ``lost``: the
        histories do not survive.
        """
        pages, facts = self._members.slots, self._facts
        self._observe(tick)
        histories = Histories(
            facts["last"], facts["gap"], facts["reads"].astype(np.intp), facts["state"].astype(np.intp)
        )
        known = pages[facts["reads"][pages] > 0]
        residents = ResidentColumns(self.hashes[known], histories.at(known), np.zeros(len(known), np.intp))
        self._learner, self._ghosts = (
            (ReuseLearner(0), Ghosts(len(self._ghosts)))
            if lost
            else restarted(self._learner, self._ghosts, residents, tick, self._groups)
        )
        next_histories = Histories(*self._ghosts.find_many(self.hashes[pages], tick)[:4])
        if lost:
            next_histories = told_by_uses(*(facts[name][pages] for name in ("uses", "last_use", "admitted")))
            self._learner.enter(self.hashes[pages], self._groups[pages], next_histories, tick)
        for name, column in zip(Histories._fields, next_histories, strict=True):
            facts[name][pages] = column
        if self._jobs is not None:
            self._jobs.restart()

    # ------------------------------------------------------------------ reads

    def _read(self, start: int, stop: int) -> Hits:
        ids = self._trace.ids[start:stop]
        explained = bytes(stop - start) if self._jobs is None else self._jobs.begin(start, stop).tobytes()
        tiers, last_use, uses, learns = self.tiers, self.last_uses, self._uses, self._policy.learns
        hits, tick = bytearray(stop - start), start
        for number, page in enumerate(ids.tolist()):
            tick += 1
            present = tiers[page] >= 0
            if learns:
                if not present:
                    self._recall(page, tick)
                if not explained[number]:
                    self._learn(page, tick, present=present)
            if present:
                hits[number] = 1
                last_use[page] = tick
                uses[page] += 1
            else:
                self._tick = tick
                self._miss(page)
        return np.frombuffer(hits, dtype=np.bool_)

    def _recall(self, page: int, tick: int) -> None:
        """Set the history of a page that is not cached: from the page's ghost, or to none."""
        ghost = self._ghosts.find(self.hashes.item(page), tick)
        self._keep_history(page, _NEVER if ghost is None else ghost.history)

    def _learn(self, page: int, tick: int, *, present: bool) -> None:
        """Add a read that no hint explains to the history of its page."""
        reads = int(self._reads[page])
        if reads:
            before = History(self._last[page], self._gap[page], reads, int(self._state[page]))
            history = read_again(before, tick)
        else:
            history = first_read(tick)
        self._keep_history(page, history)
        if not present:
            # In the engine, a page that is not cached has its history only as a ghost, which rounds the mean
            # gap. Pass the history through a ghost here too, so that it is rounded in the same way.
            self._let_go(page)
            self._recall(page, tick)
        self._unexplained.append((page, tick))
        if len(self._unexplained) >= _BLOCK:
            self._observe(float(tick))

    def _keep_history(self, page: int, history: History) -> None:
        self._last[page], self._gap[page], self._reads[page], self._state[page] = history

    def _observe(self, tick: float) -> None:
        if self._unexplained:
            pages, ticks = (np.array(column) for column in zip(*self._unexplained, strict=True))
            self._unexplained.clear()
            self._learner.observe(self.hashes[pages], self._groups[pages], ticks.astype(np.float64))
        if self._learner.is_due(tick):
            refresh = self._learner.begin(tick, self._members.count)
            self._learner.finish(refresh.run())

    def _miss(self, page: int) -> None:
        # Set the features of the new page. The page becomes a member only if it wins a place.
        self.last_uses[page] = self._admitted[page] = self._tick
        self._uses[page] = 1.0
        size = self._sizes[page]
        if not self._find_place(page, size):
            self._let_go(page)
            return
        self.stores += 1
        self._position[page] = self._members.append(page)
        self.tiers[page] = 0
        self._used += size

    def _let_go(self, page: int) -> None:
        """Keep the history of a page that has no place in the cache, as a ghost."""
        if self._policy.learns and (reads := int(self._reads[page])):
            history = History(self._last[page], self._gap[page], reads, int(self._state[page]))
            self._ghosts.put(self.hashes.item(page), history, 0)

    def _find_place(self, page: int, size: int) -> bool:
        free = self._capacity - self._used
        return free >= size or self._displace(self._bar(page), size - free)

    # ------------------------------------------------------------------ victims

    def _displace(self, bar: float, need_bytes: int) -> bool:
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
        chosen = choose_beaten(self._policy, self._columns(members), bar, need_bytes)
        if chosen is None:
            return False
        for victim in members[chosen].tolist():
            self._evict(victim)
        return True

    def _draw(self) -> int:
        members = self._members.slots
        drawn = draw_to_rank(self._rng, members)
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
        moved = self._members.swap_remove(self._position[page])
        if moved >= 0:
            self._position[moved] = self._position[page]
        self.tiers[page] = NO_TIER
        self._used -= self._sizes[page]
        self._let_go(page)

    # ------------------------------------------------------------------ features of pages

    def _columns(self, pages: Slots) -> PageColumns:
        facts, count, tick = self._facts.take(pages), len(pages), float(self._tick)
        next_use, rate = np.full(count, np.inf), np.zeros(count)
        if self._jobs is not None:
            next_use, rate = self._jobs.until(pages, self._tick - 1)
        if self._policy.learns:
            prefixes = self._learner.prefixes(self._groups[pages])
            learnt = self._learner.rates(prefixes, facts["state"].astype(np.intp), tick - facts["last"])
            rate = rate + np.where(facts["reads"] > 0, learnt, 0.0)
        return PageColumns(
            next_use=next_use,
            rate=np.maximum(rate, LEAST_RATE),
            draw=self._rng.random(count),
            tick=tick,
            last_use=facts["last_use"],
            admitted=facts["admitted"],
            uses=facts["uses"],
            weight=facts["weight"],
            size_bytes=facts["size_bytes"],
        )

    def _bar(self, page: int) -> float:
        """Return the bar for ``page``, which is being read: only pages with a higher key may be evicted for
        it.
        """
        if self._policy.admits_always:
            return -np.inf
        next_use, rate, tick = np.inf, 0.0, float(self._tick)
        if self._jobs is not None:
            next_use, rate = (
                float(column[0]) for column in self._jobs.until(np.array([page]), self._tick - 1)
            )
        if self._policy.learns and self._reads[page]:
            prefix = self._learner.prefix(self._groups.item(page))
            age = tick - self._last[page]
            rate += self._learner.rate(prefix, int(self._state[page]), age, candidate=True)
        one = np.full((1,), tick)
        newcomer = PageColumns(
            next_use=np.full((1,), next_use),
            rate=np.full((1,), max(rate, LEAST_RATE)),
            weight=self._facts["weight"][page : page + 1],
            last_use=one,
            admitted=one,
            uses=np.ones(1),
            size_bytes=self._facts["size_bytes"][page : page + 1],
            draw=self._rng.random(1),
            tick=tick,
        )
        return float(self._policy.key(newcomer)[0]) * (1 + self._policy.margin)


def _normalised(row: NDArray[np.float32]) -> Column:
    """Return scores as weights with a mean of 1, as the scoreboard does. If the scores are all 0, so that
    they have no such weights, return 1 for each.
    """
    weights = row.astype(np.float64)
    known = weights[~np.isnan(weights)]
    mean = float(known.mean()) if len(known) else 1.0
    return weights / mean if mean > 0 else weights + 1.0
