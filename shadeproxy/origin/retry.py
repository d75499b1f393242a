"""``RetryingOrigin``: repeats failed requests where that is safe, with exponential backoff and full jitter.

It repeats head, list_objects, open before its first byte, and reads whose body broke off. A broken body
continues where it stopped, at the same version (If-Match), if the answer identifies its version. Three things
are never repeated: a forwarded request, because its body may have been sent, and the client must decide;
probe, because the command ``check`` must see the first error; and a request whose error is final. All
attempts of a read have one budget. Source: "Exponential Backoff And Jitter", AWS Architecture Blog;
Retry-After: RFC 9110 section 10.2.3.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar, Unpack

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.errors import OriginAnswer, OriginError, OriginUnavailable
from shadeproxy.core.types import SHARED, ListPage, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin.base import (
    Arrived,
    HandedOver,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.wrapping import WrappedOrigin

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The number of attempts, and the waits between them. The n-th wait is a random time in [0,
    min(max_delay_s, base_delay_s * 2**n)].

    If the origin sends Retry-After, the wait is at least that long. If Retry-After is longer than
    ``max_delay_s``, there is no further attempt.
    """

    attempts: int = 4
    base_delay_s: float = 0.1
    max_delay_s: float = 5.0


class RetryingOrigin(WrappedOrigin):
    """Repeats failed requests to ``inner`` where that is safe; see ``Origin`` for the methods."""

    def __init__(
        self,
        inner: Origin,
        *,
        rule: RetryRule | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        health: OriginHealth | None = None,
    ) -> None:
        super().__init__(inner)
        self._rule = rule or RetryRule()
        self._clock = clock or SystemClock()
        self._health = health or OriginHealth(self._clock)
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        return await self.repeat(Budget(self._rule), lambda: self._inner.head(ref, upstream=upstream))

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        return await self.repeat(
            Budget(self._rule),
            lambda: self._inner.list_objects(bucket, prefix, **options),
        )

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        return _RetriedRead(self, self._inner, Budget(self._rule), ref, options)

    async def repeat(self, budget: "Budget", call: Callable[[], Awaitable[T]]) -> T:
        """Call ``call`` until it succeeds or no attempt is left. Return its result, or raise its
        last error.
        """
        while True:
            try:
                return await call()
            except OriginError as error:
                if not await self.backs_off(error, budget):
                    raise

    async def backs_off(self, error: OriginError, budget: "Budget") -> bool:
        """Wait before the next attempt, and return True. Return False at once if no attempt may follow.

        The caller must raise the error. If this method raised it, the method's frame, and with it the memory
        of the page, would stay alive until the garbage collector runs.
        """
        if error.retryable:
            self._health.attempt_failed(error)
        if not error.retryable or not budget.left:
            return False
        limit_s = min(self._rule.max_delay_s, self._rule.base_delay_s * 2**budget.used)
        delay_s = self._rng.uniform(0, limit_s)
        asked_s = error.retry_after_s if isinstance(error, OriginUnavailable) else None
        if asked_s is not None:
            if asked_s > self._rule.max_delay_s:
                return False
            delay_s = max(delay_s, asked_s)
        budget.used += 1
        await self._clock.sleep(delay_s)
        return True


class Budget:
    """The attempts of one call. ``used``: the number of repetitions so far."""

    def __init__(self, rule: RetryRule) -> None:
        self._repetitions = rule.attempts - 1
        self.used = 0

    @property
    def left(self) -> bool:
        return self.used < self._repetitions


class _RetriedRead:
    """A read that continues on another connection if its connection breaks. As an iterator, it yields the
    pieces of its body.

    It has at most one read of ``inner`` open at a time.
    """

    def __init__(
        self, origin: RetryingOrigin, inner: Origin, budget: Budget, ref: ObjectRef, options: OpenOptions
    ) -> None:
        self._origin = origin
        self._inner = inner
        self._budget = budget
        self._ref = ref
        self._handed = options.get("handed") or HandedOver(started_s=0.0)
        self._options: OpenOptions = {**options, "handed": self._handed}
        self._opened: AbstractAsyncContextManager[OriginRead] | None = None
        self._first: OriginRead
        self._reading: OriginRead
        self._at = 0  # Position, in the object, of the next byte.
        self._over = False

    async def __aenter__(self) -> OriginRead:
        try:
            self._first = self._reading = first = await self._open_first()
        except BaseException:
            self._handed.close()
            raise
        self._at = first.span.start
        receive = None if first.receive is None else self._receive
        return OriginRead(first.meta, first.span, self, receive, first.doubtful, first.pass_on)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._handed.keeps_slot = False
        try:
            await self._close(kind, error, trace)
        finally:
            self._handed.close()

    def __aiter__(self) -> "_RetriedRead":
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                chunk = await anext(self._reading.chunks)
            except OriginError as error:
                if not await self._may_go_on(error):
                    raise
                await self._go_on(error)
            else:
                self._at += len(chunk)
                return chunk

    async def _receive(self, buffer: memoryview, arrived: Arrived) -> None:
        start = self._at

        def note(count: int) -> None:
            self._at += count
            arrived(count)

        while True:
            try:
                await self._reading.read_into(buffer[self._at - start :], note)
            except OriginError as error:
                if not await self._may_go_on(error):
                    raise
                await self._go_on(error)
            else:
                return

    async def _open_first(self) -> OriginRead:
        """Open the read. If it was handed over with an error, this error counts as that of the
        first attempt.
        """
        handed = self._handed
        failure = handed.take_error()
        if failure is None:
            return await self._open()
        if not await self._origin.backs_off(failure, self._budget):
            raise failure
        try:
            return await self._open()
        except OriginAnswer as answer:
            if answer.status == 416 and handed.received_bytes:
                # The object ends where the body broke off, so the length announced was wrong. See ``_go_on``.
                raise failure from answer
            raise

    async def _open(self) -> OriginRead:
        """Open the read, with repeated attempts as in ``repeat``, but in fewer steps if the first one
        succeeds.
        """
        while True:
            opened = self._inner.open(self._ref, **self._options)
            try:
                reading = await opened.__aenter__()
            except OriginError as error:
                if not await self._origin.backs_off(error, self._budget):
                    raise
            else:
                self._opened = opened
                return reading

    async def _close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.__aexit__(kind, error, trace)

    async def _may_go_on(self, error: OriginError) -> bool:
        # Close the broken read before the wait, but keep its slot. The reader holds memory, and the reads
        # with the other slots may wait for it. If this read waited for a new slot, all would be stuck.
        self._handed.keeps_slot = True
        await self._close()
        if self._first.pass_on is not None:
            return False  # The rest might belong to another version.
        # No read may be opened after this one has ended, because nothing would close it.
        return not self._over and await self._origin.backs_off(error, self._budget)

    async def _go_on(self, error: OriginError) -> None:
        """Open the rest of the body at the same version. Raises ``error`` if the object has no rest."""
        rest = Span(self._at, self._first.span.stop)
        self._options = {**self._options, "span": rest, "if_match": self._first.meta.etag}
        try:
            self._reading = await self._open()
        except OriginAnswer as answer:
            # The object ends where the body broke off, so the length announced was wrong. The caller has
            # asked for no range of its own, and must not get an error about one.
            if answer.status == 416:
                raise error from answer
            raise
