"""``OtelWorkerMisses``: makes otel spans of the reads for which a worker fetches pages.

Built only if otel spans are on.

The coordinator makes the span of a read that the worker relays. If the worker had asked the origin before,
the read also has a span here, which says that the read was relayed. If the coordinator must finish a page
that the worker began, it makes a span of its own request to the origin. If the page's reader is a client of
the worker, that span has no parent.
"""

import asyncio
from typing import Any

from shadeproxy.api.s3.exchange import Asked
from shadeproxy.api.s3.otel_handler import OtelRequests
from shadeproxy.api.s3.worker_fill import WorkerFill, WorkerOutlet
from shadeproxy.api.s3.worker_misses import WorkerMisses
from shadeproxy.core.clock import Clock
from shadeproxy.core.tracing import REQUEST_ID
from shadeproxy.core.types import Intent
from shadeproxy.origin.base import CallbackOrigin, Sink, StartedRead, Wanted
from shadeproxy.origin.otel_reads import OtelReads
from shadeproxy.telemetry.otel import SERVED, OtelSpan, OtelTracer


class OtelWorkerMisses(WorkerMisses):
    """WorkerMisses whose reads have otel spans. ``spans`` ends the span of a read when the read is
    reported.
    """

    def __init__(self, *parts: Any, tracer: OtelTracer, spans: OtelRequests, **options: Any) -> None:
        """``parts``, ``options``: see WorkerMisses."""
        super().__init__(*parts, **options)
        self._spans = spans
        self._begun = _WorkerOtelReads(self.reads, tracer, self.clock, spans)
        self.reads = self._begun

    def begin(self, outlet: WorkerOutlet, asked: Asked) -> WorkerFill | None:
        """Begin a read as ``WorkerMisses.begin`` does, and give it a span."""
        fill = super().begin(outlet, asked)
        if fill is not None:
            self._begun.served[fill] = self._spans.begin(asked.call.request.fields, asked.call.operation.name)
        return fill

    def forget(self, ident: int) -> None:
        """Forget the fill with this number, because it has ended. If its read is not reported by the end of
        this turn of the loop, the read was relayed, and its span says so.
        """
        fill = self._fills.get(ident)
        super().forget(ident)
        if fill is not None:
            self._begun.served.pop(fill, None)
            request_id = self._begun.request_ids.pop(fill, "")
            # Wait for the next turn of the loop, because a read that this worker has answered is reported
            # just after it is forgotten.
            asyncio.get_running_loop().call_soon(self._spans.relay, request_id)


class _WorkerOtelReads(OtelReads):
    """Makes the spans of requests to the origin. The parent of each is the span of the read that waits for
    it.

    ``served``: spans of reads that have not asked the origin yet. ``request_ids``: request ids of reads that
    have asked the origin.
    """

    def __init__(self, inner: CallbackOrigin, tracer: OtelTracer, clock: Clock, spans: OtelRequests) -> None:
        super().__init__(inner, tracer, clock)
        self._spans = spans
        self.served: dict[Sink, OtelSpan] = {}
        self.request_ids: dict[Sink, str] = {}

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> StartedRead | None:
        """Begin a read of the origin, whose span is a child of the client's read; see
        ``CallbackOrigin.start``.
        """
        span = self.served.pop(sink, None)
        served = SERVED.set(span)
        try:
            read = super().start(wanted, intent, sink)
        finally:
            SERVED.reset(served)
        if read is not None and span is not None:
            request_id = self.request_ids[sink] = REQUEST_ID.get()
            self._spans.keep(request_id, span)
        return read
