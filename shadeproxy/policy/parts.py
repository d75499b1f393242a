"""Estimates by group (a prefix) if pages that are read in part are soon read again.

Pure state. A page that wins no place costs the fewest bytes when each reader gets only its part. But if the
next part is read while the staging share still holds the page, fetching the whole page at once is cheaper.
Visits are counted: the first read of a part of a page, and a second one while the share held the page, or
would have held it. Without counts no second read is expected.
"""

from collections import OrderedDict

_VISITS = 256  # visits that the averages remember; many more than readers, which begin before they go on
_MOST_BEGUN = 1024
_SURE = 0.9  # a second request costs more than the bytes that the few single reads waste


class PartReads:
    """Averages by group, and the visits that may still get a second read."""

    def __init__(self) -> None:
        self._begun: OrderedDict[int, int] = OrderedDict()  # page hash -> group
        self._visits: dict[int, float] = {}
        self._again: dict[int, float] = {}

    @property
    def awaits(self) -> bool:
        """True if any visit has begun, so that ``on_again`` matters."""
        return bool(self._begun)

    def on_first(self, page_hash: int, group: int) -> None:
        """Note the first read of a part of a page that no share would have held."""
        keep = 1 - 1 / _VISITS
        self._visits[group] = self._visits.get(group, 0.0) * keep + 1
        self._again[group] = self._again.get(group, 0.0) * keep
        self._begun[page_hash] = group
        self._begun.move_to_end(page_hash)
        if len(self._begun) > _MOST_BEGUN:
            self._begun.popitem(last=False)

    def on_again(self, page_hash: int) -> None:
        """Note that the page was soon read again; counted once a visit."""
        group = self._begun.pop(page_hash, None)
        if group is not None:
            self._again[group] += 1

    def whole_pays(self, group: int, part: float) -> bool:
        """Return whether fetching the whole page takes fewer bytes than this ``part`` of it (0 to 1), and
        the whole for each second read.
        """
        visits = self._visits.get(group, 0.0)
        return visits > 0 and self._again[group] / visits >= min(1 - part, _SURE)
