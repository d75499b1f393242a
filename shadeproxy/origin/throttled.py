"""``ThrottledOrigin``: an origin behind a link of limited bandwidth, which all bodies share.

Bytes pass in the order in which they are ready, as on a wire: no body goes before others, and no byte is
lost. Only bodies from the origin are limited. Requests, uploads and header fields pass at once.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Unpack

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.origin.wrapping import WrappedOrigin

_CREDIT_S = 0.01
"""Seconds of idle time that the link may catch up on, because an event loop wakes later than requested."""


class ThrottledOrigin(WrappedOrigin):
    """Limits all bodies of ``inner`` together to ``bytes_per_s``, which may be changed at any time."""

    def __init__(self, inner: Origin, *, bytes_per_s: float, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self.bytes_per_s = bytes_per_s
        self._clock = clock or SystemClock()
        self._free_s = self._clock.monotonic_s()

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        async with (
            self._inner.open(ref, **options) as reading,
            aclosing(self._carried(reading.chunks)) as chunks,
        ):
            yield replace(reading, chunks=chunks, receive=None)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        async with (
            self._inner.forward(request) as response,
            aclosing(self._carried(response.chunks)) as chunks,
        ):
            yield replace(response, chunks=chunks)

    async def _carried(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            now_s = self._clock.monotonic_s()
            self._free_s = max(self._free_s, now_s - _CREDIT_S) + len(chunk) / self.bytes_per_s
            if self._free_s > now_s:
                await self._clock.sleep(self._free_s - now_s)
            yield chunk
