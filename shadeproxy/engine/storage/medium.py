"""``Medium``: a tier, and the way its I/O runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shadeproxy.core.types import Source
from shadeproxy.tiers.tier import Tier

RunIO = Callable[[Callable[[], None]], Awaitable[None]]


def _unknown(_room_bytes: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Medium:
    """A tier, its source, and the functions that run its I/O. The source is the word for this tier in the
    field ``x-shade-cache`` of answers. A function is None if the I/O cannot block; then the I/O runs in the
    event loop.

    ``write`` keeps the order of the tier's ``submit``. ``load`` may overtake writes. ``read_speed``: see
    ``DiskChoice``.
    """

    tier: Tier
    source: Source
    write: RunIO | None = None
    load: RunIO | None = None
    read_speed: Callable[[int], float] = _unknown


async def run_io(run: RunIO | None, work: Callable[[], None]) -> None:
    """Run I/O by ``run``. If that is None, run it at once."""
    if run is None:
        work()
    else:
        await run(work)
