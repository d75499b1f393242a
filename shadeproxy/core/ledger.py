"""``Ledger``: the budget of memory, in bytes, for fills in flight and for writes in queues.

Laws: a task takes bytes from the budget before it allocates them, and returns them exactly once, however it
ends. DEMAND may use the whole budget, PREFETCH only half of it, so that a reserve is left for DEMAND. Clients
take turns: no task gets bytes while a client whose turn is earlier waits for them.
"""

import asyncio
from functools import partial

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.fair_queue import FairQueue, granted
from shadeproxy.core.tracing import CLIENT
from shadeproxy.core.types import Intent

_PREFETCH_SHARE = 0.5
_SLOW = "\0slow"  # No client has this name.
# How many bytes a task waits for, and a future that is done once they are granted.
_Waiter = tuple[int, asyncio.Future[None]]


class Ledger:
    """A budget of bytes, with a fair queue for DEMAND (fair_queue.py). For one event loop; not
    thread-safe.
    """

    def __init__(self, capacity_bytes: int, *, max_wait_s: float = 10.0) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self._max_wait_s = max_wait_s
        self._waiting: FairQueue[_Waiter] = FairQueue()
        self._waiting_bytes = 0
        self.slow: dict[str, float] = {}
        """Clients that share one turn, because they were cut off for being slow; slow_readers.py changes the
        dict.
        """

    @property
    def waiting(self) -> int:
        """Number of tasks that now wait for bytes."""
        return self._waiting.count

    @property
    def missing_bytes(self) -> int:
        """Bytes that must be given back before all tasks that wait now can have theirs; 0 if none waits."""
        if not self._waiting.count:
            return 0
        return self._waiting_bytes + self.taken_bytes - self.capacity_bytes

    async def take(self, size_bytes: int, intent: Intent) -> None:
        """Reserve ``size_bytes``. DEMAND waits for its turn; PREFETCH is refused at once if there is no room.

        Raises Overloaded for DEMAND if its turn does not come within ``max_wait_s``, and for PREFETCH if a
        task waits, or if more than half of the budget would be taken. A request for more than the whole
        budget is served when no other bytes are taken.
        """
        if self.take_now(size_bytes, intent):
            return
        if intent is not Intent.DEMAND:
            raise Overloaded("prefetch budget exhausted")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client, entry = CLIENT.get(), (size_bytes, future)
        client = _SLOW if client in self.slow else client
        self._waiting.add(client, entry)
        self._waiting_bytes += size_bytes
        give, withdraw = partial(self.give, size_bytes), partial(self._withdraw, client, entry)
        if not await granted(future, self._max_wait_s, give=give, withdraw=withdraw):
            raise Overloaded("memory for reads in flight is exhausted; retry later")

    def take_now(self, size_bytes: int, intent: Intent) -> bool:
        """Reserve ``size_bytes`` as ``take`` does, but at once. Return False, with nothing reserved, if
        ``take`` would wait or raise.
        """
        share = 1.0 if intent is Intent.DEMAND else _PREFETCH_SHARE
        wanted = min(size_bytes, self.capacity_bytes)
        if self._waiting.count or self.taken_bytes + wanted > self.capacity_bytes * share:
            return False
        self.taken_bytes += size_bytes
        return True

    def try_take(self, size_bytes: int) -> bool:
        """Reserve ``size_bytes`` now. Return False if a task waits for bytes, or if fewer are free."""
        if self._waiting.count or self.taken_bytes + size_bytes > self.capacity_bytes:
            return False
        self.taken_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Return bytes to the budget, and wake the waiting tasks for which enough bytes are free then."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, "ledger gave back more than it took"
        if self._waiting.count:
            self._grant()

    def _withdraw(self, client: str, entry: _Waiter) -> None:
        self._waiting.remove(client, entry)
        self._waiting_bytes -= entry[0]
        # The free bytes may be enough for the next waiter, if it needs fewer bytes than the removed one.
        self._grant()

    def _grant(self) -> None:
        while self._waiting.count:
            size_bytes, future = self._waiting.first()
            if self.taken_bytes + min(size_bytes, self.capacity_bytes) > self.capacity_bytes:
                return
            self._waiting.take()
            self._waiting_bytes -= size_bytes
            self.taken_bytes += size_bytes
            future.set_result(None)
