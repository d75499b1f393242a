"""``RetryingOrigin``: repeats what may be repeated, with exponential backoff and full jitter.

Repeated: head, list_objects, open before its first byte, and a body that broke off, which goes on from
where it stopped, on the same version (If-Match). Never repeated: forward (a body may have been sent; the
client knows better), and errors that are final. One budget of attempts holds for a whole read.
Source: "Exponential Backoff And Jitter", AWS Architecture Blog; Retry-After: RFC 9110 section 10.2.3.
"""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar, Unpack

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.errors import OriginError, OriginUnavailable
from shadeproxy.core.types import SHARED, ListPage, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryRule:
    """``attempts`` in all; the n-th wait is random in [0, min(max_delay_s, base_delay_s * 2**n)].

    A Retry-After of the origin is waited for in full; one beyond ``max_delay_s`` ends the attempts.
    """

    attempts: int = 4
    base_delay_s: float = 0.1
    max_delay_s: float = 5.0


class RetryingOrigin:
    """``inner``, patiently. ``retries`` counts the repetitions."""

    def __init__(
        self,
        inner: Origin,
        *,
        rule: RetryRule | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._inner = inner
        self._rule = rule or RetryRule()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy
        self.retries = 0

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        return await self._repeat(_Budget(self._rule), lambda: self._inner.head(ref, upstream=upstream))

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        return await self._repeat(
            _Budget(self._rule),
            lambda: self._inner.list_objects(bucket, prefix, **options),
        )

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        budget = _Budget(self._rule)

        def attempt(wanted: Span | None, etag: str | None) -> AbstractAsyncContextManager[OriginRead]:
            again: OpenOptions = {**options, "span": wanted, "if_match": etag}
            return self._inner.open(ref, **again)

        async with AsyncExitStack() as stack:
            reading = await self._repeat(
                budget,
                lambda: stack.enter_async_context(attempt(options.get("span"), options.get("if_match"))),
            )
            async with aclosing(self._resume(reading, budget, stack, attempt)) as chunks:
                yield OriginRead(reading.meta, reading.span, chunks)

    async def _resume(
        self,
        reading: OriginRead,
        budget: "_Budget",
        stack: AsyncExitStack,
        attempt: Callable[[Span, str], AbstractAsyncContextManager[OriginRead]],
    ) -> AsyncGenerator[bytes, None]:
        at, etag, chunks = reading.span.start, reading.meta.etag, reading.chunks
        while True:
            try:
                async for chunk in chunks:
                    at += len(chunk)
                    yield chunk
            except OriginError as error:
                # The broken connection goes before the wait: its slot is of use to others meanwhile, and
                # one read never holds two.
                await stack.aclose()
                await self._back_off(error, budget)
            else:
                return
            rest = Span(at, reading.span.stop)
            resumed = await self._repeat(budget, lambda: stack.enter_async_context(attempt(rest, etag)))  # noqa: B023 - awaited within this turn
            chunks = resumed.chunks

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        return self._inner.forward(request)

    async def probe(self) -> str:
        """Not repeated: ``check`` wants to see the first error."""
        return await self._inner.probe()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _repeat(self, budget: "_Budget", call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except OriginError as error:
                await self._back_off(error, budget)

    async def _back_off(self, error: OriginError, budget: "_Budget") -> None:
        """Wait before the next attempt, or raise ``error`` when there is none."""
        if not error.retryable or not budget.left:
            raise error
        limit_s = min(self._rule.max_delay_s, self._rule.base_delay_s * 2**budget.used)
        delay_s = self._rng.uniform(0, limit_s)
        asked_s = error.retry_after_s if isinstance(error, OriginUnavailable) else None
        if asked_s is not None:
            if asked_s > self._rule.max_delay_s:
                raise error
            delay_s = max(delay_s, asked_s)
        budget.used += 1
        self.retries += 1
        await self._clock.sleep(delay_s)


class _Budget:
    """Attempts of one call: ``used`` repetitions so far."""

    def __init__(self, rule: RetryRule) -> None:
        self._repetitions = rule.attempts - 1
        self.used = 0

    @property
    def left(self) -> bool:
        return self.used < self._repetitions
