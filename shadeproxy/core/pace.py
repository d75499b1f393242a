"""``TurnLimiter``: limits how many tasks continue in one turn of the event loop.

Law: below the limit no task waits. However many tasks wait, the limiter schedules only one callback in a
turn. Tasks continue in the order in which they asked. Only the thread of the event loop may call it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

PER_TURN = 16
"""Most steps in one turn of the event loop. A step is the work of one task until it waits again; that of a
read takes 0.1 to 0.4 ms, most of it in the kernel.
"""


class TurnLimiter:
    """A limit of ``per_turn`` steps in a turn of the event loop, for all tasks that share this object."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._left = per_turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def turn(self) -> asyncio.Future[None] | None:
        """Take a step. Return None if the caller may continue at once; otherwise a future that the caller
        must await before it continues.
        """
        if self.take():
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(lambda: set_done(future))
        return future

    def call(self, function: Callable[[], None]) -> None:
        """Call ``function`` now if a step is left in this turn of the loop, otherwise in a later turn."""
        if self.take():
            function()
        else:
            self._waiting.append(function)

    def finished(self, task: asyncio.Future[Any]) -> asyncio.Future[None]:
        """Return a future that is done once ``task`` is done and the limit allows another step. Cancelling
        this future does not cancel ``task``.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _task: self.call(partial(set_done, future)))
        return future

    def take(self) -> bool:
        """Take a step if one is left in this turn of the loop. Otherwise return False; the caller is not put
        into the queue.
        """
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._waiting or not self._left:
            return False
        self._left -= 1
        return True

    def _next(self) -> None:
        """Begin the next turn of the loop, and let waiting tasks continue."""
        self._left = self._per_turn
        self._scheduled = bool(self._waiting)
        if not self._scheduled:
            return
        asyncio.get_running_loop().call_soon(self._next)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()


def set_done(future: asyncio.Future[None]) -> None:
    """Wake the waiter of a future, unless it has given up."""
    if not future.done():
        future.set_result(None)
