"""``OtelReads``: makes an otel span of each read by callbacks. Built only if otel spans are on.

If callbacks hand a read over to a coroutine, its span here is dropped: the coroutine asks an ``OtelOrigin``,
which makes one span for the whole read.
"""

import asyncio

from shadeproxy.core.clock import Clock
from shadeproxy.core.delegated_body import BodyWriter
from shadeproxy.core.errors import OriginError
from shadeproxy.core.types import Intent, ObjectMeta
from shadeproxy.origin.base import Arrived, CallbackOrigin, HandedOver, Sink, StartedRead, Wanted
from shadeproxy.origin.otel_origin import ATTEMPTS, BODY_BYTES, FIRST_BYTE_S, begin_request, end_request
from shadeproxy.telemetry.otel import SERVED, OtelSpan, OtelTracer


class OtelReads:
    """Makes the spans of reads of ``inner``. Implements ``CallbackOrigin``."""

    def __init__(self, inner: CallbackOrigin, tracer: OtelTracer, clock: Clock) -> None:
        self.lends_memory = inner.lends_memory
        """See ``CallbackOrigin.lends_memory``."""
        self._inner = inner
        self._tracer = tracer
        self._clock = clock

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> StartedRead | None:
        """See ``CallbackOrigin.start``."""
        spanned = _SpannedSink(sink, self._clock)
        read = self._inner.start(wanted, intent, spanned)
        if read is None:
            return None
        # No answer arrives before the next turn of the loop, so the span may begin now.
        ref = wanted.ref
        spanned.begin(begin_request(self._tracer, "GET", ref.bucket, ref.key, intent=intent))
        return _SpannedRead(read, spanned)


class _SpannedRead:
    """A read whose span is ended when the read is given up. Implements ``StartedRead``."""

    def __init__(self, read: StartedRead, spanned: "_SpannedSink") -> None:
        self._read = read
        self._spanned = spanned

    def abort(self) -> None:
        """See ``StartedRead.abort``."""
        self._read.abort()
        self._spanned.give_up()


class _SpannedSink:
    """Ends the span of a read, and passes all calls on to ``inner``. Implements ``Sink``."""

    def __init__(self, inner: Sink, clock: Clock) -> None:
        self._inner = inner
        self._now_s = clock.monotonic_s
        self._began_s = self._now_s()
        self._served = SERVED.get()
        self._span: OtelSpan
        self._over = False

    def begin(self, span: OtelSpan) -> None:
        """Use ``span`` for this read."""
        self._span = span

    @property
    def arrived(self) -> Arrived:
        """See ``Sink.arrived``."""
        return self._inner.arrived

    def opened(
        self,
        meta: ObjectMeta,
        length: int,
        *,
        doubtful: bool = False,
        held: bool = False,
        memory: memoryview | None = None,
    ) -> memoryview | None:
        """See ``Sink.opened``."""
        self._span.note({FIRST_BYTE_S: self._now_s() - self._began_s, BODY_BYTES: length})
        return self._inner.opened(meta, length, doubtful=doubtful, held=held, memory=memory)

    def complete(self, writer: BodyWriter | None = None) -> None:
        """See ``Sink.complete``."""
        self._end(None)
        self._inner.complete(writer)

    def failed(self, error: OriginError) -> None:
        """See ``Sink.failed``."""
        self._end(error)
        self._inner.failed(error)

    def hand_over(self, handed: HandedOver) -> None:
        """See ``Sink.hand_over``. The task that continues the read inherits ``SERVED``. But the caller is a
        connection, which serves many requests. So set ``SERVED`` to the request that began this read.
        """
        self._over = True
        served = SERVED.set(self._served)
        try:
            self._inner.hand_over(handed)
        finally:
            SERVED.reset(served)

    def give_up(self) -> None:
        """End the span of a read that no reader wants any more; idempotent."""
        if not self._over:
            self._end(asyncio.CancelledError())

    def _end(self, error: BaseException | None) -> None:
        self._over = True
        self._span.note({ATTEMPTS: 1})
        end_request(self._span, error)
