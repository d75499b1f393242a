"""``FairQueue``: a queue for a scarce resource, in which clients take turns (round robin).

Law: the waiters of one client are served in the order in which they came, and clients take turns. So a client
that opens 200 connections delays only itself (docs/adr/0011). Callers take the client's name from
``tracing.CLIENT``. The queue does not know for which resource its waiters wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Waiter = TypeVar("Waiter")


class FairQueue(Generic[Waiter]):
    """A queue of pairs ``(client, waiter)``. A caller must add no pair twice."""

    def __init__(self) -> None:
        # Waiters by client. A dict keeps the order of insertion, which here is the order of the clients' next
        # turns.
        self._queues: dict[str, deque[Waiter]] = {}
        self.count = 0
        """Number of waiters."""

    def add(self, client: str, waiter: Waiter) -> None:
        """Append the waiter to its client's queue. A client without waiters joins the end of the rotation."""
        self._queues.setdefault(client, deque()).append(waiter)
        self.count += 1

    def first(self) -> Waiter:
        """Return the waiter that ``take`` would return. Raises StopIteration when the queue is empty."""
        return next(iter(self._queues.values()))[0]

    def take(self, may: Callable[[str], bool] = lambda _client: True) -> Waiter | None:
        """Remove the next waiter and return it; its client moves to the end of the rotation. Return None if
        there is no waiter.

        ``may(client)``: if it returns False, the client is skipped and keeps its place in the rotation.
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
        """Remove a waiter. Raises KeyError if its client has no waiters, and ValueError if its client has
        only other waiters.
        """
        queue = self._queues[client]
        queue.remove(waiter)
        if not queue:
            del self._queues[client]
        self.count -= 1


async def granted(
    future: asyncio.Future[Any], limit_s: float, *, give: Callable[[], None], withdraw: Callable[[], None]
) -> bool:
    """Wait until ``future`` is done, which means that the waiter was granted the resource. Return True then.
    Return False if this did not happen within ``limit_s`` seconds.

    After a timeout or a cancellation, ``withdraw`` removes the waiter from its queue. But if the waiter was
    granted the resource in the same turn of the event loop in which it is cancelled, ``give`` returns the
    resource.
    """
    try:
        # Do not use asyncio.wait_for: in the very turn of the loop in which the resource is granted, it may
        # still time out, or swallow a cancellation.
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
