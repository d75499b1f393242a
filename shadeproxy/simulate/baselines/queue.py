"""A queue of pages with their sizes, from which the baselines are built."""

from collections import OrderedDict


class PageQueue:
    """Pages and their sizes; the oldest page is first. ``bytes``: the sum of the sizes."""

    def __init__(self) -> None:
        self.pages = OrderedDict[int, int]()
        self.bytes = 0

    def append(self, page: int, size: int) -> None:
        self.pages[page] = size
        self.bytes += size

    def remove(self, page: int) -> int:
        """Remove a page; return its size."""
        size = self.pages.pop(page)
        self.bytes -= size
        return size

    def pop(self) -> tuple[int, int]:
        """Remove the oldest page; return it and its size."""
        page, size = self.pages.popitem(last=False)
        self.bytes -= size
        return page, size
