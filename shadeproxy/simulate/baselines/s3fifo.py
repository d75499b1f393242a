"""S3-FIFO: three queues, of which the small one filters out pages that are read only once (Yang et al.,
SOSP'23, algorithm 1).

The constants are the paper's: the small queue takes a tenth of the cache, and a page has a counter of two
bits. In the paper there are as many ghosts as the main queue can have pages; here the ghosts have as many
bytes as the main queue.
"""

from shadeproxy.simulate.baselines.queue import PageQueue

_SMALL_SHARE = 0.1
_MOST_USES = 3
_PROMOTED_ABOVE = 1


class S3Fifo:
    """A small queue for new pages, a main queue for pages that were read again, and ghosts of pages from the
    small queue.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._small_least = _SMALL_SHARE * capacity_bytes
        self._main_most = capacity_bytes - self._small_least
        self._uses: dict[int, int] = {}
        self._small, self._main, self._ghosts = PageQueue(), PageQueue(), PageQueue()

    @property
    def used_bytes(self) -> int:
        return self._small.bytes + self._main.bytes

    def __contains__(self, page: object) -> bool:
        return page in self._uses

    def read(self, page: int, size: int) -> bool:
        """Read a page of ``size`` bytes; return whether it was resident."""
        uses = self._uses
        if page in uses:
            if uses[page] < _MOST_USES:
                uses[page] += 1
            return True
        if size > self._capacity:
            return False
        small, main = self._small, self._main
        while small.bytes + main.bytes + size > self._capacity:
            if small.pages and (small.bytes >= self._small_least or not main.pages):
                self._evict_from_small()
            else:
                self._evict_from_main()
        if page in self._ghosts.pages:
            self._ghosts.remove(page)
            main.append(page, size)
        else:
            small.append(page, size)
        uses[page] = 0
        return False

    def _evict_from_small(self) -> None:
        """Evict the oldest page that was read again at most once. Move the older pages, which were read more
        often, to the main queue.
        """
        uses, ghosts = self._uses, self._ghosts
        while self._small.pages:
            page, size = self._small.pop()
            if uses[page] <= _PROMOTED_ABOVE:
                del uses[page]
                ghosts.append(page, size)
                while ghosts.bytes > self._main_most:
                    ghosts.pop()
                return
            uses[page] = 0
            self._main.append(page, size)
            if self._main.bytes > self._main_most:
                self._evict_from_main()

    def _evict_from_main(self) -> None:
        pages, uses = self._main.pages, self._uses
        while pages:
            page = next(iter(pages))
            if not uses[page]:
                del uses[page]
                self._main.pop()
                return
            uses[page] -= 1
            pages.move_to_end(page)
