"""SIEVE: one queue of pages, one bit for each page, and a hand that looks for victims (Zhang et al., NSDI'24,
algorithm 1).
"""

_END = -1


class Sieve:
    """Keeps pages in the order of admission. Looking for a page to evict, the hand moves from the oldest page
    to the newest.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self.used_bytes = 0
        self._sizes: dict[int, int] = {}
        self._visited: dict[int, bool] = {}
        # The two dicts are a doubly linked list. ``_END`` lies between the newest page and the oldest one, so
        # that the list is a ring.
        self._newer: dict[int, int] = {_END: _END}
        self._older: dict[int, int] = {_END: _END}
        self._hand = _END

    def __contains__(self, page: object) -> bool:
        return page in self._visited

    def read(self, page: int, size: int) -> bool:
        """Read a page of ``size`` bytes; return whether it was resident."""
        if page in self._visited:
            self._visited[page] = True
            return True
        if size > self._capacity:
            return False
        while self.used_bytes + size > self._capacity:
            self._evict()
        newest = self._older[_END]
        self._newer[newest] = self._older[_END] = page
        self._newer[page], self._older[page] = _END, newest
        self._visited[page], self._sizes[page] = False, size
        self.used_bytes += size
        return False

    def _evict(self) -> None:
        newer, visited, page = self._newer, self._visited, self._hand
        if page == _END:
            page = newer[_END]
        while visited[page]:
            visited[page] = False
            page = newer[page]
            if page == _END:
                page = newer[_END]
        following, before = newer.pop(page), self._older.pop(page)
        newer[before], self._older[following] = following, before
        self._hand = following
        del visited[page]
        self.used_bytes -= self._sizes.pop(page)
