"""``Medium``: a tier, and the way its I/O runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shadeproxy.core.types import Source
from shadeproxy.tiers.tier import Tier

RunIO = Callable[[Callable[[], None]], Awaitable[None]]

HANGS_S = 10.0
"""A disk is said to hang while an operation on it has taken longer than this."""


def _unknown(_room_bytes: int) -> float:
    return 0.0


def _never() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Medium:
    """A tier, its source, and the functions that run its I/O. The source is the word for this tier in the
    field ``x-shade-cache`` of answers. A function is None if the I/O cannot block; then the I/O runs in the
    event loop.

    ``write`` keeps the order of the tier's ``submit``. ``load`` may overtake writes. ``read_speed``: see
    ``DiskChoice``. ``busy_s`` returns for how many seconds the oldest operation on the disk has been running.
    """

    tier: Tier
    source: Source
    write: RunIO | None = None
    load: RunIO | None = None
    read_speed: Callable[[int], float] = _unknown
    busy_s: Callable[[], float] = _never

    @property
    def hangs(self) -> bool:
        """Return whether the disk hangs now."""
        return self.busy_s() >= HANGS_S


async def run_io(run: RunIO | None, work: Callable[[], None]) -> None:
    """Run I/O by ``run``. If that is None, run it at once."""
    if run is None:
        work()
    else:
        await run(work)
