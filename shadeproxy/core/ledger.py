"""One ledger of bytes for fills in flight and queued writes (design 6.8).

Rules: nothing is allocated before it is taken; what is taken is given back exactly once, whatever path
the task leaves by; DEMAND may use the whole budget, PREFETCH only what leaves a reserve for DEMAND.
"""

import asyncio
from collections import deque

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.types import Intent

_PREFETCH_SHARE = 0.5


class Ledger:
    """Byte budget with a first-come queue for DEMAND. Single event loop; not thread-safe."""

    def __init__(self, capacity_bytes: int, *, max_wait_s: float = 10.0) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self._max_wait_s = max_wait_s
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Tasks that wait for bytes now."""
        return sum(not future.done() for _, future in self._waiting)

    async def take(self, size_bytes: int, intent: Intent) -> None:
        """Reserve ``size_bytes``; DEMAND waits its turn, PREFETCH is refused at once.

        Raises Overloaded when the budget stays exhausted for ``max_wait_s``, or for PREFETCH beyond
        half the budget. A request larger than the whole budget is served alone.
        """
        wanted = min(size_bytes, self.capacity_bytes)
        if intent is not Intent.DEMAND:
            if self._waiting or self.taken_bytes + wanted > self.capacity_bytes * _PREFETCH_SHARE:
                raise Overloaded("prefetch budget exhausted")
            self.taken_bytes += size_bytes
            return
        if not self._waiting and self.taken_bytes + wanted <= self.capacity_bytes:
            self.taken_bytes += size_bytes
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, future)
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(future, self._max_wait_s)
        except TimeoutError:
            raise Overloaded("memory for reads in flight is exhausted; retry later") from None
        except asyncio.CancelledError:
            # Granted in the same tick that cancelled us: hand the bytes on.
            if future.done() and not future.cancelled():
                self.give(size_bytes)
            raise
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()

    def try_take(self, size_bytes: int) -> bool:
        """Reserve ``size_bytes`` now, unless somebody waits or the budget does not hold them."""
        if self._waiting or self.taken_bytes + size_bytes > self.capacity_bytes:
            return False
        self.taken_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Return bytes taken before and wake who waits for them."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, "ledger gave back more than it took"
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            size_bytes, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if self.taken_bytes + min(size_bytes, self.capacity_bytes) > self.capacity_bytes:
                return
            self._waiting.popleft()
            self.taken_bytes += size_bytes
            future.set_result(None)
