"""One timer for all reads that wait for the answer of another node. A timer for each read would take as much
CPU time as signing that read.
"""

import asyncio
from math import inf
from typing import Protocol


class WaitingRead(Protocol):
    """A read that was sent to another node."""

    def give_up(self) -> None:
        """Stop waiting, because the node has not begun to answer in time."""
        ...


class AnswerTimer:
    """Gives up each read whose node has not begun to answer in time. Serves the reads of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until_s: dict[WaitingRead, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = inf
        """Time at which the timer fires, in seconds of the event loop's clock; infinity while it is not set.
        A read that ends early does not change this time. So the timer fires about once in the time for which
        one read may wait, however many reads there are.
        """

    def watch(self, read: WaitingRead, seconds: float) -> None:
        """Call ``read.give_up`` after ``seconds``, unless ``forget`` is called before."""
        until_s = self._until_s[read] = self._loop.time() + seconds
        if until_s < self._next_s:
            self._set(until_s)

    def forget(self, read: WaitingRead) -> None:
        """Stop watching a read; idempotent."""
        self._until_s.pop(read, None)

    def close(self) -> None:
        """Stop watching all reads; idempotent."""
        self._until_s.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._next_s = None, inf

    def _set(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_s = self._loop.call_at(until_s, self._look), until_s

    def _look(self) -> None:
        self._timer, self._next_s = None, inf
        # The timers of the event loop have a resolution of a millisecond, so this one may fire up to a
        # millisecond too early.
        now_s = self._loop.time() + 0.001
        for read in [read for read, until_s in self._until_s.items() if until_s <= now_s]:
            self.forget(read)
            read.give_up()
        if self._until_s:
            self._set(min(self._until_s.values()))
