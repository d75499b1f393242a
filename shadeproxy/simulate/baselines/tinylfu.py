"""W-TinyLFU: an LRU window, and behind it a main part with admission by frequency (Einziger et al., ACM TOS
2017; Caffeine).

The constants are Caffeine's: the window takes 1 % of the cache; 80 % of the rest is protected; counters have
4 bits. Unlike Caffeine's window, this one does not adapt its size. The sketch has a doorkeeper, as in the
paper, which raises the hit ratio on Zipf traces by 0.2 to 0.7 points.
"""

from shadeproxy.simulate.baselines.queue import PageQueue

_WINDOW_SHARE = 0.01
_PROTECTED_SHARE = 0.8
_ROWS = 4
_COUNTERS_A_PAGE = 16
_FEWEST_PAGES = 16
_MOST = 15
_SAMPLE = 10
_HALF = bytes(count >> 1 for count in range(256))
_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio.
_64_BITS = (1 << 64) - 1


class WTinyLfu:
    """A window (LRU) for new pages, and a main part (segmented LRU). A page that leaves the window enters the
    main part if it was read more often than each page that it displaces. ``pages``: about how many pages fit
    into the cache.
    """

    def __init__(self, capacity_bytes: int, pages: int) -> None:
        self._capacity = capacity_bytes
        main_bytes = int(capacity_bytes * (1 - _WINDOW_SHARE))
        self._window_most = capacity_bytes - main_bytes
        self._protected_most = int(main_bytes * _PROTECTED_SHARE)
        self._window, self._probation, self._protected = PageQueue(), PageQueue(), PageQueue()
        self._frequencies = FrequencySketch(pages)

    @property
    def used_bytes(self) -> int:
        return self._window.bytes + self._probation.bytes + self._protected.bytes

    def __contains__(self, page: object) -> bool:
        return any(page in one.pages for one in (self._window, self._probation, self._protected))

    def read(self, page: int, size: int) -> bool:
        """Read a page of ``size`` bytes; return whether it was resident."""
        self._frequencies.add(page)
        if page in self._protected.pages:
            self._protected.pages.move_to_end(page)
            return True
        if page in self._window.pages:
            self._window.pages.move_to_end(page)
            return True
        if page in self._probation.pages:
            self._protect(page)
            return True
        if size > self._capacity:
            return False
        if size > self._window_most:
            self._admit(page, size)
            return False
        self._window.append(page, size)
        while self._window.bytes > self._window_most:
            self._admit(*self._window.pop())
        # A large page that was admitted may have taken the window's share of the cache as well.
        while self.used_bytes > self._capacity:
            self._victims().pop()
        return False

    def _protect(self, page: int) -> None:
        protected, probation = self._protected, self._probation
        protected.append(page, probation.remove(page))
        while protected.bytes > self._protected_most:
            probation.append(*protected.pop())

    def _admit(self, page: int, size: int) -> None:
        """Put a page into the main part if it was read more often than each page that must leave for it.
        Otherwise keep it out.
        """
        frequency = self._frequencies.of
        candidate = frequency(page)
        while self.used_bytes + size > self._capacity:
            queue = self._victims()
            if candidate <= frequency(next(iter(queue.pages))):
                return
            queue.pop()
        self._probation.append(page, size)

    def _victims(self) -> PageQueue:
        """Return the queue whose oldest page is the next victim."""
        if self._probation.pages:
            return self._probation
        return self._protected if self._protected.pages else self._window


class FrequencySketch:
    """A count-min sketch of 4 rows, which counts the recent reads of pages approximately. ``pages``: about
    how many pages fit into the cache.

    All counts are halved after ``10 * pages`` increments, as in Caffeine.
    """

    def __init__(self, pages: int) -> None:
        pages = max(pages, _FEWEST_PAGES)
        self._width = 1 << (_COUNTERS_A_PAGE // _ROWS * pages - 1).bit_length()
        self._counters = bytearray(_ROWS * self._width)
        self._places: dict[int, tuple[int, int, int, int]] = {}
        self._most_increments = _SAMPLE * pages
        self._increments = 0
        self._door = set[int]()

    def add(self, page: int) -> None:
        """Count a read of a page. After a halving, only the doorkeeper records the first read of each
        page.
        """
        if page not in self._door:
            self._door.add(page)
            return
        counters = self._counters
        first, second, third, fourth = self._places.get(page) or self._place(page)
        if min(counters[first], counters[second], counters[third], counters[fourth]) < _MOST:
            self._increments += 1
        # These lines are repeated four times, because a loop takes twice as long.
        if counters[first] < _MOST:
            counters[first] += 1
        if counters[second] < _MOST:
            counters[second] += 1
        if counters[third] < _MOST:
            counters[third] += 1
        if counters[fourth] < _MOST:
            counters[fourth] += 1
        if self._increments >= self._most_increments:
            self._counters = counters.translate(_HALF)
            self._increments //= 2
            self._door.clear()

    def of(self, page: int) -> int:
        """Return about how often a page was read recently."""
        counters = self._counters
        first, second, third, fourth = self._places.get(page) or self._place(page)
        least = min(counters[first], counters[second], counters[third], counters[fourth])
        return least + (page in self._door)

    def _place(self, page: int) -> tuple[int, int, int, int]:
        """Return the index of the page's counter in each row, by double hashing. Results are kept, because
        the hashing is the slowest step of a read.
        """
        hashed = page * _MULTIPLIER & _64_BITS
        step, at, width = hashed >> 17 | 1, hashed >> 31, self._width
        first, second, third, fourth = ((at + row * step) % width + row * width for row in range(_ROWS))
        self._places[page] = first, second, third, fourth
        return first, second, third, fourth
