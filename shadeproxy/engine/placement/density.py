"""Learns whether the readers of parts of a page go on to read most of the page, for each prefix group.

The first reads of a page's parts are *alone*: each costs its own bytes and a request. They are counted until
they show that the page is *dense*: parts follow one another closely, as readers in a row and readers of all
samples of a shard leave them, or they cost as much as the page. A group is dense if its latest pages were.

Without free room, a fetched page displaces others, and is soon displaced itself. Its fetch is repaid only if
the reads of its parts in that time would cost as much. So groups are learnt separately for pages without free
room. For these, close parts are no sign, and older reads do not count. Laws: plain state of bounded size; the
decision needs no clock.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from shadeproxy.core.types import Span

REQUEST_BYTES = 64 * 1024
"""A request costs about as much as this many bytes."""

LEAST_SHARE = 1 / 8
"""Readers in a row are believed once their reads of a page have cost this share of it."""

_CLOSE_PARTS = 2
# The share that is needed if at most half of the parts are close to another one. Random reads of all samples
# of a page have cost about that much when their second part is close to another. Reads of some columns have
# close parts earlier, because the columns of a group of rows are neighbours.
_SCATTERED_SHARE = 3 / 8
# Parts that are read again and again alone may cost this many pages, then the page is fetched. Parts that are
# not stored are read again in each epoch.
_MOST_PAGES, _MOST_PAGES_UNSTORED = 4, 1
_MOST_VISITS, _MOST_PARTS = 2048, 64
_LEARNING = 1 / 4
_IS_DENSE = 0.5
_EXPLORED = 64  # In a dense group, the parts of one page in so many are still counted.


@dataclass(slots=True, eq=False)
class _Visit:
    """The reads alone of a page's parts. ``kind``: the group, and whether the page has no free room.
    ``began_bytes``: the bytes of all reads before. ``explored``: True if close parts do not suffice.
    ``parts``: the first distinct parts. ``parts_bytes``: their cost. ``close``: how many of them lie close to
    another one. ``over``: True once a part was read again, or the page was found not to be dense.
    """

    kind: tuple[int, bool]
    began_bytes: int
    explored: bool
    cost_bytes: int = 0
    parts_bytes: int = 0
    close: int = 0
    parts: list[Span] = field(default_factory=list)
    over: bool = False

    def note(self, part: Span) -> bool:
        """Count a read of ``part``. Return True if the page was read to here before."""
        cost_bytes = part.length + REQUEST_BYTES
        self.cost_bytes += cost_bytes
        if self.over or part in self.parts:
            return True
        gap = part.length // 2
        self.close += any(one.start <= part.stop + gap and part.start <= one.stop + gap for one in self.parts)
        self.parts_bytes += cost_bytes
        if len(self.parts) < _MOST_PARTS:
            self.parts.append(part)
        return False

    def is_dense(self, page_bytes: int) -> bool:
        """Return whether the parts so far show that most of the page will be read."""
        share: float = 1
        if not self.explored and self.close >= _CLOSE_PARTS:
            in_a_row = self.close * 2 > len(self.parts)
            share = LEAST_SHARE if in_a_row else _SCATTERED_SHARE
        return len(self.parts) > 1 and self.parts_bytes >= page_bytes * share


class PageDensity:
    """Counts reads of parts alone, and learns from them which prefix groups are dense. ``capacity_bytes``:
    the capacity of the cache.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._read_bytes = 0
        self._visits: OrderedDict[int, _Visit] = OrderedDict()  # By page hash, latest last.
        self._dense: dict[tuple[int, bool], float] = {}

    def reads_alone(
        self, page: int, group: int, *, page_bytes: int, part: Span, stored: bool, full: bool
    ) -> bool:
        """Return whether to fetch ``part`` of a page alone; False: fetch the whole page. Count the read.
        ``stored``: whether the part can be stored alone. ``full``: whether the page has no free room.
        """
        is_alone = self._reads_alone(page, (group, full), page_bytes, part, stored=stored)
        self._read_bytes += part.length if is_alone else page_bytes
        return is_alone

    def forget(self, page: int) -> None:
        """Forget the reads of a page's parts, because the page was fetched whole for another reason. Its
        later reads are hits, so those that were counted say nothing about the group.
        """
        self._visits.pop(page, None)

    def _reads_alone(
        self, page: int, kind: tuple[int, bool], page_bytes: int, part: Span, *, stored: bool
    ) -> bool:
        visit = self._visits.get(page)
        if visit is not None and kind[1]:
            if visit.kind != kind:
                # The cache has filled since the first parts were read. Close parts do not suffice any more.
                visit.kind, visit.explored, visit.began_bytes = kind, True, self._read_bytes
            elif self._read_bytes - visit.began_bytes > self._capacity_bytes:
                # If the first read had fetched the page, the page would have left the cache by now.
                self._note_sparse(visit)
                visit = None
        if visit is None:
            dense = self._dense.get(kind, 0.0) >= _IS_DENSE
            if dense and page % _EXPLORED:
                return False
            visit = self._visits[page] = _Visit(kind, self._read_bytes, explored=dense or kind[1])
            if len(self._visits) > _MOST_VISITS:
                _, oldest = self._visits.popitem(last=False)
                self._note_sparse(oldest)
        self._visits.move_to_end(page)
        if visit.note(part):
            # The page is read a second time, and its first reads did not go on to more of it.
            self._note_sparse(visit)
        elif visit.is_dense(page_bytes):
            self._learn(kind, 1.0)
            del self._visits[page]
            # Most of the page has been read. Without free room, the rest does not repay a fetch.
            return kind[1]
        if visit.cost_bytes >= page_bytes * (_MOST_PAGES if stored else _MOST_PAGES_UNSTORED):
            del self._visits[page]
            return False
        return True

    def _note_sparse(self, visit: _Visit) -> None:
        if not visit.over:
            visit.over = True
            self._learn(visit.kind, 0.0)

    def _learn(self, kind: tuple[int, bool], dense: float) -> None:
        before = self._dense.get(kind, 0.0)
        self._dense[kind] = before + _LEARNING * (dense - before)
