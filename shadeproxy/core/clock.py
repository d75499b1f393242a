"""Time as an argument, so that freshness, expiry and backoff are tested without waiting."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """``now_s``: Unix time. ``monotonic_s``: never goes back. ``sleep``: suspends the calling task."""

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


@runtime_checkable
class LeasedClock(Protocol):
    """A clock whose ``now_s`` acts on the end of a lease.

    ``lease``: the end, in seconds since boot, as one f64. Before it ``now_s`` only returns the time, and
    ``wall_s`` may be called instead. None: call ``now_s`` always.
    """

    lease: "memoryview[float] | None"
    wall_s: Callable[[], float]


def boot_time_s() -> float:
    """Return the seconds since the machine's boot. All processes of the machine get the same time. The clock
    also runs while the machine is suspended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The machine's clocks."""

    # No method wraps these functions: a request reads the clock several times, and a method would double
    # the cost.
    now_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
