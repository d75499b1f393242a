"""``OtelOrigin``: makes an otel span of each request to the origin. Built only if otel spans are on.

One span is one request as its caller sees it, with its waits and all its attempts. ``CountedAttempts``, which
wraps the origin below the retries, counts the attempts. The parent of a span is the client's request that is
being served when the span begins. The span of a prefetch has no parent, because no client waits for it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Unpack

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import ENDLESS, SHARED, Intent, ListPage, ObjectMeta, ObjectRef, Upstream
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.origin.wrapping import WrappedOrigin
from shadeproxy.telemetry.otel import (
    ASKED_FAILS_FROM,
    BUCKET,
    CANCELLED,
    METHOD,
    SERVED,
    STATUS,
    OtelSpan,
    OtelTracer,
    Value,
    failure_of,
)

ATTEMPTS = "shadeproxy.attempts"
BODY_BYTES = "shadeproxy.body_bytes"
FIRST_BYTE_S = "shadeproxy.first_byte_s"


class _Attempts:
    """The number of attempts that were made for one call."""

    def __init__(self) -> None:
        self.count = 0


_COUNTED: ContextVar[_Attempts | None] = ContextVar("attempts", default=None)
"""The attempts of the call that this task is making; None if it makes none."""


def begin_request(
    tracer: OtelTracer,
    method: str,
    bucket: str,
    key: str = "",
    *,
    intent: Intent = Intent.DEMAND,
    age_s: float = 0.0,
) -> OtelSpan:
    """Begin the otel span of a request to the origin. ``age_s``: see ``OtelTracer.begin_asked``."""
    facts: dict[str, Value] = {METHOD: method, "shadeproxy.intent": intent.name.lower()}
    if bucket:
        facts[BUCKET] = bucket
    if key:
        facts["aws.s3.key"] = key
    parent = SERVED.get() if intent is Intent.DEMAND else None
    return tracer.begin_asked(f"origin {method}", facts, parent=parent, age_s=age_s)


def end_request(span: OtelSpan, error: BaseException | None) -> None:
    """End the span of a request. ``error``: the failure that ended the request; None if it succeeded."""
    if isinstance(error, OriginAnswer):
        span.note({STATUS: error.status})
    if isinstance(error, asyncio.CancelledError):
        # All readers have gone, for which the origin is not to blame.
        span.note({CANCELLED: True})
        error = None
    span.end("" if error is None else type(error).__name__)


class OtelOrigin(WrappedOrigin):
    """Makes the spans of requests to ``inner``; see ``Origin`` for the methods."""

    def __init__(self, inner: Origin, tracer: OtelTracer, clock: Clock) -> None:
        super().__init__(inner)
        self.tracer = tracer
        self.now_s = clock.monotonic_s
        """Return the time on the clock by which first bytes are measured, in seconds."""

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        with self._request("HEAD", ref.bucket, ref.key):
            return await self._inner.head(ref, upstream=upstream)

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        return _OtelRead(self, self._inner.open(ref, **options), ref, options)

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        with self._request("LIST", bucket):
            return await self._inner.list_objects(bucket, prefix, **options)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        span = begin_request(self.tracer, request.method, request.ref.bucket, request.ref.key)
        began_s = self.now_s()
        try:
            async with self._inner.forward(request) as response:
                span.note({STATUS: response.status, FIRST_BYTE_S: self.now_s() - began_s})
                yield response
        except BaseException as error:
            end_request(span, error)
            raise
        span.end(failure_of(response.status, ASKED_FAILS_FROM))

    @contextmanager
    def _request(self, method: str, bucket: str, key: str = "") -> Iterator[None]:
        span, attempts = begin_request(self.tracer, method, bucket, key), _Attempts()
        before = _COUNTED.set(attempts)
        try:
            yield
        except BaseException as error:
            span.note({ATTEMPTS: attempts.count})
            end_request(span, error)
            raise
        finally:
            _COUNTED.reset(before)
        span.note({ATTEMPTS: attempts.count})
        span.end()


class CountedAttempts(WrappedOrigin):
    """Counts the attempts of each call, for the ``OtelOrigin`` above it."""

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        _count()
        return await self._inner.head(ref, upstream=upstream)

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        _count()
        return self._inner.open(ref, **options)

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        _count()
        return await self._inner.list_objects(bucket, prefix, **options)


def _count() -> None:
    if (attempts := _COUNTED.get()) is not None:
        attempts.count += 1


class _OtelRead:
    """Makes the span of one read. The span ends when the read's context is left.

    If callbacks began the read and handed it over, this is its only span, and it is counted from the
    beginning of the read by callbacks. The span of the read by callbacks is dropped (otel_reads.py).
    """

    def __init__(
        self,
        origin: OtelOrigin,
        inner: AbstractAsyncContextManager[OriginRead],
        ref: ObjectRef,
        options: OpenOptions,
    ) -> None:
        self._origin = origin
        self._inner = inner
        self._ref = ref
        self._options = options
        self._attempts = _Attempts()
        self._before: _Attempts | None = None
        self._span: OtelSpan

    async def __aenter__(self) -> OriginRead:
        origin, handed, began_s = self._origin, self._options.get("handed"), self._origin.now_s()
        if handed is not None:
            began_s = handed.started_s
            self._attempts.count += handed.error is not None
        intent = self._options.get("intent", Intent.DEMAND)
        self._span = begin_request(
            origin.tracer,
            "GET",
            self._ref.bucket,
            self._ref.key,
            intent=intent,
            age_s=origin.now_s() - began_s,
        )
        # Keep the variable set until the read is left: if its body breaks off, a further attempt is made,
        # which must be counted too.
        self._before = _COUNTED.get()
        _COUNTED.set(self._attempts)
        try:
            reading = await self._inner.__aenter__()
        except BaseException as error:
            self._end(error)
            raise
        self._span.note({FIRST_BYTE_S: origin.now_s() - began_s})
        if reading.span.stop < ENDLESS:
            self._span.note({BODY_BYTES: reading.span.length})
        return reading

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        _COUNTED.set(self._before)
        self._span.note({ATTEMPTS: self._attempts.count})
        end_request(self._span, error)
