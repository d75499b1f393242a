"""``BoundedOrigin``: limits the time of every wait for an answer of the origin, or for its next bytes.

Laws: a HEAD, a listing or a forwarded read has the deadline of its client's request if there is one, and
otherwise a deadline of its own. The deadline includes the waits for slots and connections, all attempts, and
the pauses between them. The body of a forwarded answer must arrive at the least rate; only the time spent
waiting for the origin counts. Writes have no deadline: a client may send its body slowly, and the origin may
still carry out a write that the proxy has given up. Reads of pages share one timer, in
engine/read/timeouts.py.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Unpack

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE, Deadline, LeastRate, ReadBounds
from shadeproxy.core.errors import BodyCutShort
from shadeproxy.core.types import SHARED, ListPage, ObjectMeta, ObjectRef, Upstream
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.origin.wrapping import WrappedOrigin

_READS = frozenset({"GET", "HEAD"})


class BoundedOrigin(WrappedOrigin):
    """Adds deadlines to the requests of ``inner``; see ``Origin`` for the methods. Wrap it around retries and
    limits.
    """

    def __init__(self, inner: Origin, *, clock: Clock, bounds: ReadBounds) -> None:
        super().__init__(inner)
        self._clock = clock
        self._bounds = bounds

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        return await self._deadline().bound(self._inner.head(ref, upstream=upstream))

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        opened = self._inner.open(ref, **options)
        deadline = DEADLINE.get()
        return opened if deadline is None else _BoundedRead(opened, deadline)

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        listing = self._inner.list_objects(bucket, prefix, **options)
        return await self._deadline().bound(listing, arriving=True)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        async with AsyncExitStack() as stack:
            answering = stack.enter_async_context(self._inner.forward(request))
            deadline = self._deadline() if request.method in _READS else None
            response = await (answering if deadline is None else deadline.bound(answering))
            if request.works_long:
                yield response
                return
            chunks = await stack.enter_async_context(
                aclosing(_paced(response.chunks, LeastRate(self._bounds)))
            )
            yield replace(response, chunks=chunks)

    async def probe(self) -> str:
        return await self._deadline().bound(self._inner.probe(), arriving=True)

    def _deadline(self) -> Deadline:
        return DEADLINE.get() or Deadline(self._clock, self._bounds)


class _BoundedRead:
    """A read of ``inner``. It is given up if ``deadline`` passes before the head of its answer has
    arrived.
    """

    def __init__(self, inner: AbstractAsyncContextManager[OriginRead], deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    async def __aenter__(self) -> OriginRead:
        return await self._deadline.bound(self._inner.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


async def _paced(chunks: AsyncIterator[bytes], pace: LeastRate) -> AsyncGenerator[bytes, None]:
    """Yield ``chunks`` as long as they arrive at the least rate. Raises BodyCutShort once they do not."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        try:
            async with asyncio.timeout(pace.patience_s) as limit:
                chunk = await anext(chunks, None)
        except TimeoutError:
            if limit.expired():
                raise BodyCutShort("the origin sends its answer too slowly") from None
            raise
        if chunk is None:
            return
        pace.note(loop.time() - began_s, len(chunk))
        yield chunk
