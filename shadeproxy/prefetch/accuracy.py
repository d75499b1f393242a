"""``GuessAccuracy``: learns whether guessed pages are read before they leave the cache.

In a full cache a guessed page takes the place of another one. If its reader goes elsewhere, both fetches were
in vain. Readers of row groups or of archive members in random order look like readers in a row for a moment,
again and again. So the right and wrong guesses of each prefix group are counted. If a group's latest guesses
were mostly wrong, only one page in eight is still guessed. These guesses show when the readers change. Laws:
plain state of bounded size; no clock.
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
_MOST_UNREAD = 1024
_LOOKED_AT = 4


class GuessAccuracy:
    """The share of right guesses by prefix group. A guess is right if a reader asked for the page before it
    left the cache.
    """

    def __init__(self) -> None:
        self._right: dict[int, float] = {}
        self._unread: OrderedDict[PageKey, int] = OrderedDict()  # By unread guess: its group.

    def trusts(self, page: PageKey, group: int) -> bool:
        """Return whether to fetch a guessed page of ``group``."""
        return self._right.get(group, _FIRST) >= _LEAST or not page_hash(*page) % _EXPLORED

    def note_fetched(
        self, page: PageKey, group: int, is_resident: Callable[[PageKey], bool], *, read: bool
    ) -> None:
        """Record a fetched guess, and judge earlier ones that have left the cache. ``is_resident``: called
        for a few pages. ``read``: True if a reader has asked for the page already.
        """
        if read:
            self._learn(group, 1.0)
            return
        self._unread[page] = group
        if len(self._unread) > _MOST_UNREAD:
            self._unread.popitem(last=False)
        for key in list(islice(self._unread, _LOOKED_AT)):
            if is_resident(key):
                self._unread.move_to_end(key)
            else:
                self._learn(self._unread.pop(key), 0.0)

    def note_read(self, page: PageKey) -> None:
        """Record that a reader asked for a page. Do nothing if the page is no unread guess."""
        if (group := self._unread.pop(page, None)) is not None:
            self._learn(group, 1.0)

    def _learn(self, group: int, right: float) -> None:
        before = self._right.get(group, _FIRST)
        self._right[group] = before + _LEARNING * (right - before)
