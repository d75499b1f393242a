"""``LimitedOrigin``: at most so many bodies open at once, DEMAND before everything else, PREFETCH only where
there is room to spare: it never waits, so that no reader finds himself waiting with it.

The state: ``_open`` slots taken, and two queues of waiting futures, each first come, first served. A slot
passes from hand to hand (``give``), so a newcomer cannot slip in between. A waiter that is cancelled, or
waited too long, leaves its queue; one that was granted a slot in the same tick hands it on. Heads,
listings and forwarded requests are not counted: they are short, or the client's own.
"""

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Unpack

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.types import SHARED, Intent, ListPage, ObjectMeta, ObjectRef, Upstream
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)

_Waiting = deque[asyncio.Future[None]]
_SPARED = 8  # one slot in so many is never prefetching's


def prefetch_slots(max_open: int) -> int:
    """Of ``max_open`` slots those that PREFETCH may use."""
    return max_open - max_open // _SPARED


class LimitedOrigin:
    """``inner`` with at most ``max_open`` open bodies. Single event loop; not thread-safe.

    Who waits for one longer than ``max_wait_s`` gets Overloaded: the answer is then 503 SlowDown.
    """

    def __init__(self, inner: Origin, *, max_open: int, max_wait_s: float = 10.0) -> None:
        self._inner = inner
        self._max_open = max_open
        self._max_wait_s = max_wait_s
        self._open = 0
        self._demand: _Waiting = deque()
        self._others: _Waiting = deque()

    @property
    def open_now(self) -> int:
        """Bodies open now."""
        return self._open

    @property
    def prefetch_slots(self) -> int:
        """While so many bodies are open, none is opened for PREFETCH."""
        return prefetch_slots(self._max_open)

    @property
    def waiting(self) -> int:
        """Reads that wait for a slot now."""
        return len(self._demand) + len(self._others)

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        return await self._inner.head(ref, upstream=upstream)

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        return _LimitedRead(self, self._inner.open(ref, **options), options.get("intent", Intent.DEMAND))

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        return await self._inner.list_objects(bucket, prefix, **options)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        return self._inner.forward(request)

    async def probe(self) -> str:
        return await self._inner.probe()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def take(self, intent: Intent) -> None:
        """A slot, when it is one's turn. Raises Overloaded after ``max_wait_s``; for PREFETCH at once."""
        if intent is Intent.PREFETCH and self._open >= self.prefetch_slots:
            raise Overloaded("no read of the origin is to spare for prefetching")
        if self._open < self._max_open:
            self._open += 1
            return
        queue = self._demand if intent is Intent.DEMAND else self._others
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        try:
            # Not wait_for: it may time out, or swallow a cancellation, in the turn that grants.
            await asyncio.wait({future}, timeout=self._max_wait_s)
        except asyncio.CancelledError:
            if future.done():
                self.give()
            else:
                queue.remove(future)
            raise
        if not future.done():
            queue.remove(future)
            raise Overloaded(
                f"all {self._max_open} reads of the origin were taken for {self._max_wait_s:g} s;"
                " retry later, or raise origin.max_connections"
            )

    def give(self) -> None:
        """Hand a slot on to who waits longest, demand first."""
        for queue in (self._demand, self._others):
            if queue:
                queue.popleft().set_result(None)
                return
        self._open -= 1


class _LimitedRead:
    """A read that holds a slot while it is open."""

    def __init__(
        self, limited: LimitedOrigin, inner: AbstractAsyncContextManager[OriginRead], intent: Intent
    ) -> None:
        self._limited = limited
        self._inner = inner
        self._intent = intent

    async def __aenter__(self) -> OriginRead:
        await self._limited.take(self._intent)
        try:
            return await self._inner.__aenter__()
        except BaseException:
            self._limited.give()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._limited.give()
