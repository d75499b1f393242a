"""Chooses a disk tier for a page that leaves the RAM tier, or that wins no place there.

Laws: plain defs, no I/O. The choice is not a map from pages to disks: two calls may choose different disks
for one page. The index says where a page is, so a new choice never moves a page.

While some disks have free room, each page goes to one of them, in proportion to their read speeds. Reads of
these pages then keep all disks busy for equally long. When all disks are full, pages go to the disks in
proportion to the bytes that each may hold. Then a page stays equally long on each disk.

A page that waits for its disk takes memory. So a disk gets no further page while too many bytes wait for it.
Otherwise a disk that hangs, or writes slowly, would take the memory that reads from the origin need.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from shadeproxy.tiers.tier import Tier

_HASH_BITS = 64
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: a factor that spreads hashes that differ little.
_MASK = (1 << _HASH_BITS) - 1


class DiskChoice:
    """Chooses among the disk tiers, which are all ``tiers`` but the first; the first is the RAM tier.
    ``read_speeds``: a function for each disk. It takes the free room of the disk in bytes, and returns the
    speed in bytes a second, or 0 if the speed is unknown. ``waiting_bytes``: the most bytes of pages that may
    wait for the writes of all disks together. Each disk has an equal part of them, but at least one page.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        read_speeds: Sequence[Callable[[int], float]],
        waiting_bytes: int,
    ) -> None:
        self._disks = list(enumerate(tiers))[1:]
        self._most_waiting_bytes = waiting_bytes // max(len(self._disks), 1)
        self._waiting_bytes = [0] * len(tiers)  # By tier: bytes of the pages that wait for its writes.
        self._read_speeds = read_speeds
        self._speeds = [1.0] * len(self._disks)
        self.speeds: dict[str, int] = {}
        """Known read speeds in bytes a second, by name of tier. Empty before ``measure``."""

    def measure(self) -> None:
        """Get the read speeds of the disks (blocking). A disk of unknown speed gets the mean of the known
        speeds.
        """
        asked = zip(self._read_speeds, self._disks, strict=True)
        # The speed of an only disk changes no choice. It is shown, so it is worth a few reads, but no write.
        alone = len(self._disks) < 2
        speeds = [read_speed(0 if alone else tier.room_bytes) for read_speed, (_, tier) in asked]
        named = zip(self._disks, speeds, strict=True)
        self.speeds = {tier.name: round(speed) for (_, tier), speed in named if speed > 0}
        known = [speed for speed in speeds if speed > 0] or [1.0]
        self._speeds = [speed if speed > 0 else sum(known) / len(known) for speed in speeds]

    def begin_write(self, index: int, record_bytes: int) -> None:
        """Note that a page waits for its write to tier ``index``."""
        self._waiting_bytes[index] += record_bytes

    def end_write(self, index: int, record_bytes: int) -> None:
        """Note that such a write has ended."""
        self._waiting_bytes[index] -= record_bytes

    def _keeps_up(self, index: int, record_bytes: int) -> bool:
        """Return whether one more page may wait for the writes of a disk."""
        waiting_bytes = self._waiting_bytes[index]
        return not waiting_bytes or waiting_bytes + record_bytes <= self._most_waiting_bytes

    def choose(self, object_hash: int, number: int, record_bytes: int) -> int | None:
        """Return the index of the disk tier for page ``number`` of an object; None if no disk takes pages."""
        disks = self._disks
        if len(disks) == 1:
            return disks[0][0] if self._keeps_up(disks[0][0], record_bytes) else None
        able = [
            place
            for place, (index, tier) in enumerate(disks)
            if tier.disabled_reason is None and self._keeps_up(index, record_bytes)
        ]
        if not able:
            return None
        roomy = [place for place in able if disks[place][1].room_bytes >= record_bytes]
        weights = [self._speeds[place] for place in roomy] or [disks[place][1].limit_bytes for place in able]
        ends = list(accumulate(weights))
        point = ((object_hash + number) * _SPREAD & _MASK) / (1 << _HASH_BITS) * ends[-1]
        where = min(bisect_right(ends, point), len(ends) - 1)
        return disks[(roomy or able)[where]][0]
