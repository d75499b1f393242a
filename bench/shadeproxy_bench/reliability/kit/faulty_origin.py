"""``FaultyOrigin``: an origin that fails on request, for tests and long runs.

Faults come from a script (one entry for each call, in order) or, after its end, from a seeded draw. The same
seed gives the same faults. The origin never invents bytes: it yields the inner origin's bytes, delayed, cut,
under another ETag or length, or with one bit flipped.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Unpack

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.errors import BodyCutShort, OriginError
from shadeproxy.core.types import SHARED, ListPage, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.origin.wrapping import WrappedOrigin


@dataclass(frozen=True, slots=True)
class Fault:
    """The faults of one call. Several of the fields may be set together.

    ``delay_s``: wait before anything else. ``error``: raise it instead of answering. ``cut_after_bytes``:
    raise BodyCutShort after this many bytes. ``stall_after_bytes``: send nothing more after this many bytes,
    until the reader gives up. ``trickle_bytes``: send pieces of this size, each after ``trickle_delay_s``.
    ``flip_etag``: claim another version. ``flip_bit_at``: flip the last bit of the byte at this place of the
    body. ``short_by_bytes``: claim that the object is shorter by this many bytes, so that a reader that keeps
    to ``span`` misses the object's end. If this is negative, claim that the object is longer, and break the
    body off at its true end.
    """

    delay_s: float = 0.0
    error: OriginError | None = None
    cut_after_bytes: int | None = None
    stall_after_bytes: int | None = None
    trickle_bytes: int | None = None
    trickle_delay_s: float = 0.0
    flip_etag: bool = False
    flip_bit_at: int | None = None
    short_by_bytes: int = 0


NO_FAULT = Fault()


class FaultyOrigin(WrappedOrigin):
    """``inner`` with ``delay_s`` before every call, and with faults: first the faults of ``script``, then
    drawn faults.

    ``rate``: probability that a call after the script's end has one of ``faults``. ``stalled`` is set when a
    body stalls. ``calls`` counts all calls.
    """

    def __init__(
        self,
        inner: Origin,
        *,
        delay_s: float = 0.0,
        script: Iterable[Fault | None] = (),
        faults: Sequence[Fault] = (),
        rate: float = 0.0,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(inner)
        self._delay_s = delay_s
        self._script = deque(script)
        self._faults = faults
        self._rate = rate
        self._rng = random.Random(seed)
        self._clock = clock or SystemClock()
        self.stalled = asyncio.Event()
        self.calls = 0

    def enqueue(self, *faults: Fault | None) -> None:
        """Append faults to the script."""
        self._script.extend(faults)

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        fault = await self._begin()
        return _claim(await self._inner.head(ref, upstream=upstream), fault)

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        fault = await self._begin()
        opened = self._inner.open(ref, **options)
        async with opened as reading, aclosing(self._spoil(reading.chunks, fault)) as chunks:
            direct = None if _spoils(fault) else reading.receive
            span = Span(reading.span.start, reading.span.stop - fault.short_by_bytes)
            yield OriginRead(_claim(reading.meta, fault), span, chunks, direct)

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        await self._begin()
        return await self._inner.list_objects(bucket, prefix, **options)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        fault = await self._begin()
        async with (
            self._inner.forward(request) as response,
            aclosing(self._spoil(response.chunks, fault)) as chunks,
        ):
            yield replace(response, chunks=chunks)

    async def probe(self) -> str:
        await self._begin()
        return await self._inner.probe()

    async def _begin(self) -> Fault:
        self.calls += 1
        fault = self._next_fault()
        delay_s = self._delay_s + fault.delay_s
        if delay_s > 0:
            await self._clock.sleep(delay_s)
        if fault.error is not None:
            raise fault.error
        return fault

    def _next_fault(self) -> Fault:
        if self._script:
            return self._script.popleft() or NO_FAULT
        if self._faults and self._rng.random() < self._rate:
            return self._rng.choice(self._faults)
        return NO_FAULT

    async def _spoil(self, chunks: AsyncIterator[bytes], fault: Fault) -> AsyncGenerator[bytes, None]:
        given, at = 0, fault.flip_bit_at
        async for chunk in chunks:
            if at is not None and given <= at < given + len(chunk):
                flipped = bytearray(chunk)
                flipped[at - given] ^= 1
                chunk = bytes(flipped)  # noqa: PLW2901 (damaged as it passes)
            for piece in _pieces(chunk, fault.trickle_bytes):
                if fault.trickle_delay_s:
                    await self._clock.sleep(fault.trickle_delay_s)
                stop = min(
                    limit
                    for limit in (fault.cut_after_bytes, fault.stall_after_bytes, given + len(piece))
                    if limit is not None
                )
                if stop > given:
                    yield piece[: stop - given]
                if stop < given + len(piece):
                    await self._break_off(fault, stop)
                given = stop
        if fault.short_by_bytes < 0:
            await self._break_off(fault, given)

    async def _break_off(self, fault: Fault, at: int) -> None:
        if fault.stall_after_bytes == at:
            self.stalled.set()
            await asyncio.get_running_loop().create_future()
        raise BodyCutShort(f"the origin ended a body after {at} bytes")


def _spoils(fault: Fault) -> bool:
    """Return whether the fault delays, cuts or changes the body."""
    spoiled = fault.cut_after_bytes, fault.stall_after_bytes, fault.trickle_bytes, fault.flip_bit_at
    return any(one is not None for one in spoiled) or bool(fault.trickle_delay_s or fault.short_by_bytes < 0)


def _claim(meta: ObjectMeta, fault: Fault) -> ObjectMeta:
    claimed = replace(meta, size=meta.size - fault.short_by_bytes)
    return replace(claimed, etag='"another-version"') if fault.flip_etag else claimed


def _pieces(chunk: bytes, size: int | None) -> Iterable[bytes]:
    if size is None:
        return (chunk,)
    return (chunk[start : start + size] for start in range(0, len(chunk), size))
