"""A queue of pages with their sizes, of which the baselines are made."""

from collections import OrderedDict


class PageQueue:
    """Pages with their sizes, from the oldest page to the newest. ``bytes``: the sum of the sizes."""

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
