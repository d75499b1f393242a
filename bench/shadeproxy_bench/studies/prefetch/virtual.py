"""An event loop in virtual time: as soon as it has nothing else to do, its time jumps to the next timer.

A run therefore depends on its arguments alone, and not on the machine. Law: no code of a run uses threads.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

_START_S = 1_800_000_000.0

Result = TypeVar("Result")


class _Jumping(selectors.DefaultSelector):
    """A selector that never waits: instead it moves ``time_s`` on by the timeout."""

    time_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.time_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop in virtual time, which begins at 0 s."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.time_s

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        """Raise the first error of a callback or task, instead of logging it."""
        raise RuntimeError(context["message"]) from context.get("exception")


class VirtualClock:
    """Implements ``Clock`` with the time of a virtual loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return _START_S + self._loop.time()

    def monotonic_s(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, Result], loop: VirtualLoop) -> Result:
    """Run ``work`` to its end, and close ``loop``."""
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
