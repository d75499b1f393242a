"""ARC: balances recency and frequency, guided by ghosts (Megiddo and Modha, FAST'03, figure 4)."""

from shadeproxy.simulate.baselines.queue import PageQueue


class Arc:
    """Pages that were read once (``_once``, T1), pages that were read more often (``_often``, T2), and the
    ghosts of both (B1, B2).

    ``_target``: how many bytes the pages that were read once should take (p in the paper).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._target = 0.0
        self._once, self._often = PageQueue(), PageQueue()
        self._ghosts_once, self._ghosts_often = PageQueue(), PageQueue()

    @property
    def used_bytes(self) -> int:
        return self._once.bytes + self._often.bytes

    def __contains__(self, page: object) -> bool:
        return page in self._once.pages or page in self._often.pages

    def read(self, page: int, size: int) -> bool:
        """Read a page of ``size`` bytes; return whether it was resident."""
        if page in self._often.pages:
            self._often.pages.move_to_end(page)
            return True
        if page in self._once.pages:
            self._once.remove(page)
            self._often.append(page, size)
            return True
        if size > self._capacity:
            return False
        if page in self._ghosts_once.pages:
            step = max(self._ghosts_often.bytes / self._ghosts_once.bytes, 1.0)
            self._target = min(self._target + step * size, float(self._capacity))
            self._ghosts_once.remove(page)
            self._replace(size, ghost_was_often=False)
            self._often.append(page, size)
        elif page in self._ghosts_often.pages:
            step = max(self._ghosts_once.bytes / self._ghosts_often.bytes, 1.0)
            self._target = max(self._target - step * size, 0.0)
            self._ghosts_often.remove(page)
            self._replace(size, ghost_was_often=True)
            self._often.append(page, size)
        else:
            self._forget(size)
            self._replace(size, ghost_was_often=False)
            self._once.append(page, size)
        return False

    def _replace(self, size: int, *, ghost_was_often: bool) -> None:
        """Evict pages until ``size`` bytes fit. Evicted pages become ghosts."""
        once, often = self._once, self._often
        while once.bytes + often.bytes + size > self._capacity:
            over = once.bytes > self._target or (ghost_was_often and once.bytes == self._target)
            if once.pages and (over or not often.pages):
                self._ghosts_once.append(*once.pop())
            else:
                self._ghosts_often.append(*often.pop())

    def _forget(self, size: int) -> None:
        """Make room in the four lists for a new page: drop ghosts, or the oldest pages of T1 if B1 is empty.

        Afterwards T1, B1 and the new page together are no larger than the cache, and all four lists with the
        new page are no larger than twice the cache.
        """
        once = self._once.bytes + self._ghosts_once.bytes + size
        while once > self._capacity:
            once -= (self._ghosts_once if self._ghosts_once.pages else self._once).pop()[1]
        rest = once + self._often.bytes + self._ghosts_often.bytes
        while rest > 2 * self._capacity:
            rest -= self._ghosts_often.pop()[1]
