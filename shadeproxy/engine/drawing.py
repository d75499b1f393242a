"""Victims drawn ahead: one ranking of a random sample serves the next few newcomers.

Ranking 1,024 residents costs more than the rest of an insert (docs/adr/0005); the sixteen worst of such a
sample are all within the worst few per cent of the tier, so they may leave one after another. Law: a page
is only named while it is as it was when it was drawn: same page, same tier, not read since. Keys change with
time, so whoever gives a page's place to a newcomer compares the two of them anew.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.residents import Slots
from shadeproxy.policy.base import Column

SAMPLE = 1024
_AHEAD = 16
_MOST_TICKS = 1024  # a ranking older than so many demand reads is drawn anew


class Drawable(Protocol):
    """Columns by slot, which ``Residents`` has: they tell whether a page is as it was."""

    generation: NDArray[np.int64]
    last_use: NDArray[np.float64]
    # By element, for one page at a time.
    tiers: "memoryview[int]"
    generations: "memoryview[int]"
    last_uses: "memoryview[float]"


class DrawnVictims:
    """The worst pages of the last sample of tier ``index``."""

    def __init__(self, residents: Drawable, index: int) -> None:
        self._residents = residents
        self._index = index
        self._queue: list[tuple[int, int, float]] = []  # slot, generation, last use; worst last
        self._left = 0
        self._until_tick = 0.0

    def renew(self, slots: Slots, keys: Column, tick: float) -> NDArray[np.intp]:
        """Take the worst of a sample that was just ranked; which those are, as indices of ``slots``."""
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
        """Some may not be named any more: the next newcomer draws a sample."""
        self._left = 0

    def worst(self, tick: float) -> int | None:
        """Slot of the worst page that is left, for one newcomer; None: a sample is to be drawn."""
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
    """``wanted`` different positions of ``count``, each as likely as any other: one in each stratum.

    Seven times as fast as drawing with replacement and sorting duplicates out.
    """
    if wanted >= count:
        return np.arange(count)
    step = count // wanted
    positions = rng.integers(count) + np.arange(wanted) * step + rng.integers(0, step, wanted)
    # Less than twice the count.
    return np.where(positions >= count, positions - count, positions)
