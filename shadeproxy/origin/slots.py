"""``Slots``: a limit on concurrent requests, shared fairly between clients, demand before everything else.

The state: slots taken, and two queues of waiting futures (core/fair_queue.py). ``give`` passes a slot
straight to the next waiter, so a newcomer cannot take it first. A waiter that is cancelled, or waited
too long, leaves its queue; if it was granted a slot in the same tick, it passes it on.
"""

import asyncio
from functools import partial

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.fair_queue import FairQueue, granted
from shadeproxy.core.tracing import CLIENT

_Queue = FairQueue[tuple[str, asyncio.Future[None]]]


class Slots:
    """``count`` slots; ``most_of_client``: how many of them one client may have (None: all).

    A wait longer than ``max_wait_s`` raises Overloaded, which is answered with 503 SlowDown; ``what`` names
    the slots in its text. Single event loop; not thread-safe.
    """

    def __init__(
        self, count: int, *, max_wait_s: float, what: str, most_of_client: int | None = None
    ) -> None:
        self.count = count
        self.taken = 0
        self._max_wait_s = max_wait_s
        self._what = what
        self._most = max(1, count if most_of_client is None else most_of_client)
        self._held: dict[str, int] = {}
        self._urgent: _Queue = FairQueue()
        self._others: _Queue = FairQueue()

    @property
    def waiting(self) -> int:
        """Number of clients' requests that wait for a slot now."""
        return self._urgent.count + self._others.count

    async def take(self, *, urgent: bool = True) -> str:
        """Acquire a slot in turn; return the client it is charged to. Raises Overloaded."""
        client = CLIENT.get()
        if self.taken < self.count and self._may(client):
            self._count(client)
            return client
        queue = self._urgent if urgent else self._others
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (client, future)
        queue.add(client, entry)
        give, withdraw = partial(self.give, client), partial(queue.remove, client, entry)
        if not await granted(future, self._max_wait_s, give=give, withdraw=withdraw):
            raise Overloaded(
                f"all {self.count} {self._what} were taken for {self._max_wait_s:g} s, or all that one client"
                " may have; retry later, or raise origin.max_connections"
            )
        return client

    def take_now(self) -> str | None:
        """Take a slot without waiting; return None where ``take`` would have to wait."""
        client, held = CLIENT.get(), self._held
        if self.taken >= self.count or held.get(client, 0) >= self._most:
            return None
        self.taken += 1
        held[client] = held.get(client, 0) + 1
        return client

    def give(self, client: str) -> None:
        """Release a slot of ``client`` and pass it to the next waiter."""
        self.taken -= 1
        held = self._held.pop(client) - 1
        if held:
            self._held[client] = held
        for queue in (self._urgent, self._others):
            entry = queue.take(self._may) if queue.count else None
            if entry is not None:
                next_client, future = entry
                self._count(next_client)
                future.set_result(None)
                return

    def _may(self, client: str) -> bool:
        return self._held.get(client, 0) < self._most

    def _count(self, client: str) -> None:
        self.taken += 1
        self._held[client] = self._held.get(client, 0) + 1
