"""How much of a tier is run by recency, for newcomers that did not win a place (design 6.5).

Pure state. Staging makes several reads of one page in quick succession (unaligned ranges, shards,
footers) cost one origin read; where no page is read again soon it only costs places: with 2 % always
reserved, uniform epochs cannot reach 0.99 of the cached fraction. So the share adapts:

- it halves when the staged bytes have turned over 8 times without a hit, and ends at 0;
- it is back in full once pages are missed that a full share would still have held, and so many of them that
  it would save more reads than its places do (docs/adr/0010).

The second rule needs no guess about "soon": it adds up the bytes that passed by, the page's own included. One
such page is no sign: between two shuffled epochs some are read twice in quick succession by chance.
"""

from collections import OrderedDict

_TURNOVERS_WITHOUT_HIT = 8
_SMALLEST_PART = 1 / 64
_GHOSTS = 1024
_EVIDENCE = 4.0


class StagingShare:
    """The share of one tier. ``full_share`` is the policy's ``staging_share``; 0 switches staging off."""

    def __init__(self, full_share: float) -> None:
        self._full_share = full_share
        self._share = full_share
        self._idle_bytes = 0.0
        self._bypassed_bytes = 0.0
        self._evidence = 0.0
        self._ghosts: OrderedDict[int, float] = OrderedDict()

    def share(self) -> float:
        """The part of the tier's capacity to run by recency now, in [0, full_share]."""
        return self._share

    def on_staged(self, size_bytes: int, capacity_bytes: int) -> None:
        """A newcomer of ``size_bytes`` was staged in a tier of ``capacity_bytes``."""
        self._idle_bytes += size_bytes
        if self._idle_bytes >= _TURNOVERS_WITHOUT_HIT * self._share * capacity_bytes:
            self._idle_bytes = 0.0
            self._share /= 2
            if self._share < self._full_share * _SMALLEST_PART:
                self._share = 0.0

    def on_staged_hit(self) -> None:
        """A staged page was read again: staging pays."""
        self._idle_bytes = 0.0

    def on_bypass(self, page_hash: int, size_bytes: int) -> None:
        """A page was served without being stored, or left staging unread."""
        self._ghosts[page_hash] = self._bypassed_bytes
        self._ghosts.move_to_end(page_hash)
        self._bypassed_bytes += size_bytes
        if len(self._ghosts) > _GHOSTS:
            self._ghosts.popitem(last=False)

    def on_miss(self, page_hash: int, capacity_bytes: int) -> bool:
        """Whether a full share would have held this page, as others of late; if so the share is full again.

        Each page that it would have held is one read saved; each miss is set against it as if every place of
        the share had brought a hit, which is the most that it can cost.
        """
        self._evidence = max(self._evidence - self._full_share, 0.0)
        bypassed_at = self._ghosts.pop(page_hash, None)
        if bypassed_at is None or self._bypassed_bytes - bypassed_at > self._full_share * capacity_bytes:
            return False
        self._evidence += 1
        if self._evidence <= _EVIDENCE - 1:
            return False
        self._share = self._full_share
        self._idle_bytes = 0.0
        return self._full_share > 0
