"""Eviction pool: one ranking of a random sample serves the next few newcomers (as Redis does).

Ranking 1,024 residents costs more than the rest of an insert (docs/adr/0005). The sixteen worst of such a
sample are all within the worst few per cent of the tier, so they may be evicted one after another. Law: a
page is named only while it is as it was when drawn: same page, same tier, not read since. Keys change with
time, so the caller must compare the page with the newcomer again.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.residents import Slots
from shadeproxy.policy.base import Column

SAMPLE = 1024
_AHEAD = 16
_MOST_TICKS = 1024  # demand reads after which a ranking is too old


class Drawable(Protocol):
    """Columns by slot of ``Residents``: they show whether a page has changed."""

    generation: NDArray[np.int64]
    last_use: NDArray[np.float64]
    # Memoryviews of the same columns: faster for one page at a time.
    tiers: "memoryview[int]"
    generations: "memoryview[int]"
    last_uses: "memoryview[float]"


class EvictionPool:
    """Eviction pool: the worst pages of the last sample of tier ``index``."""

    def __init__(self, residents: Drawable, index: int) -> None:
        self._residents = residents
        self._index = index
        self._queue: list[tuple[int, int, float]] = []  # slot, generation, last use; worst last
        self._left = 0
        self._until_tick = 0.0

    def renew(self, slots: Slots, keys: Column, tick: float) -> NDArray[np.intp]:
        """Replace the pool by the worst of a ranked sample. Return their indices in ``slots``."""
        table = self._residents
        worst = keys.argpartition(-_AHEAD)[-_AHEAD:] if len(keys) > _AHEAD else np.arange(len(keys))
        worst = worst[keys[worst].argsort(kind="stable")]
        chosen = slots[worst]
        self._queue = list(
            zip(
                chosen.tolist(),
                table.generation[chosen].tolist(),
                table.last_use[chosen].tolist(),
                strict=True,
            )
        )
        self._left, self._until_tick = _AHEAD, tick + _MOST_TICKS
        return worst

    def forget(self) -> None:
        """Drop the pool, as some of its pages may be pinned: the next newcomer draws a sample."""
        self._left = 0

    def worst(self, tick: float) -> int | None:
        """Return the slot of the worst page left, for one newcomer; None: a new sample must be drawn."""
        table, queue = self._residents, self._queue
        if self._left <= 0 or tick > self._until_tick:
            return None
        self._left -= 1
        while queue:
            slot, generation, last_use = queue[-1]
            if (
                table.tiers[slot] == self._index
                and table.generations[slot] == generation
                and table.last_uses[slot] == last_use
            ):
                return slot
            queue.pop()
        return None


def draw_positions(rng: np.random.Generator, count: int, wanted: int) -> Slots:
    """Return ``wanted`` different positions below ``count``, all equally likely: one in each stratum.

    Seven times as fast as drawing with replacement and sorting duplicates out.
    """
    if wanted >= count:
        return np.arange(count)
    step = count // wanted
    positions = rng.integers(count) + np.arange(wanted) * step + rng.integers(0, step, wanted)
    # ``positions`` are less than twice the count.
    return np.where(positions >= count, positions - count, positions)
