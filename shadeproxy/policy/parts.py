"""Whether pages of which a part is read are soon read again, by group (a prefix).

Pure state. A page that wins no place costs the fewest bytes when each reader gets the part that it asked for,
unless the next part is asked for while the staging share still holds the page: then the whole at once is
cheaper. Counted are visits: the first read of a part of a page, and whether a second one followed while the
share held the page, or would have held it. Where nothing was counted no second read is expected.
"""

from collections import OrderedDict

_VISITS = 256  # how many the averages remember; many more than there are readers, who begin before they go on
_MOST_BEGUN = 1024
_SURE = 0.9  # a second request costs more than the bytes that the few single reads waste


class PartReads:
    """Averages by group, and the visits whose second read is awaited."""

    def __init__(self) -> None:
        self._begun: OrderedDict[int, int] = OrderedDict()  # page hash -> group
        self._visits: dict[int, float] = {}
        self._again: dict[int, float] = {}

    @property
    def awaits(self) -> bool:
        """Whether any visit has begun, so that ``on_again`` matters."""
        return bool(self._begun)

    def on_first(self, page_hash: int, group: int) -> None:
        """A part of a page was read that no share would have held."""
        keep = 1 - 1 / _VISITS
        self._visits[group] = self._visits.get(group, 0.0) * keep + 1
        self._again[group] = self._again.get(group, 0.0) * keep
        self._begun[page_hash] = group
        self._begun.move_to_end(page_hash)
        if len(self._begun) > _MOST_BEGUN:
            self._begun.popitem(last=False)

    def on_again(self, page_hash: int) -> None:
        """The page was read again soon; counted once a visit."""
        group = self._begun.pop(page_hash, None)
        if group is not None:
            self._again[group] += 1

    def whole_pays(self, group: int, part: float) -> bool:
        """Whether the whole page at its first read takes fewer bytes than this ``part`` of it (0 to 1), and
        then the whole where a second read follows.
        """
        visits = self._visits.get(group, 0.0)
        return visits > 0 and self._again[group] / visits >= min(1 - part, _SURE)
