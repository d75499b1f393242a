"""Page histories, and the read rates learnt from them. The history of a resident page is stored by slot, that
of another page as a ghost.

Laws: plain defs. When a page gets or loses a slot, its history moves with it. A read is *explained* if a
job's order or scores predicted it. Explained reads are in no history, because they say nothing about other
reads of the page.
"""

from collections.abc import Iterable
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.off_loop import OffLoop
from shadeproxy.engine.index.hash_table import page_hash, page_hashes
from shadeproxy.engine.index.residents import NewRows, Residents, Slots
from shadeproxy.hints.reuse.durable import ResidentColumns
from shadeproxy.hints.reuse.ghosts import BYTES, WORTH_TOGETHER, GhostColumns, Ghosts
from shadeproxy.hints.reuse.learner import ReuseLearner
from shadeproxy.hints.reuse.sample import Hashes
from shadeproxy.policy import kernels
from shadeproxy.policy.base import Column
from shadeproxy.policy.history import (
    Histories,
    History,
    first_read,
    read_again,
    read_again_many,
    told_by_uses,
)

_OBSERVATIONS_PER_BATCH = 256
_MISSES_TOGETHER = 64
_BYTES_PER_GHOST = 2048
"""Bytes of capacity for each ghost. So there are 32 ghosts for a page of 64 KiB. A ghost has 12 bytes, so all
ghosts take 0.6 % of the capacity.
"""

_LEAST_GHOSTS = 4096
_MOST_GHOSTS = 1 << 26
_MOST_AWAITED = 32_768
_BATCHES_PER_REFRESH = 16  # A factor for times of many hits: a learnt table then serves for seconds.
_LEAST_SLOTS = 1024
WORTH_COLUMNS = 4
"""Least number of pages that are handled together as columns. Fewer pages cost less one by one."""

_NEVER = History(0.0, 0.0, 0, 0)


def ghosts_for(capacity_bytes: int) -> int:
    """Return the number of ghosts for a cache of this capacity. Each takes ``ghosts.BYTES``."""
    return int(min(max(capacity_bytes // _BYTES_PER_GHOST, _LEAST_GHOSTS), _MOST_GHOSTS))


def counted_bytes(capacity_bytes: int) -> int:
    """Return how many bytes of ghosts count against a capacity. The ghosts that even the smallest cache has
    are not counted.
    """
    return (ghosts_for(capacity_bytes) - _LEAST_GHOSTS) * BYTES


class PageHistories:
    """Histories of the pages of ``residents``, and of other pages as ghosts. ``capacity_bytes``: capacity of
    the cache, from which the number of ghosts follows.
    """

    def __init__(self, residents: Residents, capacity_bytes: int, *, seed: int, off_loop: OffLoop) -> None:
        self._residents = residents
        self._off_loop = off_loop
        self.ghosts = Ghosts(ghosts_for(capacity_bytes))
        self.learner = ReuseLearner(seed)
        self._last, self._gap = np.zeros((2, 0))
        self._reads, self._state = np.zeros((2, 0), dtype=np.intp)
        self._kernels = None if self.ghosts.kernels is None else kernels.HistoryKernels(self.ghosts.kernels)
        self._observed: list[tuple[int, int, float]] = []  # Page, group, tick.
        self._missed: list[tuple[int, int, float]] = []  # The same, for misses that no ghost has yet.
        # Pages that unexplained reads have missed, and that have not come, by the first such read.
        self._awaited: dict[int, None] = {}
        self.restored = False
        """True if the histories of an earlier process were restored."""

    # ------------------------------------------------------------------ reads

    def read(self, slot: int, tick: float) -> None:
        """Add a read to the history of a resident page. The read must be unexplained."""
        self._settle()
        before = self._of(slot)
        after = read_again(before, tick) if before.reads else first_read(tick)
        self._set(slot, after)
        self._observed.append((self._page(slot), int(self._residents.group[slot]), tick))
        if len(self._observed) >= _OBSERVATIONS_PER_BATCH:
            self.learn(tick)

    def read_many(self, slots: Slots, ticks: Column) -> None:
        """Add reads to histories as ``read`` does. The oldest read comes first; a slot may occur several
        times.

        In a call of more than 256 reads, all reads of one page count as one, with the tick of the latest.
        This saves time: at thousands of hits a second, adding each read would cost more than the hit itself.
        """
        if not len(slots):
            return
        self._fit()
        order = np.argsort(slots, kind="stable")
        begins = np.flatnonzero(np.diff(slots[order], prepend=-1))
        firsts, lasts = order[begins], order[np.append(begins[1:], len(order)) - 1]
        repeats = np.empty(0, dtype=np.intp)
        if len(slots) <= _OBSERVATIONS_PER_BATCH and len(firsts) < len(slots):
            repeats, lasts = np.setdiff1d(order, firsts), firsts
        self._take(slots[firsts], ticks[firsts], ticks[lasts])
        for slot, tick in zip(slots[repeats].tolist(), ticks[repeats].tolist(), strict=True):
            self._set(slot, read_again(self._of(slot), tick))
        self._flush()
        if len(repeats):
            firsts = lasts = np.arange(len(slots))
        self._learn(slots[firsts], ticks[firsts], ticks[lasts])
        if len(slots) > _OBSERVATIONS_PER_BATCH:
            self.learner.put_off(_BATCHES_PER_REFRESH * len(slots))
        self._refresh(float(ticks[-1]))

    def _take(self, slots: Slots, ticks: Column, lasts: Column) -> None:
        """Add one read to the history of each page. All pages are different. ``lasts``: ticks of the pages'
        latest reads.
        """
        known = self._reads[slots] > 0
        again, new = slots[known], slots[~known]
        self._reads[again], self._gap[again], self._state[again] = read_again_many(
            self._reads[again], self._gap[again], ticks[known] - self._last[again]
        )
        self._reads[new], self._gap[new], self._state[new] = 1, 0.0, 0
        self._last[slots] = lasts

    def _learn(self, slots: Slots, ticks: Column, lasts: Column) -> None:
        table = self._residents
        order = np.argsort(ticks, kind="stable")
        slots = slots[order]
        pages = page_hashes(table.object_hash[slots], table.number[slots])
        self.learner.observe(pages, table.group[slots], ticks[order], lasts[order])

    def missed(self, page: int, group: int, tick: float) -> None:
        """Add a read to the history of a page without a slot. The read must be unexplained.

        Such misses are collected first, because numpy takes as long for one miss as for thirty. ``_settle``
        adds them to the ghosts, and is called before anything looks at ghosts.
        """
        self._missed.append((page, group, tick))
        self._awaited[page] = None
        if len(self._missed) >= _MISSES_TOGETHER:
            self._settle()

    def waits_no_more(self, object_hash: int, number: int) -> None:
        """Note that a read waits for a part of a page only. If the page comes later, it comes for others."""
        self._awaited.pop(page_hash(object_hash, number), None)

    def arrived(self, object_hashes: Iterable[int], numbers: Iterable[int], tick: float) -> None:
        """Date the reads that waited for pages to ``tick``, because the pages have come from the origin.

        A reader in a row asks for the next part only when it has this one. So the time that a page was under
        way says nothing about its next read.
        """
        come: list[int] = []
        for hashed, number in zip(object_hashes, numbers, strict=True):
            page = page_hash(hashed, number) if number else hashed
            if page in self._awaited:
                del self._awaited[page]
                come.append(page)
        if come:
            self._settle()
            self.ghosts.touch(come, tick)

    def _settle(self) -> None:
        """Add the collected misses to the ghosts, the oldest first."""
        missed = self._missed
        if not missed:
            return
        self._missed = []
        self.learner.make_room(max(map(itemgetter(1), missed)))
        self.ghosts.read_many(missed, self.learner.prefix_of)
        if len(self._awaited) > _MOST_AWAITED:
            # The earliest of these pages will not come, because their reads failed or are answered unstored.
            self._awaited = dict.fromkeys(list(self._awaited)[_MOST_AWAITED // 2 :])
        self._observed += missed
        if len(self._observed) >= _OBSERVATIONS_PER_BATCH:
            self.learn(missed[-1][2])

    # ------------------------------------------------------------------ slots

    def enter(self, slot: int, tick: float) -> None:
        """Give a page, which has just got a slot, the history of its ghost."""
        self._settle()
        if slot >= len(self._reads):
            self._fit()
        ghost = self.ghosts.find(self._page(slot), tick)
        self._set(slot, _NEVER if ghost is None else ghost.history)

    def enter_many(self, slots: Slots, tick: float) -> None:
        """Give recovered pages the histories of their ghosts. If no histories of the earlier process were
        restored, the history of a page without a ghost is estimated from its uses.
        """
        self._settle()
        self._fit()
        table = self._residents
        pages = page_hashes(table.object_hash[slots], table.number[slots])
        kept = self.ghosts.find_many(pages, tick)
        known = kept.reads > 0
        self._put(slots[known], Histories(*kept[:4]).at(known))
        slots, pages = slots[~known], pages[~known]
        if self.restored:  # An estimate would be worse than none, because uses include explained reads.
            self._reads[slots] = 0
            return
        uses = table.uses[slots].astype(np.float64)
        told = told_by_uses(uses, table.last_use[slots], table.admitted[slots])
        self._put(slots, told)
        read = told.reads > 0
        self.learner.enter(pages[read], table.group[slots[read]], told.at(read), tick)

    def leave(self, slot: int) -> None:
        """Keep the history of a page, which is about to lose its slot, as a ghost."""
        self._settle()
        if slot < len(self._reads) and (history := self._of(slot)).reads:
            self.ghosts.put(self._page(slot), history, self.learner.prefix(int(self._residents.group[slot])))
            self._reads[slot] = 0

    def add_many(self, pages: NewRows, tier: int) -> Slots:
        """Give slots to new pages, as ``Residents.add_many`` does, and give the pages the histories of their
        ghosts. Return the slots.
        """
        slots = self._residents.add_many(pages, tier)
        self._settle()
        self._fit()
        if self._kernels is not None:
            self._kernels.enter(slots, pages.object_hash, pages.number, pages.tick)
        else:
            self._put(slots, self._before(pages))
        return slots

    def take_over(self, slots: Slots, pages: NewRows) -> None:
        """Give the slots of some pages to new pages. Move the histories as ``leave`` and ``enter`` do."""
        self._settle()
        self._fit()
        if self._kernels is not None:
            table = self._residents
            self._kernels.exchange(
                slots, pages.object_hash, pages.number, pages.tick,
                table.object_hash, table.number, table.group, self.learner.prefix_of,
            )  # fmt: skip
            table.take_over(slots, pages)
            return
        before = self._before(pages)
        self._leave_many(slots)
        self._residents.take_over(slots, pages)
        self._put(slots, before)

    def _before(self, pages: NewRows) -> Histories:
        """Return the histories of pages without slots, as their ghosts have them."""
        hashes = page_hashes(pages.object_hash, pages.number)
        if len(hashes) >= WORTH_TOGETHER:
            return Histories(*self.ghosts.find_many(hashes, pages.tick)[:4])
        found = [self.ghosts.find(page, pages.tick) for page in hashes.tolist()]
        before = [_NEVER if ghost is None else ghost.history for ghost in found]
        return Histories(*map(np.array, zip(*before, strict=True)))

    def _leave_many(self, slots: Slots) -> None:
        table, slots = self._residents, slots[self._reads[slots] > 0]
        pages = page_hashes(table.object_hash[slots], table.number[slots])
        prefixes = self.learner.prefixes(table.group[slots])
        kept = (self._last[slots], self._gap[slots], self._reads[slots], self._state[slots])
        self.ghosts.put_many(pages, GhostColumns(*kept, prefixes))

    # ------------------------------------------------------------------ expectations

    def rates(self, slots: Slots, tick: float, *, displacing: int = 0) -> Column:
        """Return the learnt rates of resident pages, f64[n], in reads per tick. The rate of a page without a
        history is 0. ``displacing``: how many pages, at the beginning of ``slots``, are candidates for the
        places of others.
        """
        self._fit()
        if self._kernels is not None:
            groups, prefix_of, table = self._residents.group, self.learner.prefix_of, self.learner.hazards
            return self._kernels.rates(
                slots, displacing, tick, groups, prefix_of, table.rates, table.candidates
            )
        if len(slots) < WORTH_COLUMNS:
            found = (
                self._rate(slot, tick, candidate=at < displacing) for at, slot in enumerate(slots.tolist())
            )
            return np.fromiter(found, np.float64, len(slots))
        prefixes, ages = self.learner.prefixes(self._residents.group[slots]), tick - self._last[slots]
        rates = self.learner.rates(prefixes, self._state[slots], ages, candidates=displacing)
        return np.where(self._reads[slots] > 0, rates, 0.0)

    def rates_of(self, object_hashes: Hashes, numbers: NDArray[np.uint32], tick: float) -> Column:
        """Return the learnt rates of admission candidates without slots, like ``rates``."""
        self._settle()
        if self.ghosts.kernels is not None:
            candidates = self.learner.hazards.candidates
            return self.ghosts.kernels.rates(object_hashes, numbers, tick, candidates)
        pages = page_hashes(object_hashes, numbers)
        if len(pages) < WORTH_TOGETHER:
            return np.fromiter((self._rate_of(page, tick) for page in pages.tolist()), np.float64, len(pages))
        ghosts = self.ghosts.find_many(pages, tick)
        ages = tick - ghosts.last
        rates = self.learner.rates(ghosts.prefix, ghosts.state, ages, candidates=len(pages))
        return np.where(ghosts.reads > 0, rates, 0.0)

    @property
    def slots(self) -> int:
        """Number of slots that have a row in the columns of histories. A row may be without a history."""
        return len(self._reads)

    def of_residents(self, start: int, stop: int) -> ResidentColumns:
        """Return the histories of the resident pages in the slots from ``start`` to ``stop``, to be saved for
        the next process.
        """
        table, stop = self._residents, min(stop, len(self._reads))
        slots = start + np.flatnonzero(self._reads[start:stop])
        histories = Histories(self._last, self._gap, self._reads, self._state).at(slots)
        pages = page_hashes(table.object_hash[slots], table.number[slots])
        return ResidentColumns(pages, histories, self.learner.prefixes(table.group[slots]))

    def learn(self, tick: float) -> None:
        """Pass the reads observed so far to the learner. Begin a refresh if one is due."""
        self._flush()
        self._refresh(tick)

    # ------------------------------------------------------------------ inside

    def _rate(self, slot: int, tick: float, *, candidate: bool) -> float:
        if not self._reads[slot]:
            return 0.0
        prefix = self.learner.prefix(self._residents.group.item(slot))
        age = tick - self._last.item(slot)
        return self.learner.rate(prefix, self._state.item(slot), age, candidate=candidate)

    def _rate_of(self, page: int, tick: float) -> float:
        ghost = self.ghosts.find(page, tick)
        if ghost is None:
            return 0.0
        history = ghost.history
        return self.learner.rate(ghost.prefix, history.state, tick - history.last, candidate=True)

    def _flush(self) -> None:
        self._settle()
        if self._observed:
            pages, groups, ticks = zip(*self._observed, strict=True)
            self._observed.clear()
            self.learner.observe(
                np.array(pages, dtype=np.uint64), np.array(groups, dtype=np.intp), np.array(ticks)
            )

    def _refresh(self, tick: float) -> None:
        if self.learner.is_due(tick) and not self._off_loop.is_resting:
            refresh = self.learner.begin(tick, len(self._residents))
            self._off_loop(refresh.run, self.learner.finish, self.learner.fail)

    def _page(self, slot: int) -> int:
        table = self._residents
        return page_hash(int(table.object_hash[slot]), int(table.number[slot]))

    def _of(self, slot: int) -> History:
        if slot >= len(self._reads):
            self._fit()
        return History(
            float(self._last[slot]), float(self._gap[slot]), int(self._reads[slot]), int(self._state[slot])
        )

    def _set(self, slot: int, history: History) -> None:
        self._last[slot], self._gap[slot], self._reads[slot], self._state[slot] = history

    def _put(self, slots: Slots, histories: Histories) -> None:
        self._last[slots], self._gap[slots], self._reads[slots], self._state[slots] = histories

    def _fit(self) -> None:
        slots = self._residents.slots
        if slots > len(self._reads):
            more = max(slots, _LEAST_SLOTS, 2 * len(self._reads)) - len(self._reads)
            times, counts = np.zeros(more), np.zeros(more, dtype=np.intp)
            self._last, self._gap = np.append(self._last, times), np.append(self._gap, times)
            self._reads, self._state = np.append(self._reads, counts), np.append(self._state, counts)
            if self._kernels is not None:
                self._kernels.bind(self._last, self._gap, self._reads, self._state)
