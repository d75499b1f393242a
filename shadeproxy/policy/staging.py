"""Share of a tier that is run by recency, for newcomers that did not win a place (design 6.5).

Pure state. Staging makes several reads of one page in quick succession (unaligned ranges, shards, footers)
cost one origin read. Where no page is read again soon it only costs places: with 2 % always reserved, uniform
epochs cannot reach 0.99 of the cached fraction. So the share adapts. Its hits are compared with the most that
its places could bring otherwise: a share ``s`` of the places brings a share ``s`` of the reads
(docs/adr/0014).

- It grows to the smallest of its steps (2 %, 4 %, ... 64 %) that would have held the pages that are missed
  again, once these are more than its places should have brought, and more than chance.
- It is judged each time that newcomers without room have turned it over four times. A share with fewer
  hits halves, down to nothing; one that had grown shrinks back at once, and needs more evidence next time.

The share needed to hold a page is measured, not guessed: the bytes in the share when the page left it, and
the bytes that passed by since, the page's own included.
"""

from collections import OrderedDict
from math import sqrt

_TURNOVERS = 4
_SMALLEST_PART = 1 / 64
_LARGEST_SHARE = 0.64
_GHOSTS = 1024
_LEAST_EVIDENCE = 4.0
_BEYOND_CHANCE = 2.0  # standard deviations: of n pages by chance sqrt(n) more than expected are read again
_MOST_DOUBT = 64.0


class StagingShare:
    """The share of one tier. ``full_share``: its initial value, a policy's ``staging_share``; 0 switches
    staging off.
    """

    def __init__(self, full_share: float) -> None:
        self._full_share = full_share
        self._share = full_share
        self._steps = _steps(full_share)
        self._evidence = [0.0] * len(self._steps)
        self._noted_tick = 0.0
        self._doubt = 1.0
        """Factor on the evidence needed to grow: it doubles whenever growing did not pay."""
        self._before_trial: float | None = None
        """The share before it grew; None once the growth has paid for itself, or the share shrank."""
        self._tick = 0.0
        self._judged_tick = 0.0
        self._turned_bytes = 0.0
        self._hits = 0
        self._passed_bytes = 0.0
        self._ghosts: OrderedDict[int, tuple[float, int]] = OrderedDict()

    def share(self) -> float:
        """Return the part of the tier's capacity to run by recency now."""
        return self._share

    def on_crowded(self, size_bytes: int, capacity_bytes: int) -> None:
        """Note that a newcomer of ``size_bytes`` found no room in a tier of ``capacity_bytes``: it will be
        staged or bypassed, or displace another page.
        """
        self._turned_bytes += size_bytes
        if self._share and self._turned_bytes >= _TURNOVERS * self._share * capacity_bytes:
            self._judge()

    def on_staged_hit(self, count: int = 1) -> None:
        """Note ``count`` further reads of staged pages."""
        self._hits += count

    def on_bypass(self, page_hash: int, size_bytes: int, *, held_bytes: int = 0) -> None:
        """Note a page served without being stored, or dropped from the share of then ``held_bytes``."""
        self._ghosts[page_hash] = self._passed_bytes - held_bytes, size_bytes
        self._ghosts.move_to_end(page_hash)
        self._passed_bytes += size_bytes
        if len(self._ghosts) > _GHOSTS:
            self._ghosts.popitem(last=False)

    def on_miss(self, page_hash: int, capacity_bytes: int, tick: float) -> bool:
        """Note that read number ``tick`` is of a missing page. Return whether the share, as it is after
        this call, would have held it.
        """
        self._tick = tick
        passed_at, size_bytes = self._ghosts.pop(page_hash, (0.0, 0))
        if not size_bytes or not self._steps:
            return False
        needed = (self._passed_bytes - passed_at) / capacity_bytes
        self._note(needed)
        pages = capacity_bytes / size_bytes
        for step, evidence in zip(self._steps, self._evidence, strict=True):
            enough = self._doubt * max(_LEAST_EVIDENCE, _BEYOND_CHANCE * sqrt(step * pages))
            if step > self._share and evidence > enough - 1:
                self._grow(step)
                break
        return needed <= self._share

    def _note(self, needed: float) -> None:
        """Add a read that the steps from ``needed`` on would have saved. Subtract the hits that their
        places should have brought since the last such read.
        """
        reads = self._tick - self._noted_tick
        self._noted_tick = self._tick
        self._evidence = [
            max(evidence - step * reads, 0.0) + (needed <= step)
            for step, evidence in zip(self._steps, self._evidence, strict=True)
        ]

    def _grow(self, step: float) -> None:
        self._before_trial = self._share
        self._share = step
        self._evidence = [0.0] * len(self._steps)
        self._start_over()

    def _judge(self) -> None:
        if self._hits > self._share * (self._tick - self._judged_tick):
            self._doubt = max(self._doubt / 2, 1.0)
            self._before_trial = None
        elif self._before_trial is not None:
            self._doubt = min(2 * self._doubt, _MOST_DOUBT)
            self._share, self._before_trial = self._before_trial, None
        else:
            self._share /= 2
            if self._share < self._full_share * _SMALLEST_PART:
                self._share = 0.0
        self._start_over()

    def _start_over(self) -> None:
        self._judged_tick = self._tick
        self._turned_bytes = 0.0
        self._hits = 0


def _steps(full_share: float) -> list[float]:
    steps = []
    while 0 < full_share <= _LARGEST_SHARE:
        steps.append(full_share)
        full_share *= 2
    return steps
