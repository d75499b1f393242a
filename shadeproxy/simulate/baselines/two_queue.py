"""2Q: a queue for pages that were read once, and an LRU list for the others (Johnson and Shasha, VLDB'94).

This is the paper's full version, with its constants: Kin (``_new``) takes a quarter of the cache, and Kout
(the ghosts) has half as many bytes as the cache.
"""

from shadeproxy.simulate.baselines.queue import PageQueue

_IN_SHARE = 0.25
_OUT_SHARE = 0.5


class TwoQueue:
    """New pages (``_new``, A1in), their ghosts (A1out), and pages that were read again while they were ghosts
    (``_main``, Am).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._new_most = _IN_SHARE * capacity_bytes
        self._ghosts_most = _OUT_SHARE * capacity_bytes
        self._new, self._ghosts, self._main = PageQueue(), PageQueue(), PageQueue()

    @property
    def used_bytes(self) -> int:
        return self._new.bytes + self._main.bytes

    def __contains__(self, page: object) -> bool:
        return page in self._new.pages or page in self._main.pages

    def read(self, page: int, size: int) -> bool:
        """Read a page of ``size`` bytes; return whether it was resident."""
        if page in self._main.pages:
            self._main.pages.move_to_end(page)
            return True
        if page in self._new.pages:
            return True
        if size > self._capacity:
            return False
        # Look among the ghosts before evicting: an eviction may drop the ghost of this very page.
        queue = self._main if page in self._ghosts.pages else self._new
        if queue is self._main:
            self._ghosts.remove(page)
        while self.used_bytes + size > self._capacity:
            self._evict()
        queue.append(page, size)
        return False

    def _evict(self) -> None:
        if self._new.pages and (self._new.bytes > self._new_most or not self._main.pages):
            self._ghosts.append(*self._new.pop())
            while self._ghosts.bytes > self._ghosts_most:
                self._ghosts.pop()
        else:
            self._main.pop()
