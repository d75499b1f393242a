"""Eviction pool: one ranking of a random sample serves the next few candidates (as Redis does).

Ranking 2,560 residents costs more than the rest of an insert (docs/adr/0005). The 32 worst pages of such a
sample are all among the worst few per cent of the tier. So they may be evicted one after another.

Law: the pool names a slot only if the slot still holds the page that was drawn, in the same tier, and the
page was not read since. Keys change with time. ``Placement.find_place``, which places one page, ranks the
victim again. ``PageAdmission``, which places the pages of a turn, uses the victims' keys as they were when
drawn, at most 1,024 reads ago (docs/adr/0029).
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
"""Number of pages ranked to fill a pool. With the 32 worst of only 1,024 pages, announced epochs lost 0.2
points of their hit ratio.
"""

REFUSED, UNFIT = -1, -2
_LEAST_AHEAD, _AHEAD_SHARE = 16, 80
_MOST_SAMPLED = 65_536
_MOST_TICKS = 1024  # demand reads after which a ranking is too old
_REFUSED = 4
"""This many refused candidates lower the pool's limit by one page. A refusal takes no page out of the pool.
It lowers the limit because a new sample may hold a page that the candidates beat.
"""


class Drawable(Protocol):
    """Columns of ``Residents``, by slot, that show whether a page has changed since it was drawn."""

    generation: NDArray[np.int64]
    last_use: NDArray[np.float64]
    location: NDArray[np.int64]
    # Memoryviews of columns, which are faster for one page at a time.
    tiers: "memoryview[int]"
    generations: "memoryview[int]"
    last_uses: "memoryview[float]"


class EvictionPool:
    """The worst pages of the last random sample of the tier with number ``index``. They are used for the next
    few evictions.
    """

    def __init__(self, residents: Drawable, index: int) -> None:
        self._residents = residents
        self._index = index
        # For each page: slot, generation, last use, key, length of the record's room. The worst page comes
        # last.
        self._queue: list[tuple[int, int, float, float, int]] = []
        self._left = 0
        self._until_tick = 0.0

    @staticmethod
    def ahead(count: int) -> int:
        """Return how many victims a pool holds for a tier of ``count`` members: an 80th of the ranked pages,
        at least 16.
        """
        return max(min(count, _RANKED) // _AHEAD_SHARE, _LEAST_AHEAD)

    def renew(self, slots: Slots, keys: Column, tick: float) -> NDArray[np.intp]:
        """Replace the pool by the worst pages of the sample ``slots``, ranked by ``keys``. Return the indices
        of these pages in ``slots``.
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
        """Drop the pool, because some of its pages may now be pinned. The next candidate draws a sample."""
        self._left = 0

    def left(self, tick: float) -> int:
        """Return for how many more pages the pool may name victims."""
        return max(self._left, 0) if tick <= self._until_tick else 0

    def worst(self, tick: float) -> int | None:
        """Return the slot of the worst page left, as victim for one candidate. None: draw a new sample."""
        if self._left <= 0 or tick > self._until_tick:
            return None
        self._left -= 1
        return self._queue[-1][0] if self._is_any_left() else None

    def worst_key(self, count: int) -> float:
        """Return the key, as it was drawn, of the worst page left; inf if no page is left. Subtract ``count``
        candidates from ``left``, which must be at least ``count``.
        """
        self._left -= count
        return self._queue[-1][3] if self._is_any_left() else np.inf

    def note_refused(self, count: int) -> None:
        """Add a refused batch of ``count`` pages to ``left`` again, except one for every ``_REFUSED``
        pages.
        """
        self._left += count - -(-count // _REFUSED)

    def _is_any_left(self) -> bool:
        """Drop the worst pages that have changed since they were drawn. Return whether any page is left."""
        table, queue = self._residents, self._queue
        while queue:
            slot, generation, last_use, _, _ = queue[-1]
            same = table.tiers[slot] == self._index and table.generations[slot] == generation
            if same and table.last_uses[slot] == last_use:
                return True
            queue.pop()
        return False

    def take(self, bars: Sequence[float], sizes_bytes: Sequence[int]) -> list[int]:
        """Remove victims for candidates, in order. A candidate's victim is the worst page whose key, as
        drawn, is above the candidate's bar and whose room is long enough. Call ``worst_key`` before.

        Return the victims' slots: REFUSED for a candidate that no page is worse than, UNFIT for one that
        beats only pages whose room is too short.
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
    """Return ``wanted`` different positions below ``count``, all equally likely: one from each of ``wanted``
    stretches of equal length.

    This is seven times as fast as drawing with replacement and removing duplicates.
    """
    if wanted >= count:
        return np.arange(count)
    step = count // wanted
    positions = rng.integers(count) + np.arange(wanted) * step + rng.integers(0, step, wanted)
    # All positions are less than twice the count, so one subtraction wraps them.
    return np.where(positions >= count, positions - count, positions)


def draw_to_rank(rng: np.random.Generator, members: Slots) -> Slots:
    """Return random members, for ``EvictionPool.renew`` to rank."""
    return members[draw_positions(rng, len(members), _RANKED)]


def draw_sample(
    rng: np.random.Generator, members: Slots, record_bytes: NDArray[np.int64], need_bytes: int
) -> Slots:
    """Return SAMPLE random members, or as many more as probably hold twice the bytes needed.
    ``record_bytes``: record lengths by slot.
    """
    if len(members) <= SAMPLE:
        return members
    drawn = members[draw_positions(rng, len(members), SAMPLE)]
    drawn_bytes = int(record_bytes[drawn].sum())
    if drawn_bytes >= 2 * need_bytes:
        return drawn
    wanted = min(len(drawn) * 2 * need_bytes // max(drawn_bytes, 1) + 1, _MOST_SAMPLED)
    return members[draw_positions(rng, len(members), wanted)]
