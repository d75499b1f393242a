"""One budget of bytes for fills in flight and queued writes (design 6.8).

Rules: take bytes before allocating them, and give them back exactly once, on every path out of the task.
DEMAND may use the whole budget, PREFETCH only what leaves a reserve for DEMAND. Clients take turns, and no
task overtakes the client whose turn it is.
"""

import asyncio
from functools import partial

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.fair_queue import FairQueue, granted
from shadeproxy.core.tracing import CLIENT
from shadeproxy.core.types import Intent

_PREFETCH_SHARE = 0.5
# Bytes wanted, and a future that is done once they are granted. The grant also removes the entry.
_Waiter = tuple[int, asyncio.Future[None]]


class Ledger:
    """Byte budget with a fair queue for DEMAND (turns.py). Single event loop; not thread-safe."""

    def __init__(self, capacity_bytes: int, *, max_wait_s: float = 10.0) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self._max_wait_s = max_wait_s
        self._waiting: FairQueue[_Waiter] = FairQueue()

    @property
    def waiting(self) -> int:
        """Number of tasks that wait for bytes now."""
        return self._waiting.count

    async def take(self, size_bytes: int, intent: Intent) -> None:
        """Reserve ``size_bytes``. DEMAND waits for its turn, PREFETCH is refused at once.

        Raises Overloaded when the budget stays exhausted for ``max_wait_s``, or for PREFETCH beyond half the
        budget. A request larger than the whole budget is served alone.
        """
        if self.take_now(size_bytes, intent):
            return
        if intent is not Intent.DEMAND:
            raise Overloaded("prefetch budget exhausted")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client, entry = CLIENT.get(), (size_bytes, future)
        self._waiting.add(client, entry)
        give, withdraw = partial(self.give, size_bytes), partial(self._withdraw, client, entry)
        if not await granted(future, self._max_wait_s, give=give, withdraw=withdraw):
            raise Overloaded("memory for reads in flight is exhausted; retry later")

    def take_now(self, size_bytes: int, intent: Intent) -> bool:
        """Reserve ``size_bytes`` like ``take``; return False where that would wait, or refuse."""
        share = 1.0 if intent is Intent.DEMAND else _PREFETCH_SHARE
        wanted = min(size_bytes, self.capacity_bytes)
        if self._waiting.count or self.taken_bytes + wanted > self.capacity_bytes * share:
            return False
        self.taken_bytes += size_bytes
        return True

    def try_take(self, size_bytes: int) -> bool:
        """Reserve ``size_bytes`` now; return False if a task waits or the budget is too small."""
        if self._waiting.count or self.taken_bytes + size_bytes > self.capacity_bytes:
            return False
        self.taken_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Give back bytes and wake the tasks that now fit."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, "ledger gave back more than it took"
        self._grant()

    def _withdraw(self, client: str, entry: _Waiter) -> None:
        self._waiting.remove(client, entry)
        # Once this waiter has gone, the one behind it may fit into the free bytes.
        self._grant()

    def _grant(self) -> None:
        while self._waiting.count:
            size_bytes, future = self._waiting.first()
            if self.taken_bytes + min(size_bytes, self.capacity_bytes) > self.capacity_bytes:
                return
            self._waiting.take()
            self.taken_bytes += size_bytes
            future.set_result(None)
