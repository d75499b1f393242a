"""``OtelHandler``: makes an otel span of each S3 request that it serves. Built only if otel spans are on.

Hits of the fast lane do not come here, so they have no span. Every other request is a read by callbacks, or
is served by a task. A read may begin by callbacks and end in a task: it then has one span.
"""

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Unpack

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.exchange import Asked, EndedRequest, Exchange, RequestObserver
from shadeproxy.api.s3.forward_handler import ForwardHandler, HandlerSettings
from shadeproxy.api.s3.handler import BegunRead, S3Handler
from shadeproxy.api.s3.lane_read import BeginsReads, EngineLaneRead
from shadeproxy.api.s3.plain_miss import MissOutlet
from shadeproxy.api.s3.relay_read import RelayRead
from shadeproxy.cluster.peer_reads import PeerReads
from shadeproxy.engine.base import ReadPath
from shadeproxy.telemetry.otel import (
    BUCKET,
    SERVED,
    SERVED_FAILS_FROM,
    STATUS,
    OtelSpan,
    OtelTracer,
    Value,
    failure_of,
)

_UNPARSED = "S3"


class OtelRequests:
    """The otel spans of requests under way, by request id. When a request is reported, its span is ended, and
    the report is passed on to ``observer``. Implements ``RequestObserver``.
    """

    def __init__(self, tracer: OtelTracer, observer: RequestObserver) -> None:
        self._tracer = tracer
        self._observer = observer
        self.under_way: dict[str, OtelSpan] = {}
        """Spans that have not ended, by the id of their request."""

    def begin(self, fields: Mapping[str, str], operation: str = _UNPARSED) -> OtelSpan:
        """Begin the span of a request. ``fields``: the header fields of the request, with
        lower-case names.
        """
        return self._tracer.begin_served(operation, fields)

    def keep(self, request_id: str, span: OtelSpan) -> None:
        """Remember ``span``, to end it when the request with this id is reported."""
        self.under_way[request_id] = span

    def relay(self, request_id: str) -> None:
        """End the span of a request that was not reported because another process answers it. Otherwise do
        nothing.
        """
        span = self.under_way.pop(request_id, None)
        if span is not None:
            span.note({"shadeproxy.relayed": True})
            span.end()

    @contextmanager
    def serving(self, exchange: Exchange, begun: EngineLaneRead | RelayRead | None) -> Iterator[None]:
        """Serve the request of ``exchange`` inside its span. ``begun``: a read that began by callbacks and
        continues here; it has a span already.
        """
        span = None if begun is None else self.under_way.get(begun.request_id)
        if span is None:
            if exchange.request is not None:
                span = self.begin(exchange.request.fields)
            else:
                span = self.begin({name.lower(): value for name, value in exchange.incoming.fields})
            self.keep(exchange.request_id, span)
        served = SERVED.set(span)
        try:
            yield
        finally:
            SERVED.reset(served)

    def on_request(self, **request: Unpack[EndedRequest]) -> None:
        """Report a request that has ended, and end its span."""
        self._observer.on_request(**request)
        span = self.under_way.pop(request["request_id"], None)
        if span is None:
            return  # Hits of the fast lane have no span, and neither have bytes that were no request.
        status, job = request["status"], request["job"]
        facts: dict[str, Value] = {
            "rpc.method": request["operation"],
            STATUS: status,
            "http.response.body.size": request["bytes_sent"],
            "http.request.body.size": request.get("bytes_received", 0),
            "aws.request_id": request["request_id"],
            "shadeproxy.source": request["source"].value,
        }
        if request["bucket"]:
            facts[BUCKET] = request["bucket"]
        if job is not None:
            numbers = {"shadeproxy.epoch": job.epoch, "shadeproxy.rank": job.rank}
            facts["shadeproxy.job"] = job.job
            facts |= {name: number for name, number in numbers.items() if number is not None}
        span.name(request["operation"])
        span.note(facts)
        span.end(failure_of(status, SERVED_FAILS_FROM))


class OtelForwarding(ForwardHandler):
    """Makes the spans of all requests that a task serves. ``_spans`` must be the observer of the handler: it
    ends the span of each request that is reported.
    """

    _spans: OtelRequests

    async def _complete(
        self, exchange: Exchange, serving: Awaitable[None], begun: EngineLaneRead | RelayRead | None = None
    ) -> None:
        with self._spans.serving(exchange, begun):
            await super()._complete(exchange, serving, begun)


class OtelHandler(OtelForwarding, S3Handler):
    """An S3Handler whose requests have otel spans."""

    def __init__(
        self,
        engine: ReadPath,
        authenticator: Authenticator,
        *,
        tracer: OtelTracer,
        begins: BeginsReads | None = None,
        relays: PeerReads | None = None,
        **options: Unpack[HandlerSettings],
    ) -> None:
        """``begins``, ``relays``, ``options``: see S3Handler."""
        self._spans = OtelRequests(tracer, options["observer"])
        options["observer"] = self._spans
        S3Handler.__init__(self, engine, authenticator, begins=begins, relays=relays, **options)

    def begin_read(self, outlet: MissOutlet, asked: Asked) -> BegunRead | None:
        """Begin to answer a read by callbacks, inside a new span; see ``S3Handler.begin_read``. If that is
        impossible, the span is dropped, because ``serve_read`` makes another one.
        """
        span = self._spans.begin(asked.call.request.fields, asked.call.operation.name)
        served = SERVED.set(span)
        try:
            read = super().begin_read(outlet, asked)
        finally:
            SERVED.reset(served)
        if read is not None:
            self._spans.keep(read.request_id, span)
        return read
