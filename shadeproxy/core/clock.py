"""Clocks as arguments, so that freshness, expiry and backoff can be tested without waiting."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """The clocks of a process. ``now_s``: Unix time. ``monotonic_s``: a time that never goes back. ``sleep``:
    suspends the calling task.
    """

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


@runtime_checkable
class LeasedClock(Protocol):
    """A clock that notices the end of a lease when its ``now_s`` is called.

    ``lease``: the end of the lease in seconds since boot, as one f64. Until that time ``now_s`` only returns
    the time, so callers may call the cheaper ``wall_s`` instead. None: callers must always call ``now_s``.
    """

    lease: "memoryview[float] | None"
    wall_s: Callable[[], float]


def boot_time_s() -> float:
    """Return the seconds since the machine's boot, time in which it was suspended included. All processes of
    the machine get the same time.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The machine's clocks."""

    # No method wraps these functions: a request reads the clock several times, and a method would double the
    # cost of each.
    now_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
