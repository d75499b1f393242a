"""The memory that manifests and listings take, all together, while they become datasets.

Laws: a manifest takes its bytes before it grows, and gives all of them back when it ends. It takes more and
more, because neither its length nor that of its packed form says how much it will need. If there is no room
for more, it waits for its turn. The first one that waits may go on beyond the room if no other one does. So
one manifest always goes on, however many wait with a part of the room. Small manifests take nothing: they
never wait for large ones.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.fair_queue import FairQueue, granted

MANIFESTS_BYTES = 256 * 1024 * 1024
"""Most bytes of large manifests that are read at a time, besides what one of them takes beyond the room."""
SMALL_BYTES = 256 * 1024
"""Bytes of a manifest that takes nothing: it has about a thousand samples."""
_STEP_BYTES = 1024 * 1024
_WAIT_S = 120.0
_RETRY_S = 5


class ManifestShare:
    """The bytes that one manifest of ``client`` has taken."""

    def __init__(self, ledger: "ManifestLedger", client: str) -> None:
        self._ledger = ledger
        self.client = client
        self.held_bytes = 0

    async def hold(self, size_bytes: int) -> int:
        """Hold ``size_bytes`` or more from now on, unless that is little. Return the bytes that the manifest
        may take before the next call. Raises Overloaded if its turn does not come in time.
        """
        if size_bytes > max(self.held_bytes, SMALL_BYTES):
            more_bytes = size_bytes + _STEP_BYTES - self.held_bytes
            await self._ledger.take(self, more_bytes)
            self.held_bytes += more_bytes
        return max(self.held_bytes, SMALL_BYTES)

    def give_back(self) -> None:
        """Hold nothing any more."""
        held_bytes, self.held_bytes = self.held_bytes, 0
        self._ledger.give(self, held_bytes)


_Waiter = tuple[ManifestShare, int, asyncio.Future[None]]


class ManifestLedger:
    """The ledger of one control listener. ``max_wait_s``: how long a manifest waits for room."""

    def __init__(self, capacity_bytes: int = MANIFESTS_BYTES, *, max_wait_s: float = _WAIT_S) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken_bytes = 0
        self._max_wait_s = max_wait_s
        self._waiting: FairQueue[_Waiter] = FairQueue()
        self._beyond: ManifestShare | None = None  # The share that may go on beyond the room.

    @property
    def waiting(self) -> int:
        """Number of manifests that now wait for room."""
        return self._waiting.count

    @contextmanager
    def share(self, client: str) -> Iterator[ManifestShare]:
        """Yield the share of a manifest. Its bytes are given back when the block ends."""
        share = ManifestShare(self, client)
        try:
            yield share
        finally:
            share.give_back()

    async def take(self, share: ManifestShare, size_bytes: int) -> None:
        """Reserve ``size_bytes`` more for ``share``. Clients wait in turn. Raises Overloaded."""
        if share is self._beyond:
            self.taken_bytes += size_bytes
            return
        waiter = share, size_bytes, asyncio.get_running_loop().create_future()
        self._waiting.add(share.client, waiter)
        self._grant()
        give, withdraw = partial(self.give, share, size_bytes), partial(self._withdraw, waiter)
        if not await granted(waiter[2], self._max_wait_s, give=give, withdraw=withdraw):
            raise Overloaded(
                "other manifests hold all of the memory for reading manifests; send it again later",
                retry_after_s=_RETRY_S,
            )

    def give(self, share: ManifestShare, size_bytes: int) -> None:
        """Return the bytes of a share that ends, and wake the manifests that may go on then."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, "ledger gave back more than it took"
        if share is self._beyond:
            self._beyond = None
        self._grant()

    def _withdraw(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter[0].client, waiter)
        self._grant()

    def _grant(self) -> None:
        while self._waiting.count:
            share, size_bytes, future = self._waiting.first()
            if self.taken_bytes + size_bytes > self.capacity_bytes:
                if self._beyond is not None:
                    return
                self._beyond = share
            self._waiting.take()
            self.taken_bytes += size_bytes
            future.set_result(None)
