"""Prefetched pages whose use is yet to come.

Law: such a page is not prefetched again, even if it was evicted meanwhile: its reader fetches it. So a cache
that evicts pages before they are read costs one more read of the origin, but never a third. Bounded, and
forgotten after a while, because announced samples may never be read.
"""

from collections import OrderedDict

from shadeproxy.engine.read.prefetch_port import Need

_MOST = 65_536
_MOST_WAIT_S = 30.0


class FetchedPages:
    """The time at which each page was asked for, by object hash and page number."""

    def __init__(self) -> None:
        self._asked_s: OrderedDict[tuple[int, int], float] = OrderedDict()

    def add(self, need: Need, now_s: float) -> None:
        """Note that the page is on its way."""
        key = (need.object_hash, need.number)
        self._asked_s[key] = now_s
        self._asked_s.move_to_end(key)
        if len(self._asked_s) > _MOST:
            self._asked_s.popitem(last=False)

    def was_wanted(self, hashed: int, number: int) -> None:
        """Forget the page: a reader came for it, or its fetch failed. The next use is another one."""
        self._asked_s.pop((hashed, number), None)

    def awaits(self, need: Need, now_s: float) -> bool:
        """Return whether the page was fetched lately, and its reader has not come yet."""
        asked_s = self._asked_s.get((need.object_hash, need.number))
        return asked_s is not None and now_s - asked_s < _MOST_WAIT_S

    def clear(self) -> None:
        """Forget all pages."""
        self._asked_s.clear()
