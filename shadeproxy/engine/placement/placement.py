"""Placement: decides by the policy which pages get a place, and which resident pages are evicted for them.

Laws: plain defs. No I/O: ``reserve`` of a tier only counts. A page is evicted only for a candidate that beats
it. A pinned page is never a victim, and beats every page that is not pinned. The package storage carries the
decisions out: it demotes, drops and writes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import TierFull
from shadeproxy.core.off_loop import OffLoop, at_once
from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.engine.index.residents import NewRows, Residents, Slots
from shadeproxy.engine.placement.candidates import RECORD_BYTES, AdmissionCandidates
from shadeproxy.engine.placement.eviction_pool import SAMPLE, EvictionPool, draw_sample, draw_to_rank
from shadeproxy.engine.placement.free_runs import cheapest_run, in_few_segments
from shadeproxy.engine.placement.histories import PageHistories
from shadeproxy.engine.placement.page_features import PageFeatures, WeightSource
from shadeproxy.engine.placement.pins import PINNED_SHARE
from shadeproxy.hints.order.upcoming import NextUses
from shadeproxy.policy.base import Column, PageColumns, Policy
from shadeproxy.policy.keeping import keeping_ahead
from shadeproxy.policy.select import admission_bar, choose_victims
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.location import SEGMENT_SPAN_BYTES, byte_spans, numbers_of
from shadeproxy.tiers.tier import Tier

_WORTH_ROWS = 2  # From this number of pages on, without histories, columns of the index cost less than rows.
_RESERVE_TRIES, _TRIES_BEFORE_RUNS, _DEMOTIONS, _LONG = 64, 2, 32, 8
_MOST_UNREAD = 0.5  # share of the capacity for prefetched pages; pages that are read again need places too
_ROUNDING = 4096  # bytes that a tier may need more, because some records must begin on a block
_SPARE_BYTES = 64 * 1024  # room for blocks that a page on its way shares with no other page

Evict = Callable[[int, str], None]  # takes the page of a slot out of its tier, for the given reason


class Placement:
    """Decides on places in ``tiers`` (the fastest comes first) for the pages of ``residents``."""

    def __init__(
        self,
        residents: Residents,
        tiers: Sequence[Tier],
        *,
        policy: Policy,
        weights: WeightSource,
        next_uses: NextUses,
        rng: np.random.Generator,
        off_loop: OffLoop = at_once,
    ) -> None:
        """``off_loop``: runs work that would block the event loop for too long."""
        self.tick = 0.0
        self._residents = residents
        self._tiers = tiers
        self._policy = keeping_ahead(policy)
        capacity_bytes = sum(tier.capacity_bytes for tier in tiers) if policy.learns else 0
        seed = int(rng.integers(1 << 62))
        self.histories = PageHistories(residents, capacity_bytes, seed=seed, off_loop=off_loop)
        self.features = PageFeatures(
            residents, self._policy, weights=weights, next_uses=next_uses, histories=self.histories, rng=rng
        )
        self._rng = rng
        self._drawn = [EvictionPool(residents, index) for index in range(len(tiers))]
        self._beats_all = replace(self._policy, admits_always=True)  # for pinned pages

    # ------------------------------------------------------------------ reads

    def note_use(self, slot: int, *, explained: bool = False) -> None:
        """Count a demand read of a resident page. ``explained``: an order or scores predicted the read."""
        self.tick += 1
        self._residents.use(slot, self.tick)
        if self._policy.learns and not explained:
            self.histories.read(slot, self.tick)

    def note_uses(self, slots: Slots, explained: NDArray[np.bool_] | None = None) -> None:
        """Count demand reads of resident pages, the oldest first. A page may occur twice in ``slots``."""
        ticks = self.tick + np.arange(1.0, len(slots) + 1)
        self.tick += len(slots)
        self._residents.use_many(slots, ticks)
        if self._policy.learns:
            own = slice(None) if explained is None else ~explained
            self.histories.read_many(slots[own], ticks[own])

    def enter(self, slot: int) -> None:
        """Give a page that has just got a slot its history."""
        if self._policy.learns:
            self.histories.enter(slot, self.tick)

    def enter_many(self, slots: Slots) -> None:
        """Give recovered pages, which have just got slots, their histories."""
        if self._policy.learns:
            self.histories.enter_many(slots, self.tick)

    def leave(self, slot: int) -> None:
        """Keep the history of a page that is about to lose its slot."""
        if self._policy.learns:
            self.histories.leave(slot)

    def keys(self, slots: Slots) -> Column:
        """Return the policy's keys of resident pages; a greater key is worse."""
        return self._policy.key(self.features.of(slots, self.tick))

    def deserving(self, slots: Slots) -> Slots:
        """Return the pages of a lower tier that may win a place in the first tier; the most wanted comes
        first. If the first tier has free room, return all of ``slots``, in the given order.

        This is a guess from a sample, for callers that cannot try every page. ``find_place`` decides.
        """
        first = self._tiers[0]
        if int(self._residents.record_bytes[slots].max(initial=0)) <= first.room_bytes:
            return slots
        members = self._sample(0, 1)
        bar = self.keys(members).max(initial=-np.inf)
        keys = self._policy.key(self.features.of(slots, self.tick, displacing=len(slots)))
        keys = np.where(self._residents.pinned[slots], -np.inf, keys * (1 + self._policy.margin))
        order = np.argsort(keys, kind="stable")
        return np.asarray(slots[order][keys[order] < bar])

    def note_miss(self, object_hash: int, number: int, group: int, *, explained: bool = False) -> None:
        """Count a demand read of a missing page. ``explained``: an order or scores predicted the read."""
        self.tick += 1
        if self._policy.learns and not explained:
            page = page_hash(object_hash, number) if number else object_hash
            self.histories.missed(page, group, self.tick)

    def note_part(self, object_hash: int, number: int, group: int) -> None:
        """Add a read to the history of a part that may be stored. ``note_miss`` has counted the read."""
        if self._policy.learns:
            self.histories.missed(page_hash(object_hash, number), group, self.tick)

    # ------------------------------------------------------------------ decisions

    def admits(
        self, object_hash: int, number: int, size_bytes: int, *, pinned: bool, part: float = 1.0
    ) -> bool:
        """Return whether a record would win a place now. This is a guess; ``find_place`` decides.

        ``part``: the share of the page that its readers want. A hit on the page would save no more than that.
        """
        able = [index for index in self._able() if size_bytes <= self._tiers[index].limit_bytes]
        if self._policy.admits_always or (pinned and size_bytes <= self.pinnable_bytes):
            return bool(able)
        candidate = AdmissionCandidates(
            np.array([object_hash], dtype=np.uint64),
            np.array([number], dtype=np.uint32),
            np.array([size_bytes], dtype=np.int64),
            np.array([pinned], dtype=np.bool_),
        )
        bar = admission_bar(self._policy, self.features.of_candidates(candidate, self.tick))
        if self._policy.learns:
            bar /= part
        return any(self._room_bytes(index) >= size_bytes or self._worst_key(index) > bar for index in able)

    def winners(
        self,
        candidates: AdmissionCandidates,
        pending_bytes: int,
        *,
        earned: bool = False,
        price: Column | float = 1.0,
    ) -> NDArray[np.bool_]:
        """Return which candidates, coming in this order, would win a place now: bool[n].

        All tiers count as one. ``pending_bytes``: bytes of pages that come before the candidates. ``earned``:
        if the policy admits every page, only pages that find free room win. ``price``: a factor for the
        candidates' keys, if the policy learns. This is a guess from a sample; ``find_place`` decides.
        """
        sizes = candidates.record_bytes.astype(np.float64)
        needed = pending_bytes + np.cumsum(sizes)
        beyond = needed - self.free_bytes(sizes.min(initial=np.inf) + RECORD_BYTES)
        held: NDArray[np.bool_] = candidates.pinned & (
            np.cumsum(sizes * candidates.pinned) <= self.pinnable_bytes - pending_bytes
        )
        if not len(sizes) or not self._able():
            return held
        if self._policy.admits_always:
            rounded = beyond + RECORD_BYTES * np.arange(1, len(sizes) + 1) + _SPARE_BYTES
            fits = rounded <= 0 if earned else (beyond <= 0) | (needed <= self._unread_room_bytes())
            return held | fits
        if beyond[-1] <= 0:
            return np.ones(len(sizes), dtype=np.bool_)
        residents, freed = self._worst_first()
        ranks = np.searchsorted(freed, np.maximum(beyond, 0))
        worst = np.append(residents, -np.inf)[np.minimum(ranks, len(residents))]
        scale = (1 + self._policy.margin) * (price if self._policy.learns else 1.0)
        keys = self._policy.key(self.features.of_candidates(candidates, self.tick)) * scale
        return held | (beyond <= 0) | (keys < worst)

    def free_bytes(self, least_bytes: float = 0) -> int:
        """Return the total free room of the tiers that have at least ``least_bytes`` each."""
        rooms = [self._room_bytes(index) for index in self._able()]
        return sum(room for room in rooms if room >= least_bytes)

    @property
    def pinnable_bytes(self) -> int:
        """Bytes of further pages that may be pinned, in all tiers together."""
        return sum(max(self.pin_room_bytes(index), 0) for index in self._able())

    def pin_room_bytes(self, index: int) -> int:
        """Return the bytes of further pages that may be pinned in a tier; negative if the tier has shrunk."""
        most_bytes = int(PINNED_SHARE * self._tiers[index].limit_bytes)
        return most_bytes - self._residents.members[index].pinned_bytes

    def pin(self, slot: int) -> bool:
        """Pin a page of a tier. Return False, with nothing changed, if too many bytes would be pinned."""
        index = int(self._residents.tier[slot])
        if int(self._residents.record_bytes[slot]) > self.pin_room_bytes(index):
            return False
        self._residents.pin(slot, pinned=True)
        self._drawn[index].forget()
        return True

    @property
    def least_together(self) -> int:
        """Least number of pages that cost less to place together than one by one."""
        # A learning policy refuses most pages that it ranks, so even one page costs half as much.
        return 1 if self._policy.learns else _WORTH_ROWS

    def together(self, index: int) -> int:
        """Return how many pages can get victims from one filling of the eviction pool of tier ``index``."""
        return EvictionPool.ahead(self._residents.members[index].count)

    def draw_ahead(self, index: int, count: int) -> float:
        """Fill a tier's eviction pool, unless it has victims for ``count`` pages (at most ``together``).
        Return the key of its worst page, as drawn, or inf. A page that does not beat this key beats no page.
        """
        if self._drawn[index].left(self.tick) < count:
            self._draw(index)
        return self._drawn[index].worst_key(count)

    def bars(self, candidates: AdmissionCandidates) -> list[float]:
        """Return the bar of each candidate: a resident page with a higher key may be evicted for it."""
        if self._policy.admits_always:
            return [-np.inf] * len(candidates.number)
        keys = self._policy.key(self.features.of_candidates(candidates, self.tick))
        bars: list[float] = (keys * (1 + self._policy.margin)).tolist()
        return bars

    def victims(self, index: int, bars: Sequence[float], sizes_bytes: Sequence[int]) -> list[int]:
        """Take victims for new records from the eviction pool, which ``draw_ahead`` has filled."""
        return self._drawn[index].take(bars, sizes_bytes)

    def note_refused(self, index: int, count: int) -> None:
        """Note that ``count`` of the pages for which ``draw_ahead`` was called get no place."""
        self._drawn[index].note_refused(count)

    def add_many(self, index: int, pages: NewRows) -> Slots:
        """Give slots and histories to new pages; see ``Residents.add_many``. Return the slots."""
        if self._policy.learns:
            return self.histories.add_many(pages, index)
        return self._residents.add_many(pages, index)

    def take_over(self, slots: Slots, pages: NewRows) -> None:
        """Give the slots of victims, and histories, to new pages; see ``Residents.take_over``."""
        if self._policy.learns:
            self.histories.take_over(slots, pages)
        else:
            self._residents.take_over(slots, pages)

    def find_place(self, slot: int, index: int, evict: Evict) -> Location | None:
        """Reserve a location in tier ``index`` for the page of ``slot``. If room is needed, evict pages that
        the page beats. Return None if the page wins no place.
        """
        tier, members = self._tiers[index], self._residents.members[index]
        size = self._residents.sizes[slot]
        if self._residents.holds[slot] and size > self.pin_room_bytes(index):
            return None
        free = tier.room_bytes
        # A page much longer than others does not fit in the holes that random victims leave.
        long = size * (members.count + members.pinned or 1) > _LONG * tier.used_bytes
        if free < size and not long and not self._displace(slot, index, size - max(free, 0), evict):
            return None
        for attempt in range(_RESERVE_TRIES):
            try:
                return tier.reserve(size)
            except TierFull:
                # Evicted records share blocks with live neighbours, or no hole is long enough.
                in_one_piece = long or attempt >= _TRIES_BEFORE_RUNS
                displace = self._displace_run if in_one_piece else self._displace
                if not displace(slot, index, size, evict):
                    return None
        return None

    # ------------------------------------------------------------------ inside

    def _displace(self, slot: int, index: int, need_bytes: int, evict: Evict) -> bool:
        policy = self._policy_for(slot)
        if self._residents.members[index].count > SAMPLE:
            worst = self._worst(index)
            if not self._outranks(policy, slot, worst):
                return False
            if self._residents.sizes[worst] >= need_bytes:
                evict(worst, "policy")
                return True
        members = self._sample(index, need_bytes)
        columns = self.features.of(members, self.tick)
        chosen = choose_victims(policy, columns, self._displacing(slot), need_bytes)
        if chosen is None:
            return False
        _evict_all(members[chosen], evict)
        return True

    def _policy_for(self, slot: int) -> Policy:
        return self._beats_all if self._residents.holds[slot] else self._policy

    def _outranks(self, policy: Policy, slot: int, victim: int) -> bool:
        if policy.admits_always and self._residents.uses.item(victim):
            return True  # Only an announced page that was not read yet may be kept before a new page.
        # Compute both keys now: since the victim was drawn, its next use has come nearer.
        pair = np.array([slot, victim], dtype=np.int64)
        key, victims_key = policy.key(self.features.of(pair, self.tick, displacing=1)).tolist()
        return bool(victims_key > (-np.inf if policy.admits_always else key * (1 + policy.margin)))

    def _worst(self, index: int) -> int:
        """Return the worst page of a ranked sample of a tier with more than ``SAMPLE`` members."""
        pool = self._drawn[index]
        if (worst := pool.worst(self.tick)) is None:
            self._draw(index)
            worst = pool.worst(self.tick)
        assert worst is not None, "a page that was just drawn is as it was"
        return worst

    def _draw(self, index: int) -> None:
        drawn = draw_to_rank(self._rng, self._residents.members[index].slots)
        self._drawn[index].renew(drawn, self.keys(drawn), self.tick)

    def _displace_run(self, slot: int, index: int, size: int, evict: Evict) -> bool:
        """Evict neighbouring records that leave one piece of ``size``, if the page beats them all."""
        table = self._residents
        members = self._neighbours(index)
        starts, stops = byte_spans(table.location[members])
        order = np.argsort(starts)
        members, starts, stops = members[order], starts[order], stops[order]
        beaten = ~table.pinned[members] & self._beaten(slot, members)
        run = cheapest_run(starts, stops, beaten, size + _ROUNDING, SEGMENT_SPAN_BYTES)
        if run is None:
            return False
        _evict_all(members[run], evict)
        return True

    def _beaten(self, slot: int, members: Slots) -> NDArray[np.bool_]:
        bar = admission_bar(self._policy_for(slot), self._displacing(slot))
        return np.asarray(self.keys(members) > bar)

    def _neighbours(self, index: int) -> Slots:
        """Return the pages of a tier; of a big tier, about SAMPLE pages of a few random segments."""
        slots = np.concatenate([self._residents.members[index].slots, self._residents.pinned_in(index)])
        return slots[in_few_segments(numbers_of(self._residents.location[slots]), self._rng)]

    def _sample(self, index: int, need_bytes: int) -> Slots:
        """Return 1,024 random members, or more if these have less than twice the bytes needed."""
        members = self._residents.members[index].slots
        return draw_sample(self._rng, members, self._residents.record_bytes, need_bytes)

    def _displacing(self, slot: int) -> PageColumns:
        """Return the features of a page for which other pages may be evicted."""
        return self.features.of(np.array([slot], dtype=np.int64), self.tick, displacing=1)

    def _worst_first(self) -> tuple[Column, Column]:
        """Return the keys of sampled pages of all tiers, the worst first. For each key, also return about how
        many bytes of resident pages have this key or a worse one.
        """
        keys: list[Column] = []
        sizes: list[Column] = []
        for index in self._able():
            drawn = self._sample(index, 0)
            keys.append(self.keys(drawn))
            stands_for = self._residents.members[index].count / max(len(drawn), 1)
            sizes.append(self._residents.record_bytes[drawn].astype(np.float64) * stands_for)
        all_keys = np.concatenate(keys)
        order = np.argsort(-all_keys, kind="stable")
        return all_keys[order], np.cumsum(np.concatenate(sizes)[order])

    def _able(self) -> list[int]:
        """Return the numbers of the tiers that still take pages: their media have not failed."""
        return [index for index, tier in enumerate(self._tiers) if tier.disabled_reason is None]

    def _room_bytes(self, index: int) -> int:
        return max(self._tiers[index].room_bytes, 0)

    def _worst_key(self, index: int) -> float:
        """Return the worst key of a tier. Of a big tier, return the worst key of a sample."""
        members = self._residents.members[index]
        slots = np.array([self._worst(index)], dtype=np.int64) if members.count > SAMPLE else members.slots
        return float(self.keys(slots).max(initial=-np.inf))

    def _unread_room_bytes(self) -> int:
        """Return how many more bytes of prefetched pages may wait for their first read."""
        limit_bytes = sum(self._tiers[index].limit_bytes for index in self._able())
        return int(_MOST_UNREAD * limit_bytes) - self._residents.unread_bytes


def _evict_all(victims: Slots, evict: Evict) -> None:
    """Evict victims. Only the first few may be demoted, because each demotion ranks the tier below."""
    for number, victim in enumerate(victims.tolist()):
        evict(victim, "policy" if number < _DEMOTIONS else "crowded out")
