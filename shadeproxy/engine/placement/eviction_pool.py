"""Eviction pool: the worst pages of a random sample of a tier, kept for the next few evictions, as Redis
does.

Ranking 2,560 pages for each eviction would cost more than the rest of an insert (docs/adr/0005). So the 32
worst pages of one sample are kept. All of them are among the worst few per cent of the tier, and may be
evicted one after another.

Law: the pool names only slots that still have the page that was drawn, in the same tier. The page must not
have been read since. A page's key changes with time, while the pool has the key of the moment of the draw.
``Placement.find_place``, which places one page, ranks the victim again. ``PageAdmission``, which places the
pages of a turn together, uses the keys of the draw, which was at most 1,024 reads ago (docs/adr/0029).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.residents import Slots
from shadeproxy.policy.base import Column
from shadeproxy.tiers.location import record_bytes as record_bytes_at

SAMPLE = 1024
_RANKED = 2560
"""Number of pages that are ranked to fill a pool. When the 32 worst of only 1,024 pages were taken, announced
epochs lost 0.2 points of their hit ratio.
"""

REFUSED, UNFIT = -1, -2
_LEAST_AHEAD, _AHEAD_SHARE = 16, 80
_MOST_SAMPLED = 65_536
_MOST_TICKS = 1024  # Demand reads after which a draw is too old.
_REFUSED = 4
"""One in this many refused candidates counts as served. A refusal takes no page out of the pool. Still some
refusals count, because a new sample may have a page that the next candidates beat.
"""


class Drawable(Protocol):
    """The columns of ``Residents`` that show whether a page has changed since it was drawn. The index is the
    slot.
    """

    generation: NDArray[np.int64]
    last_use: NDArray[np.float64]
    location: NDArray[np.int64]
    # The same columns as memoryviews, which are faster for one page at a time.
    tiers: "memoryview[int]"
    generations: "memoryview[int]"
    last_uses: "memoryview[float]"


class EvictionPool:
    """The worst pages of the last random sample of tier number ``index``, for the next few evictions."""

    def __init__(self, residents: Drawable, index: int) -> None:
        self._residents = residents
        self._index = index
        # For each page: slot, generation, last use, key, bytes of the place of its record. The worst page
        # comes last.
        self._queue: list[tuple[int, int, float, float, int]] = []
        self._left = 0
        self._until_tick = 0.0

    @staticmethod
    def ahead(count: int) -> int:
        """Return how many victims a pool has for a tier of ``count`` members: an 80th of the pages that are
        ranked, but at least 16.
        """
        return max(min(count, _RANKED) // _AHEAD_SHARE, _LEAST_AHEAD)

    def renew(self, slots: Slots, keys: Column, tick: float) -> NDArray[np.intp]:
        """Fill the pool with the worst pages of the sample ``slots``, ranked by ``keys`` (a greater key is
        worse). Return the indices of these pages in ``slots``.
        """
        table = self._residents
        ahead = self.ahead(len(keys))
        worst = keys.argpartition(-ahead)[-ahead:] if len(keys) > ahead else np.arange(len(keys))
        worst = worst[keys[worst].argsort(kind="stable")]
        chosen = slots[worst]
        self._queue = list(
            zip(
                chosen.tolist(),
                table.generation[chosen].tolist(),
                table.last_use[chosen].tolist(),
                keys[worst].tolist(),
                record_bytes_at(table.location[chosen]).tolist(),
                strict=True,
            )
        )
        self._left, self._until_tick = ahead, tick + _MOST_TICKS
        return worst

    def forget(self) -> None:
        """Empty the pool, because some of its pages may be pinned now. For the next
        candidate, a new sample of pages is drawn.
        """
        self._left = 0

    def left(self, tick: float) -> int:
        """Return for how many more candidates the pool may name victims."""
        return max(self._left, 0) if tick <= self._until_tick else 0

    def worst(self, tick: float) -> int | None:
        """Return the slot of the worst page left, as the victim for one candidate; None: draw a sample."""
        if self._left <= 0 or tick > self._until_tick:
            return None
        self._left -= 1
        return self._queue[-1][0] if self._is_any_left() else None

    def worst_key(self, count: int) -> float:
        """Return the key that the worst page left had when it was drawn, or inf if no page is left. Count
        ``count`` candidates as served; ``left`` must be at least ``count``.
        """
        self._left -= count
        return self._queue[-1][3] if self._is_any_left() else np.inf

    def note_refused(self, count: int) -> None:
        """Correct ``left``: ``count`` candidates that were counted as served got no place. One in every
        ``_REFUSED`` of them still counts.
        """
        self._left += count - -(-count // _REFUSED)

    def _is_any_left(self) -> bool:
        """Drop pages at the worst end of the pool that have changed since they were drawn. Return whether any
        page is left.
        """
        table, queue = self._residents, self._queue
        while queue:
            slot, generation, last_use, _, _ = queue[-1]
            same = table.tiers[slot] == self._index and table.generations[slot] == generation
            if same and table.last_uses[slot] == last_use:
                return True
            queue.pop()
        return False

    def take(self, bars: Sequence[float], sizes_bytes: Sequence[int]) -> list[int]:
        """Take victims for candidates out of the pool, in order. A candidate's victim is the worst page that
        fits: its key, as drawn, is above the candidate's bar, and the place of its record is long enough.
        Call ``worst_key`` before.

        Return for each candidate the victim's slot; REFUSED if no page of the pool is worse than the
        candidate; or UNFIT if the places of all worse pages are too short, or the pool is empty.
        """
        table, queue = self._residents, self._queue
        tiers, generations, last_uses, index = table.tiers, table.generations, table.last_uses, self._index
        taken: list[int] = []
        for bar, size_bytes in zip(bars, sizes_bytes, strict=True):
            found, at = REFUSED, len(queue)
            while at:
                at -= 1
                slot, generation, last_use, key, room_bytes = queue[at]
                if key <= bar:
                    break
                same = tiers[slot] == index and generations[slot] == generation
                if not same or last_uses[slot] != last_use:
                    del queue[at]
                elif room_bytes >= size_bytes:
                    found = slot
                    del queue[at]
                    break
                else:
                    found = UNFIT
            taken.append(UNFIT if found == REFUSED and not queue else found)
        return taken


def draw_positions(rng: np.random.Generator, count: int, wanted: int) -> Slots:
    """Return ``wanted`` different positions below ``count``, all equally likely.

    The positions are divided into ``wanted`` stretches of equal length, and one position of each is drawn.
    This is seven times as fast as drawing with replacement and removing duplicates.
    """
    if wanted >= count:
        return np.arange(count)
    step = count // wanted
    positions = rng.integers(count) + np.arange(wanted) * step + rng.integers(0, step, wanted)
    # All positions are below ``2 * count``, so one subtraction brings them below ``count``.
    return np.where(positions >= count, positions - count, positions)


def draw_to_rank(rng: np.random.Generator, members: Slots) -> Slots:
    """Return the slots of random members, for ``EvictionPool.renew``."""
    return members[draw_positions(rng, len(members), _RANKED)]


def draw_sample(
    rng: np.random.Generator, members: Slots, record_bytes: NDArray[np.int64], need_bytes: int
) -> Slots:
    """Return the slots of SAMPLE random members, or of more: as many as probably have twice the bytes needed.
    ``record_bytes``: lengths of the records, by slot.
    """
    if len(members) <= SAMPLE:
        return members
    drawn = members[draw_positions(rng, len(members), SAMPLE)]
    drawn_bytes = int(record_bytes[drawn].sum())
    if drawn_bytes >= 2 * need_bytes:
        return drawn
    wanted = min(len(drawn) * 2 * need_bytes // max(drawn_bytes, 1) + 1, _MOST_SAMPLED)
    return members[draw_positions(rng, len(members), wanted)]
