"""Parts that the suites about disks share: disks of a given speed, imitated over tiers in memory."""

import asyncio
import time
from collections.abc import Callable

from shadeproxy.tiers.base import Location
from shadeproxy.tiers.store import SegmentStore


class ColdStore(SegmentStore):
    """A tier whose pages are never in the kernel's page cache."""

    def is_hot(self, location: Location) -> bool:  # noqa: ARG002 - the tier's signature
        return False


class Device:
    """A disk that serves one read at a time, each for ``read_s``."""

    def __init__(self, read_s: float) -> None:
        self._read_s = read_s
        self._free_s = 0.0

    async def load(self, work: Callable[[], None]) -> None:
        self._free_s = max(self._free_s, time.monotonic()) + self._read_s
        await asyncio.sleep(self._free_s - time.monotonic())
        work()


async def at_once(work: Callable[[], None]) -> None:
    """Run ``work``, the I/O of a disk, at once: writes to the imitated disk take no time."""
    work()
