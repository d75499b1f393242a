"""Looks at directories whose disks may hang. Law: no look holds up its caller for longer than LOOK_S, and a
look that hangs keeps one thread, however often it is asked for.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

LOOK_S = 5.0
Seen = TypeVar("Seen")


class BoundedLooks:
    """Makes each look in a thread, and waits for it only for a while."""

    def __init__(self, limit_s: float = LOOK_S) -> None:
        self._limit_s = limit_s
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def within(self, name: str, look: Callable[[], Seen], otherwise: Seen) -> Seen:
        """Return the result of ``look``, or ``otherwise`` if it takes too long. While an earlier look of this
        ``name`` is under way, wait for that one instead. Raises what ``look`` raises.
        """
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = asyncio.create_task(asyncio.to_thread(look), name=f"look: {name}")
            task.add_done_callback(lambda task: self._ended(name, task))
        done, _ = await asyncio.wait({task}, timeout=self._limit_s)
        if not done:
            return otherwise
        seen: Seen = task.result()
        return seen

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        del self._under_way[name]
        if not task.cancelled():
            task.exception()  # Its caller may have left. Without this call asyncio would log the error.
