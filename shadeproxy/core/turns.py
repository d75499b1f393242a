"""``Turns``: who waits for something scarce, client by client.

Law: a client's own waiters are served in the order in which they came, and clients take turns, so that who
opens 200 connections waits for them himself (docs/adr/0011). Who a client is, is told by ``CLIENT``. Nothing
here knows what is waited for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Waiter = TypeVar("Waiter")


class Turns(Generic[Waiter]):
    """A queue of ``(client, waiter)``. No entry is there twice."""

    def __init__(self) -> None:
        # In the order of the next turns: a dict keeps the order in which its keys came.
        self._queues: dict[str, deque[Waiter]] = {}
        self.count = 0
        """How many wait."""

    def add(self, client: str, waiter: Waiter) -> None:
        """``waiter`` is the last of ``client``; a client that did not wait is the last of all."""
        self._queues.setdefault(client, deque()).append(waiter)
        self.count += 1

    def first(self) -> Waiter:
        """Whom ``take`` would take. Raises StopIteration when nobody waits."""
        return next(iter(self._queues.values()))[0]

    def take(self, may: Callable[[str], bool] = lambda _client: True) -> Waiter | None:
        """Whose turn it is; his client is the last from now on. None when there is nobody.

        ``may``: clients that it answers no to keep their place and are passed over.
        """
        client = next(filter(may, self._queues), None)
        if client is None:
            return None
        queue = self._queues[client]
        waiter = queue.popleft()
        del self._queues[client]
        if queue:
            self._queues[client] = queue
        self.count -= 1
        return waiter

    def remove(self, client: str, waiter: Waiter) -> None:
        """``waiter`` gave up. Raises KeyError when its client has none, ValueError when he is not there."""
        queue = self._queues[client]
        queue.remove(waiter)
        if not queue:
            del self._queues[client]
        self.count -= 1


async def granted(
    future: asyncio.Future[Any], limit_s: float, *, give: Callable[[], None], withdraw: Callable[[], None]
) -> bool:
    """Whether ``future`` is set within ``limit_s``; else, and when the waiter is cancelled, ``withdraw``
    takes him off his queue. ``give`` hands on what a cancelled one was granted in the same turn of the loop.
    """
    try:
        # Not wait_for: it may time out, or swallow a cancellation, in the turn that grants.
        await asyncio.wait({future}, timeout=limit_s)
    except asyncio.CancelledError:
        if future.done():
            give()
        else:
            withdraw()
        raise
    if not future.done():
        withdraw()
        return False
    return True
