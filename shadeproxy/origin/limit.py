"""``LimitedOrigin``: at most so many bodies open at once, DEMAND before everything else.

The state: ``_open`` slots taken, and two queues of waiting futures, each first come, first served. A slot
passes from hand to hand (``_give``), so a newcomer cannot slip in between. A waiter that is cancelled
leaves its queue; one that was granted a slot in the same tick hands it on. Heads, listings and forwarded
requests are not counted: they are short, or the client's own.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

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


class LimitedOrigin:
    """``inner`` with at most ``max_open`` open bodies. Single event loop; not thread-safe."""

    def __init__(self, inner: Origin, *, max_open: int) -> None:
        self._inner = inner
        self._max_open = max_open
        self._open = 0
        self._demand: _Waiting = deque()
        self._others: _Waiting = deque()

    @property
    def open_now(self) -> int:
        """Bodies open now."""
        return self._open

    @property
    def waiting(self) -> int:
        """Reads that wait for a slot now."""
        return len(self._demand) + len(self._others)

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        return await self._inner.head(ref, upstream=upstream)

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        await self._take(
            self._demand if options.get("intent", Intent.DEMAND) is Intent.DEMAND else self._others
        )
        try:
            opened = self._inner.open(ref, **options)
            async with opened as reading:
                yield reading
        finally:
            self._give()

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        return await self._inner.list_objects(bucket, prefix, **options)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        return self._inner.forward(request)

    async def probe(self) -> str:
        return await self._inner.probe()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _take(self, queue: _Waiting) -> None:
        if self._open < self._max_open:
            self._open += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                queue.remove(future)
            else:
                self._give()
            raise

    def _give(self) -> None:
        for queue in (self._demand, self._others):
            while queue:
                # A cancelled waiter that has not run yet still stands in the queue; it removes itself.
                future = next((waiter for waiter in queue if not waiter.done()), None)
                if future is None:
                    break
                queue.remove(future)
                future.set_result(None)
                return
        self._open -= 1
