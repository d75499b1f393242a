"""``DelayedOrigin``: delays every answer of an origin, for experiments and the demo (``origin.delay``)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from shadeproxy.core.clock import Clock
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


class DelayedOrigin(WrappedOrigin):
    """Waits ``delay_s`` before it passes a request on to ``inner``; see ``Origin`` for the methods."""

    def __init__(self, inner: Origin, *, delay_s: float, clock: Clock) -> None:
        super().__init__(inner)
        self._delay_s = delay_s
        self._clock = clock

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        await self._clock.sleep(self._delay_s)
        return await self._inner.head(ref, upstream=upstream)

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        await self._clock.sleep(self._delay_s)
        async with self._inner.open(ref, **options) as reading:
            yield reading

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        await self._clock.sleep(self._delay_s)
        return await self._inner.list_objects(bucket, prefix, **options)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        await self._clock.sleep(self._delay_s)
        async with self._inner.forward(request) as response:
            yield response

    async def probe(self) -> str:
        await self._clock.sleep(self._delay_s)
        return await self._inner.probe()
