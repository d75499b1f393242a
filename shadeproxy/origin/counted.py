"""``CountedOrigin``: every request to the origin in the statistics, whoever makes it.

The outermost wrapper: it sees what callers see, so a request that was retried three times counts
once, with the time the caller waited. Bytes are those of bodies that came from the origin.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Unpack

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import OriginAnswer, OriginError
from shadeproxy.core.types import SHARED, ListPage, ObjectMeta, ObjectRef, Upstream
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.telemetry.stats import Stats


class CountedOrigin:
    """Wraps ``inner``; see ``Origin`` for the methods."""

    def __init__(self, inner: Origin, *, stats: Stats, clock: Clock) -> None:
        self._inner = inner
        self._stats = stats
        self._clock = clock

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        with self._request("head"):
            return await self._inner.head(ref, upstream=upstream)

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        with self._request("get") as counted:
            opened = self._inner.open(ref, **options)
            async with opened as read, aclosing(_counting(read.chunks, counted)) as chunks:
                yield replace(read, chunks=chunks)

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        with self._request("list"):
            return await self._inner.list_objects(bucket, prefix, **options)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        with self._request("forward") as counted:
            async with (
                self._inner.forward(request) as response,
                aclosing(_counting(response.chunks, counted)) as chunks,
            ):
                yield replace(response, chunks=chunks)

    async def probe(self) -> str:
        return await self._inner.probe()

    async def aclose(self) -> None:
        await self._inner.aclose()

    @contextmanager
    def _request(self, kind: str) -> Iterator[list[int]]:
        """Count one request; the caller adds body bytes to the yielded cell."""
        counted, started_s = [0], self._clock.monotonic_s()
        try:
            yield counted
        except OriginAnswer:
            raise  # a 404 is an answer, not a failure of the origin
        except OriginError as error:
            self._stats.record_origin_error(type(error).__name__)
            raise
        finally:
            self._stats.record_origin(kind, counted[0], self._clock.monotonic_s() - started_s)


async def _counting(chunks: AsyncIterator[bytes], counted: list[int]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        counted[0] += len(chunk)
        yield chunk
