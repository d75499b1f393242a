"""A clock whose time a test moves."""

import asyncio


class ManualClock:
    """A clock whose time passes only by ``advance`` and ``sleep``.

    ``sleep`` does not wait: it advances the clock, and lets other tasks run once.
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
