"""Limits how long a request may wait for the origin: a time budget until the first byte arrives, and then a
minimum rate of the body.

A ``Deadline`` is made once, when a request arrives. Code that waits on behalf of the request (for a slot, for
memory, for an attempt, between attempts) finds it in the context variable ``DEADLINE``. A task inherits the
variable from the task that created it. So work that outlives the request, or that several requests share,
clears the variable and has limits of its own (docs/adr/0023).
"""

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import DeadlineExceeded

T = TypeVar("T")

LATE_WRITE_S = 60.0
"""A write that was given up runs on at the origin for no longer than this, if the origin takes no longer than
half of it to take a body, and no longer than the other half to answer.
"""


class ReadBounds(NamedTuple):
    """Time limits of one read from the origin. ``first_byte_s``: the time until the first byte of an answer.
    ``window_s``: how many seconds the reader may then wait for bytes of the body. Every ``least_bytes_per_s``
    bytes that arrive add one second to the rest of this time, which never exceeds ``window_s``.
    ``late_write_s``: how long a write may still run at the origin after its answer was given up.
    """

    first_byte_s: float = 25.0
    window_s: float = 30.0
    least_bytes_per_s: float = 1024.0
    late_write_s: float = LATE_WRITE_S


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
        """Seconds until the deadline; negative once it has passed."""
        return self.at_s - self._clock.monotonic_s()

    @property
    def arriving_left_s(self) -> float:
        """Seconds left for a whole answer: ``left_s`` for its first byte, and one window for its body."""
        return self.left_s + self._bounds.window_s

    def half(self) -> "Deadline":
        """Return an earlier deadline, which leaves half of the time that this one leaves."""
        made = Deadline(self._clock, self._bounds)
        made.at_s = self.at_s - self.left_s / 2
        return made

    def renewed(self) -> "Deadline":
        """Return a deadline for the next part of an answer: with the same budget, counted from now."""
        return Deadline(self._clock, self._bounds)

    def exceeded(self) -> DeadlineExceeded:
        """Return the error of a request that got no byte in time."""
        return DeadlineExceeded(
            f"the origin has given no byte of the answer within {self._bounds.first_byte_s:g} s, waiting for"
            " a connection and for memory included; retry later, or raise origin.timeouts.first_byte"
        )

    async def bound(self, work: Awaitable[T], *, arriving: bool = False) -> T:
        """Return the result of ``work``, or cancel it when the deadline passes. Raises DeadlineExceeded.

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
"""The deadline of the request that is being served; None if no client waits."""


class LeastRate:
    """Checks one body against the minimum rate. Only time in which the reader waits for the origin counts, so
    that a slow client does not make the origin look slow.
    """

    __slots__ = ("_bounds", "left_s")

    def __init__(self, bounds: ReadBounds) -> None:
        self._bounds = bounds
        self.left_s = bounds.window_s
        """Seconds for which the reader may still wait. For another body, set it to a full window."""

    @property
    def patience_s(self) -> float | None:
        """Seconds for which the reader may still wait; None if no minimum rate is set."""
        return self.left_s if self._bounds.least_bytes_per_s else None

    def note(self, waited_s: float, size_bytes: int) -> bool:
        """Note that ``size_bytes`` arrived after a wait of ``waited_s``. Return False if the body is too
        slow.
        """
        rate, window_s = self._bounds.least_bytes_per_s, self._bounds.window_s
        if not rate:
            return True
        self.left_s = min(window_s, self.left_s - waited_s + size_bytes / rate)
        return self.left_s > 0
