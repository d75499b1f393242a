"""``GuessAccuracy``: learns whether guessed pages are read before they leave the cache.

In a full cache a guessed page takes the place of another one. If its reader goes elsewhere, both fetches were
in vain. Readers of row groups or of archive members in random order look like readers in a row for a moment,
again and again. So the right and wrong guesses of each prefix group are counted. A guess is right if its page
has had so many hits that they repay the fetch; one hit can be a coincidence. If a group's latest guesses were
mostly wrong, only one page in eight is still guessed. These guesses show when the readers change. Laws: plain
state of bounded size; no clock.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.prefetch.fetched import PageKey

_FIRST = 7 / 8  # Three wrong guesses in a row show that the guesses of a new group are wrong.
_LEAST = 3 / 4
_LEARNING = 1 / 16
_EXPLORED = 8
_MOST_OPEN = 1024
_LOOKED_AT = 4


class GuessAccuracy:
    """The share of right guesses by prefix group."""

    def __init__(self) -> None:
        self._right: dict[int, float] = {}
        # By guess that is not judged yet: its group, and how many hits repay it.
        self._open: OrderedDict[PageKey, tuple[int, int]] = OrderedDict()

    def trusts(self, page: PageKey, group: int) -> bool:
        """Return whether to fetch a guessed page of ``group``."""
        return self._right.get(group, _FIRST) >= _LEAST or not page_hash(*page) % _EXPLORED

    def note_fetched(
        self, page: PageKey, group: int, hits: int, hits_of: Callable[[PageKey], int | None], *, read: bool
    ) -> None:
        """Record a fetched guess, and judge earlier ones. ``hits``: how many hits repay the fetch.
        ``hits_of``: returns the hits of a page; None if it has left the cache. It is called for a few pages.
        ``read``: True if a reader has asked for the page already.
        """
        if read:
            self._learn(group, 1.0)
            return
        self._open[page] = group, hits
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        for key in list(islice(self._open, _LOOKED_AT)):
            of_group, needed = self._open[key]
            found = hits_of(key)
            if found is None or found >= needed:
                del self._open[key]
                self._learn(of_group, 0.0 if found is None else 1.0)
            else:
                self._open.move_to_end(key)

    def _learn(self, group: int, right: float) -> None:
        before = self._right.get(group, _FIRST)
        self._right[group] = before + _LEARNING * (right - before)
