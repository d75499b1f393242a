"""``CountedOrigin``: counts every request to the origin in the statistics.

This wrapper is around the wrappers that retry and verify, so it counts requests as its callers see them. A
request that was retried three times counts once, with the whole time that the caller waited. Bytes are those
of the bodies that came from the origin.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Unpack

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEFAULT_BOUNDS, ReadBounds
from shadeproxy.core.errors import DeadlineExceeded, OriginAnswer, OriginError, OtherRegion, Unidentified
from shadeproxy.core.types import SHARED, ListPage, ObjectMeta, ObjectRef, Upstream
from shadeproxy.origin.base import (
    Arrived,
    ForwardRequest,
    ForwardResponse,
    HandedOver,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.wrapping import WrappedOrigin
from shadeproxy.telemetry.stats import Stats

_SLOW_DOWN = frozenset({429, 503})
# A read that is cancelled without an answer counts as a failure of the origin only if it waited for this
# share of the time limit for the first byte.
_SILENT = 0.5


class CountedOrigin(WrappedOrigin):
    """Counts the requests to ``inner``; see ``Origin`` for the methods."""

    def __init__(
        self,
        inner: Origin,
        *,
        stats: Stats,
        clock: Clock,
        health: OriginHealth | None = None,
        bounds: ReadBounds = DEFAULT_BOUNDS,
    ) -> None:
        super().__init__(inner)
        self.now_s = clock.monotonic_s
        """Return the time on the clock by which requests are measured, in seconds."""
        self._stats = stats
        self._health = health or OriginHealth(clock)
        self._silent_s = _SILENT * bounds.first_byte_s

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        with self._request("head"):
            return await self._inner.head(ref, upstream=upstream)

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        return _CountedRead(self, self._inner.open(ref, **options), options.get("handed"))

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
                if response.status in _SLOW_DOWN:
                    self.note_throttled()
                yield replace(response, chunks=chunks)

    def unanswered(self, started_s: float, error: BaseException) -> BaseException:
        """Return the error to count for a read that got no answer: ``error``, or DeadlineExceeded if the
        reader gave up because the origin had been silent for too long.
        """
        waited_s = self.now_s() - started_s
        if isinstance(error, asyncio.CancelledError) and waited_s >= self._silent_s:
            return DeadlineExceeded(f"no answer of the origin within {waited_s:.3g} s")
        return error

    def note_throttled(self) -> None:
        """Count a forwarded answer by which the origin asks for fewer requests."""
        self._health.throttled += 1

    def note(self, kind: str, size_bytes: int, started_s: float, failure: BaseException | None) -> None:
        """Count a request that has ended. ``failure``: the error that ended it; None if it succeeded."""
        if failure is None:
            self._health.answered()
        elif isinstance(failure, OriginError):
            self._health.gave_up(failure)
            # A 404 or a region is an answer, so the origin has not failed.
            if not isinstance(failure, OriginAnswer | OtherRegion | Unidentified):
                self._stats.record_origin_error(type(failure).__name__)
        self._stats.record_origin(kind, size_bytes, self.now_s() - started_s)

    def note_first_byte(self, started_s: float) -> None:
        """Count the time from ``started_s`` until a read's first byte. Call it when this byte has arrived."""
        self._stats.record_first_byte("get", self.now_s() - started_s)

    def note_whole(self, reads: Iterable[tuple[int, float]]) -> None:
        """Count reads that got all their bytes. ``reads``: for each, its bytes and the time of its start."""
        # This repeats ``OriginHealth.answered`` without its calls, because every turn of the loop with misses
        # comes here.
        self._health.answering, self._health.known_s = True, (now_s := self.now_s())
        self._stats.record_origin_reads(reads, now_s)

    @contextmanager
    def _request(self, kind: str) -> Iterator[list[int]]:
        """Count one request. It yields a list with one number, to which the caller adds the bytes of the
        body.
        """
        counted, started_s = [0], self.now_s()
        failure: BaseException | None = None
        try:
            yield counted
        except BaseException as error:
            failure = error
            raise
        finally:
            self.note(kind, counted[0], started_s, failure)


class _CountedRead:
    """A read that is counted when its context is left. As an iterator, it yields the pieces of its body."""

    def __init__(
        self,
        origin: CountedOrigin,
        inner: AbstractAsyncContextManager[OriginRead],
        handed: HandedOver | None = None,
    ) -> None:
        self._origin = origin
        self._inner = inner
        self._started_s = 0.0 if handed is None else handed.started_s
        self._counted_bytes = 0 if handed is None else handed.received_bytes
        self._reading: OriginRead

    async def __aenter__(self) -> OriginRead:
        self._started_s = self._started_s or self._origin.now_s()
        try:
            self._reading = reading = await self._inner.__aenter__()
        except BaseException as error:
            # Give the error to count no local name. Otherwise this frame and the error would refer to each
            # other, and stay in memory until the garbage collector runs.
            self._origin.note(
                "get", self._counted_bytes, self._started_s, self._origin.unanswered(self._started_s, error)
            )
            raise
        self._origin.note_first_byte(self._started_s)
        receive = None if reading.receive is None else self._receive
        return OriginRead(reading.meta, reading.span, self, receive, reading.doubtful, reading.pass_on)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._origin.note("get", self._counted_bytes, self._started_s, error)

    def __aiter__(self) -> "_CountedRead":
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._reading.chunks)
        self._counted_bytes += len(chunk)
        return chunk

    def _receive(self, buffer: memoryview, arrived: Arrived) -> Awaitable[None]:
        def note(count: int) -> None:
            self._counted_bytes += count
            arrived(count)

        receive = self._reading.receive
        assert receive is not None, "given on only where there is one"
        return receive(buffer, note)


async def _counting(chunks: AsyncIterator[bytes], counted: list[int]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        counted[0] += len(chunk)
        yield chunk
