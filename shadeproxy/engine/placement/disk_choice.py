"""Chooses the disk tier of a page that leaves the RAM tier, or that wins no place there.

Laws: plain defs, no I/O. The index says where a page is, not the choice. So a choice never moves a page, and
two calls may choose different disks for one page.

While some disk has free room, pages are dealt to the disks with room, in proportion to their read speeds:
reads of these pages then take equally long at each disk. When all disks are full, pages are dealt in
proportion to the bytes that each disk may hold: a page then stays equally long on each.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from shadeproxy.tiers.tier import Tier

_HASH_BITS = 64
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: multiplying by it spreads hashes that differ little.
_MASK = (1 << _HASH_BITS) - 1


class DiskChoice:
    """Chooses among the disk tiers of ``tiers``, which begins with the RAM tier. ``read_speeds``: for each
    disk, a function from its free room in bytes to its speed in bytes a second, or to 0 if the speed is
    unknown.
    """

    def __init__(self, tiers: Sequence[Tier], read_speeds: Sequence[Callable[[int], float]]) -> None:
        self._disks = list(enumerate(tiers))[1:]
        self._read_speeds = read_speeds
        self._speeds = [1.0] * len(self._disks)
        self.speeds: dict[str, int] = {}
        """Known read speeds, in bytes a second, by name of tier. Empty before ``measure``, and with a single
        disk.
        """

    def measure(self) -> None:
        """Ask for the read speeds (blocking). A single disk needs none. A disk of unknown speed gets the mean
        of the known speeds.
        """
        if len(self._disks) < 2:
            return
        asked = zip(self._read_speeds, self._disks, strict=True)
        speeds = [read_speed(_room_bytes(tier)) for read_speed, (_, tier) in asked]
        named = zip(self._disks, speeds, strict=True)
        self.speeds = {tier.name: round(speed) for (_, tier), speed in named if speed > 0}
        known = [speed for speed in speeds if speed > 0] or [1.0]
        self._speeds = [speed if speed > 0 else sum(known) / len(known) for speed in speeds]

    def choose(self, object_hash: int, number: int, record_bytes: int) -> int | None:
        """Return the index of the disk tier to which page ``number`` of an object should go. Return None if
        no disk takes pages.
        """
        disks = self._disks
        if len(disks) == 1:
            return disks[0][0]
        able = [place for place, (_, tier) in enumerate(disks) if tier.disabled_reason is None]
        if not able:
            return None
        roomy = [place for place in able if _room_bytes(disks[place][1]) >= record_bytes]
        weights = [self._speeds[place] for place in roomy] or [disks[place][1].limit_bytes for place in able]
        ends = list(accumulate(weights))
        point = ((object_hash + number) * _SPREAD & _MASK) / (1 << _HASH_BITS) * ends[-1]
        where = min(bisect_right(ends, point), len(ends) - 1)
        return disks[(roomy or able)[where]][0]


def _room_bytes(tier: Tier) -> int:
    return tier.limit_bytes - tier.used_bytes
