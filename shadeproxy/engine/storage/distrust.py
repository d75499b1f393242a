"""Marks all cached pages stale, so that each page is checked with the origin once before it answers again.

Laws: the marks are set before any other code runs. Some pages may keep their time of validation. They get it
back a little later, and only if they have not changed since. But their stamps stay changed, so page handles
made before are not valid any more.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.off_loop import OffLoop
from shadeproxy.engine.index.prefix_groups import group_flags
from shadeproxy.engine.index.residents import NO_TIER, Residents, Slots

Keep = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
"""Type of a function that returns, for n object hashes (u64[n]), whether the pages of each object keep their
time of validation. It may be called in any thread, and after ``mark_all`` has returned.
"""

_LONG_AGO_S = 1.0  # Unix time; 0 would mean that the page must be checked before it answers.

AT_ONCE = 1 << 16
"""Most pages for which ``keep`` is called on the event loop, where the call takes about 30 ms. If there are
more pages, a thread calls it.
"""


def age_later_checks(residents: Residents, now_s: float) -> int:
    """Treat checks with a date after ``now_s`` (Unix time) as made long ago. Return the number of pages with
    such a check. Page handles of these pages stay as they are.
    """
    later = residents.validated_s[: residents.slots] > now_s
    residents.validated_s[: residents.slots][later] = _LONG_AGO_S
    return int(np.count_nonzero(later))


_BLOCK = 1 << 14
"""Pages that ``mark_groups`` looks at together: so few that their rows stay in the processor's cache."""


def mark_groups(residents: Residents, groups: list[int]) -> None:
    """Mark all pages of some prefix groups stale."""
    flags = group_flags(groups)
    for start in range(0, residents.slots, _BLOCK):
        stop = min(start + _BLOCK, residents.slots)
        slots = residents.in_groups(flags, start, stop)
        # Most often one bucket has all pages. A slice is then marked in two thirds of the time.
        residents.mark_stale(slice(start, stop) if len(slots) == stop - start else slots)


class Distrust:
    """Marks the pages of ``residents`` stale. ``coming``: called to mark the pages that recovery will still
    add.
    """

    def __init__(self, residents: Residents, coming: Callable[[], None], off_loop: OffLoop) -> None:
        self._residents = residents
        self._coming = coming
        self._off_loop = off_loop

    def mark_all(self, keep: Keep | None = None) -> None:
        """Mark all pages stale, readable or being written. ``keep``: see ``Keep``; None: no page keeps its
        time of validation.
        """
        self._coming()
        table = self._residents
        count = table.slots
        former = table.validated_s[:count].copy()
        table.mark_stale(slice(0, count))
        if keep is None:
            return
        slots = np.flatnonzero((former > 0) & (table.tier[:count] != NO_TIER))
        parts = [
            _Part(table, part, former[part]) for part in np.split(slots, range(AT_ONCE, len(slots), AT_ONCE))
        ]
        if len(parts) == 1:
            parts[0].give_back(keep(parts[0].hashes))
        else:
            self._next(keep, iter(parts))

    def _next(self, keep: Keep, parts: "Iterator[_Part]") -> None:
        part = next(parts, None)
        if part is None:
            return

        def done(kept: NDArray[np.bool_]) -> None:
            part.give_back(kept)
            self._next(keep, parts)

        # If ``keep`` fails, the pages stay marked.
        self._off_loop(partial(keep, part.hashes), done, lambda: None)


class _Part:
    """Some of the marked pages, and the times of validation that they had before."""

    def __init__(self, table: Residents, slots: Slots, former: NDArray[np.float64]) -> None:
        self._table = table
        self._slots = slots
        self._former = former
        self._stamps = table.stamp[slots]
        self.hashes = table.object_hash[slots]

    def give_back(self, kept: NDArray[np.bool_]) -> None:
        """Give the ``kept`` pages their times of validation back. Leave out pages that have changed or were
        checked since.
        """
        table, slots = self._table, self._slots
        same = kept & (table.stamp[slots] == self._stamps) & (table.validated_s[slots] == 0.0)
        table.validated_s[slots[same]] = self._former[same]
