"""Learns whether the readers of parts of a page go on to read much of the page, for each prefix group.

The first reads of a page's parts are *alone*: each costs its own bytes and a request. They are counted until
they show that the page is *dense*: its distinct parts cost a quarter of the page. A group is dense if its
latest pages were. Laws: plain state of bounded size; the decision needs no clock.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from shadeproxy.core.types import Span

REQUEST_BYTES = 64 * 1024
"""A request costs about as much as this many bytes."""

_DENSE_SHARE = 1 / 4
# Parts that are read again and again alone may cost this many pages, then the page is fetched.
_MOST_PAGES = 4
_MOST_VISITS = 4096
_LEARNING = 1 / 4
_IS_DENSE = 0.5
_EXPLORED = 16  # In a dense group, the parts of one page in so many are still counted.


@dataclass(slots=True, eq=False)
class _Visit:
    """The reads alone of a page's parts. ``parts_bytes``: the cost of distinct parts, by their starts.
    ``repeated``: True once a part was read again, or the page was found not to be dense.
    """

    group: int
    cost_bytes: int = 0
    parts_bytes: int = 0
    starts: set[int] = field(default_factory=set)
    repeated: bool = False


class PageDensity:
    """Counts reads of parts alone, and learns from them which prefix groups are dense."""

    def __init__(self) -> None:
        self._visits: OrderedDict[int, _Visit] = OrderedDict()  # By page hash, latest last.
        self._dense: dict[int, float] = {}

    def reads_alone(self, page: int, group: int, *, page_bytes: int, part: Span) -> bool:
        """Return whether to fetch ``part`` of a page alone; False: fetch the whole page. Count the read."""
        visit = self._visits.get(page)
        if visit is None:
            if page % _EXPLORED and self._dense.get(group, 0.0) >= _IS_DENSE:
                return False
            visit = self._visits[page] = _Visit(group)
            if len(self._visits) > _MOST_VISITS:
                _, oldest = self._visits.popitem(last=False)
                self._note_sparse(oldest)
        self._visits.move_to_end(page)
        cost_bytes = part.length + REQUEST_BYTES
        visit.cost_bytes += cost_bytes
        if part.start in visit.starts:
            # The page is read a second time, and its first reads did not go on to more of it.
            self._note_sparse(visit)
        elif not visit.repeated:
            visit.parts_bytes += cost_bytes
            visit.starts.add(part.start)
        is_dense = len(visit.starts) > 1 and visit.parts_bytes >= _DENSE_SHARE * page_bytes
        if is_dense:
            self._learn(group, 1.0)
        if is_dense or visit.cost_bytes >= _MOST_PAGES * page_bytes:
            del self._visits[page]
            return False
        return True

    def _note_sparse(self, visit: _Visit) -> None:
        if not visit.repeated:
            visit.repeated = True
            self._learn(visit.group, 0.0)

    def _learn(self, group: int, dense: float) -> None:
        before = self._dense.get(group, 0.0)
        self._dense[group] = before + _LEARNING * (dense - before)
