"""Places of pages in one order: where the job reads each page next.

Law: the place of a page is the earliest place of its samples. A read of a sample makes the places of its
pages stale. ``find`` computes a stale place again.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.datasets import Hashes
from shadeproxy.hints.order.build import OrderColumns
from shadeproxy.hints.order.lookup import Lookup
from shadeproxy.hints.order.sequence import NEVER, Places


class PagePlaces:
    """The places of the pages of one dataset, in the announced order that ``columns`` describes."""

    def __init__(self, lookup: Lookup, columns: OrderColumns) -> None:
        self._lookup = lookup
        self._columns = columns
        self._stale = np.zeros(len(columns.page_next), dtype=np.bool_)

    def touch(self, ids: NDArray[np.integer]) -> None:
        """Note that the next places of samples have changed."""
        if len(self._stale):
            self._stale[self._lookup.pages_of(ids)] = True

    def find(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Places:
        """Return the place of each page's next announced read, or NEVER: i32[k]."""
        columns, places = self._columns, np.full(len(object_hashes), NEVER, dtype=np.int32)
        objects = self._lookup.find_objects(object_hashes)
        if objects is not None:
            places = np.where(objects < 0, np.int32(NEVER), columns.next_at[objects])
        if not self._lookup.pages:
            return places
        for found in self._lookup.find_pages(object_hashes, numbers):
            stale = found[self._stale[found] & (found >= 0)]
            if len(stale):
                self._lookup.renew(columns.page_next, np.unique(stale), columns.next_at)
                self._stale[stale] = False
            of_pages = np.where(found < 0, np.int32(NEVER), columns.page_next[found])
            places = np.minimum(places, of_pages)
        return places
