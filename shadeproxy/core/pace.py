"""``Pace``: many tasks that could go on at once go on a few at a time, so that the loop is not held.

Law: while there are few, nobody waits and nothing is scheduled but one call a turn; the order is kept. Event
loop only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

PER_TURN = 16
"""Steps in one turn of the loop. A step of a read takes 0.1 to 0.4 ms, most of it in the kernel."""


class Pace:
    """Shared by those that are to take turns, ``per_turn`` of them in one turn of the loop."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._left = per_turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def turn(self) -> asyncio.Future[None] | None:
        """None: go on at once. Else go on when it is done."""
        if self.take():
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(lambda: set_done(future))
        return future

    def call(self, function: Callable[[], None]) -> None:
        """Call ``function`` now, or in its turn."""
        if self.take():
            function()
        else:
            self._waiting.append(function)

    def finished(self, task: asyncio.Future[Any]) -> asyncio.Future[None]:
        """Done, in its turn, after ``task`` is, which does not notice when who waits for it gives up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _task: self.call(partial(set_done, future)))
        return future

    def take(self) -> bool:
        """Return whether one more may go on at once; else nobody waits yet."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._waiting or not self._left:
            return False
        self._left -= 1
        return True

    def _next(self) -> None:
        """A turn of the loop later."""
        self._left = self._per_turn
        self._scheduled = bool(self._waiting)
        if not self._scheduled:
            return
        asyncio.get_running_loop().call_soon(self._next)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()


def set_done(future: asyncio.Future[None]) -> None:
    """Wake who waits, if he still does."""
    if not future.done():
        future.set_result(None)
