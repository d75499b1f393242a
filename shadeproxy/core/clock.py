"""Time as an argument, so that freshness, expiry and backoff are tested without waiting."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """``now_s``: Unix time. ``monotonic_s``: never goes back. ``sleep``: suspends the calling task."""

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    # No method wraps these functions: a request reads the clock several times, and a method would double
    # the cost.
    now_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock for tests, which moves only by ``advance`` and ``sleep``. ``sleep`` does not wait; it lets
    other tasks run once.
    """

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)
