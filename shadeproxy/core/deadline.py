"""One time budget for a request that reads the origin, and the least rate of the body behind it.

A ``Deadline`` is made once, where a request comes in, and found through ``DEADLINE`` by whoever waits on its
behalf: for a slot, for memory, for a try, between tries. A task inherits the variable from who started it, so
work that outlives the request, or is shared with others, clears it and is bounded for itself (docs/adr/0023).
"""

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import DeadlineExceeded

T = TypeVar("T")


class ReadBounds(NamedTuple):
    """``first_byte_s``: until the first byte of an answer. From then on each second of waiting, past the
    first ``window_s``, must be worth ``least_bytes_per_s``.
    """

    first_byte_s: float = 25.0
    window_s: float = 30.0
    least_bytes_per_s: float = 1024.0


DEFAULT_BOUNDS = ReadBounds()


class Deadline:
    """The time by which a request must have its first byte, in seconds of ``clock``."""

    __slots__ = ("_bounds", "_clock", "at_s")

    def __init__(self, clock: Clock, bounds: ReadBounds) -> None:
        self._clock = clock
        self._bounds = bounds
        self.at_s = clock.monotonic_s() + bounds.first_byte_s

    @property
    def left_s(self) -> float:
        """Seconds until it; negative once it has passed."""
        return self.at_s - self._clock.monotonic_s()

    @property
    def arriving_left_s(self) -> float:
        """Seconds for an answer that is held until more of it is here: ``left_s`` and a window."""
        return self.left_s + self._bounds.window_s

    def renewed(self) -> "Deadline":
        """The same budget from now on: for the next part of an answer that has begun."""
        return Deadline(self._clock, self._bounds)

    def exceeded(self) -> DeadlineExceeded:
        """The error of a request that had no byte in time."""
        return DeadlineExceeded(
            f"the origin has given no byte of the answer within {self._bounds.first_byte_s:g} s, waiting for"
            " a connection and for memory included; retry later, or raise origin.timeouts.first_byte"
        )

    async def bound(self, work: Awaitable[T], *, arriving: bool = False) -> T:
        """The result of ``work``, which is cancelled when time is up. Raises DeadlineExceeded.

        ``arriving``: the result is a whole answer, not only its first byte.
        """
        left_s = self.arriving_left_s if arriving else self.left_s
        try:
            async with asyncio.timeout(left_s) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
        raise self.exceeded()


DEADLINE: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
"""Of the request that is being served; None where no client waits."""


class Pace:
    """The seconds that a reader may still wait for a body. Only waiting counts: a slow reader does not make
    its origin slow.
    """

    __slots__ = ("_bounds", "left_s")

    def __init__(self, bounds: ReadBounds) -> None:
        self._bounds = bounds
        self.left_s = bounds.window_s

    @property
    def patience_s(self) -> float | None:
        """Seconds that are left; None where no rate is asked for."""
        return self.left_s if self._bounds.least_bytes_per_s else None

    def restart(self) -> None:
        """Another body begins."""
        self.left_s = self._bounds.window_s

    def note(self, waited_s: float, size_bytes: int) -> bool:
        """Take in that ``size_bytes`` came after ``waited_s``; False: that is too slow."""
        rate, window_s = self._bounds.least_bytes_per_s, self._bounds.window_s
        if not rate:
            return True
        self.left_s = min(window_s, self.left_s - waited_s + size_bytes / rate)
        return self.left_s > 0
