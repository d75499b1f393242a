"""Sends otel spans to a collector, with the SDK of OpenTelemetry. No other module imports opentelemetry.

Laws: an otel span that ends is appended to a bounded queue, from which a thread of the SDK sends spans. If
the queue is full, its oldest spans are lost. No request waits for the collector, and no request fails because
of it. Of the SDK's own warnings, at most one a minute is logged.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from time import time_ns

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.workpool import short_turns
from shadeproxy.telemetry.otel import OtelSpan, Value

SERVICE_NAME = "shadeproxy"
WARNING_EVERY_S = 60.0
# A collector that hangs must not keep a proxy from stopping.
_LAST_SPANS_S = 3.0
_GIVEN_UP_S = 0.5
_PATH = "/v1/traces"
_PARSES_HEADERS = "opentelemetry.util.re"
_log = structlog.get_logger(__name__)
_propagator = TraceContextTextMapPropagator()


def make_exporter(endpoint: str, headers: str | None) -> SpanExporter:
    """Return an exporter to the collector at ``endpoint``. If ``endpoint`` is "", the address is taken from
    the environment variable ``OTEL_EXPORTER_OTLP_ENDPOINT``.

    ``headers``: header fields of the requests to the collector, in the form of
    ``OTEL_EXPORTER_OTLP_HEADERS``; for None, they are taken from that variable. Raises ConfigError.
    """
    fields = None if headers is None else parse_env_headers(headers, liberal=True)
    if fields is not None and len(fields) < len(list(filter(None, (headers or "").split(",")))):
        raise ConfigError(
            "telemetry.otel.headers: the secret must be name=value, with commas between several"
        )
    return OTLPSpanExporter(endpoint=endpoint + _PATH if endpoint else None, headers=fields)


class GentleExporter(SpanExporter):
    """Exports through ``inner``, another exporter, whose encoding of one batch of spans takes 15 ms.
    Meanwhile the interpreter switches threads ten times as often as usual, so that the event loop waits less.
    """

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See ``SpanExporter.export``."""
        with short_turns:
            return self._inner.export(spans)

    def shutdown(self) -> None:
        """See ``SpanExporter.shutdown``."""
        self._inner.shutdown()


class SdkSpan:
    """Implements ``OtelSpan``. ``inner``: the span of the SDK."""

    __slots__ = ("inner",)

    def __init__(self, inner: Span) -> None:
        self.inner = inner

    def name(self, name: str) -> None:
        """See ``OtelSpan.name``."""
        self.inner.update_name(name)

    def note(self, facts: Mapping[str, Value]) -> None:
        """See ``OtelSpan.note``."""
        self.inner.set_attributes(facts)

    def end(self, error: str = "") -> None:
        """See ``OtelSpan.end``."""
        if error:
            self.inner.set_attribute("error.type", error)
            self.inner.set_status(StatusCode.ERROR)
        self.inner.end()


class SdkTracer:
    """Implements ``OtelTracer``. Making it starts the thread that sends spans; ``close`` ends that thread."""

    def __init__(self, endpoint: str, headers: str | None, *, version: str, clock: Clock) -> None:
        """Make the tracer. ``endpoint``, ``headers``: see ``make_exporter``. ``version``: the version of the
        proxy. Raises ConfigError.
        """
        self._warnings = RareWarnings(clock)
        self._warnings.attach()
        try:
            self._exporter = GentleExporter(make_exporter(endpoint, headers))
            self._provider = _make_provider(self._exporter, version)
        except BaseException:
            self._warnings.detach()
            raise
        self._tracer = self._provider.get_tracer(SERVICE_NAME, version)

    def begin_served(self, name: str, fields: Mapping[str, str]) -> SdkSpan:
        """See ``OtelTracer.begin_served``."""
        # Always pass a context. Without one, the SDK takes the current context, which other code in this
        # process may have set.
        context = _propagator.extract(fields) if "traceparent" in fields else Context()
        return SdkSpan(self._tracer.start_span(name, context, SpanKind.SERVER))

    def begin_asked(
        self, name: str, facts: Mapping[str, Value], *, parent: OtelSpan | None, age_s: float = 0.0
    ) -> SdkSpan:
        """See ``OtelTracer.begin_asked``."""
        context = Context()
        if isinstance(parent, SdkSpan):
            context = set_span_in_context(parent.inner, context)
        began_ns = time_ns() - int(age_s * 1e9) if age_s else None
        return SdkSpan(
            self._tracer.start_span(name, context, SpanKind.CLIENT, attributes=facts, start_time=began_ns)
        )

    def close(self) -> None:
        """Send the spans that are still in the queue, for at most a few seconds. Blocks."""
        # The SDK's own shutdown may wait for half a minute. Run it in a daemon thread, because the process
        # does not wait for such a thread when it exits.
        ending = threading.Thread(target=self._provider.shutdown, name="otel-end", daemon=True)
        ending.start()
        ending.join(_LAST_SPANS_S)
        if ending.is_alive():
            self._exporter.shutdown()
            ending.join(_GIVEN_UP_S)
        # If the thread still waits for the collector, keep the limit on its warnings: it warns about each
        # batch.
        if not ending.is_alive():
            self._warnings.detach()


class RareWarnings(logging.Handler):
    """Logs at most one warning of the SDK a minute. Without this limit, there would be several lines for each
    batch that the collector does not take.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._now_s = clock.monotonic_s
        self._next_s = float("-inf")
        self._left_out = 0
        self._logger = logging.getLogger("opentelemetry")

    def attach(self) -> None:
        """Catch the lines that the SDK logs. From now on they reach the log only through this handler."""
        self._logger.addHandler(self)
        self._logger.propagate = False

    def detach(self) -> None:
        """Undo ``attach``: lines of the SDK go straight to the log again."""
        self._logger.removeHandler(self)
        self._logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        """Log ``record``, or only count it if a warning was logged within the last minute."""
        now_s = self._now_s()
        if now_s < self._next_s:
            self._left_out += 1
            return
        left_out, self._left_out, self._next_s = self._left_out, 0, now_s + WARNING_EVERY_S
        # Leave out the text of a header field that the SDK cannot read, because it may be a secret.
        reason = record.msg if record.name == _PARSES_HEADERS else record.getMessage()
        _log.warning("otel warning", reason=reason, left_out=left_out)


def _make_provider(exporter: SpanExporter, version: str) -> TracerProvider:
    """Return the SDK's provider of tracers, which sends otel spans to ``exporter``. Raises ConfigError.

    The provider's resource describes this process. Values in the environment variables ``OTEL_SERVICE_NAME``
    and ``OTEL_RESOURCE_ATTRIBUTES`` take precedence over this description.
    """
    own: dict[str, Value] = {"service.name": SERVICE_NAME, "service.version": version}
    resource = Resource.create(
        {**own, "process.pid": os.getpid(), **OTELResourceDetector().detect().attributes}
    )
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:
        raise ConfigError(f"telemetry.otel: the SDK refuses a variable OTEL_*: {error}") from None
    return provider
