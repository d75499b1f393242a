"""Pages of one job that were prefetched, or are on their way, and that were not read yet.

Law: a page counts from its start until it is read or fails, or its sample is no longer coming: so neither a
repeated sample nor one that the job leaves out takes room for ever.
"""

from collections import defaultdict

PageKey = tuple[int, int]
"""Object hash and page number."""


class ReadyPages:
    """Unread pages by page, and by the sample that wanted it."""

    def __init__(self) -> None:
        self.bytes = 0
        self._pages: dict[PageKey, tuple[int, int]] = {}  # sample and bytes of each page
        self._of_sample: defaultdict[int, set[PageKey]] = defaultdict(set)

    def add(self, key: PageKey, sample: int, size_bytes: int) -> None:
        """Add a page that is on its way."""
        self.drop(key)
        self._pages[key] = sample, size_bytes
        self._of_sample[sample].add(key)
        self.bytes += size_bytes

    def resize(self, key: PageKey, size_bytes: int) -> None:
        """Set the true length of a page that has come; do nothing when it is not here."""
        known = self._pages.get(key)
        if known is not None:
            sample, guessed_bytes = known
            self._pages[key] = sample, size_bytes
            self.bytes += size_bytes - guessed_bytes

    def drop(self, key: PageKey) -> None:
        """Drop a page that was read, or does not come; do nothing when it is not here."""
        known = self._pages.pop(key, None)
        if known is not None:
            sample, size_bytes = known
            self.bytes -= size_bytes
            self._of_sample[sample].discard(key)
            if not self._of_sample[sample]:
                del self._of_sample[sample]

    def drop_sample(self, sample: int) -> None:
        """Drop the pages of a sample that is no longer coming."""
        for key in list(self._of_sample.get(sample, ())):
            self.drop(key)

    def clear(self) -> None:
        """Drop all pages."""
        self._pages.clear()
        self._of_sample.clear()
        self.bytes = 0
