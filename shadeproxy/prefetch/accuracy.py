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
        self.open: OrderedDict[PageKey, tuple[int, int]] = OrderedDict()
        """Guesses that are not judged yet, each with its group, and how many hits repay it."""

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
        self.open[page] = group, hits
        if len(self.open) > _MOST_OPEN:
            self.open.popitem(last=False)
        self._judge(hits_of)

    def note_read(self, page: PageKey, hits_of: Callable[[PageKey], int | None]) -> None:
        """Record the first read of a page, and judge earlier guesses. Their readers may be done with them, so
        the next page that comes may displace them. ``hits_of``: as for ``note_fetched``.
        """
        if page in self.open:
            group, needed = self.open[page]
            if needed <= 1:
                del self.open[page]
                self._learn(group, 1.0)
            self._judge(hits_of)

    def note_missed(self, page: PageKey) -> None:
        """Record that a reader wants a page that is not resident: if it was guessed, it has left."""
        if page in self.open:
            group, _ = self.open.pop(page)
            self._learn(group, 0.0)

    def _judge(self, hits_of: Callable[[PageKey], int | None]) -> None:
        """Judge some of the guesses that are repaid, or have left the cache."""
        for key in list(islice(self.open, _LOOKED_AT)):
            of_group, needed = self.open[key]
            found = hits_of(key)
            if found is None or found >= needed:
                del self.open[key]
                self._learn(of_group, 0.0 if found is None else 1.0)
            else:
                self.open.move_to_end(key)

    def _learn(self, group: int, right: float) -> None:
        before = self._right.get(group, _FIRST)
        self._right[group] = before + _LEARNING * (right - before)
