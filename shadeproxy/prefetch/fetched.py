"""Pages that were fetched ahead for a use that is yet to come.

Law: such a page is not fetched ahead again, though it left its tier meanwhile: its reader fetches it. So a
cache in which pages leave before they are read costs one read of the origin more, and no third. Bounded, and
forgotten after a while, because what was announced may never be read.
"""

from collections import OrderedDict

from shadeproxy.engine.ahead import Need

_MOST = 65_536
_AWAITED_S = 30.0


class FetchedPages:
    """By object hash and page number, when each was asked for."""

    def __init__(self) -> None:
        self._asked_s: OrderedDict[tuple[int, int], float] = OrderedDict()

    def add(self, need: Need, now_s: float) -> None:
        """It is on its way."""
        key = (need.object_hash, need.number)
        self._asked_s[key] = now_s
        self._asked_s.move_to_end(key)
        if len(self._asked_s) > _MOST:
            self._asked_s.popitem(last=False)

    def was_wanted(self, hashed: int, number: int) -> None:
        """A reader came for it, or it never came: the next use is another one."""
        self._asked_s.pop((hashed, number), None)

    def awaits(self, need: Need, now_s: float) -> bool:
        """Whether it was fetched lately, and its reader has not come yet."""
        asked_s = self._asked_s.get((need.object_hash, need.number))
        return asked_s is not None and now_s - asked_s < _AWAITED_S

    def clear(self) -> None:
        """Nothing is awaited any more."""
        self._asked_s.clear()
