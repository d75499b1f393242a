"""Otel spans that stay in memory, for tests that have the SDK of OpenTelemetry."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shadeproxy.core.clock import SystemClock


class RecordedSpans:
    """Spans that were sent. ``exporter``: the SDK's exporter to memory."""

    def __init__(self, exporter):
        self.exporter = exporter

    def all(self):
        """Return them in the order in which they ended."""
        return list(self.exporter.get_finished_spans())

    def of_kind(self, kind):
        """Return the spans of a kind: "SERVER" or "CLIENT"."""
        return [span for span in self.all() if span.kind.name == kind]

    def one(self, kind):
        """Return the only span of a kind."""
        (span,) = self.of_kind(kind)
        return span

    def clear(self):
        """Forget the spans that were sent so far."""
        self.exporter.clear()


def record_spans(monkeypatch) -> RecordedSpans:
    """Have every exporter of the proxy write to memory. Skip the test if the SDK is not installed."""
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    from shadeproxy.telemetry import otel_sdk

    exporter = memory.InMemorySpanExporter()
    monkeypatch.setattr(otel_sdk, "make_exporter", lambda _endpoint, _headers: exporter)
    # Spans are there as soon as they end.
    monkeypatch.setattr(otel_sdk, "BatchSpanProcessor", export.SimpleSpanProcessor)
    return RecordedSpans(exporter)


@contextmanager
def open_tracer() -> Iterator:
    """Yield a tracer; after ``record_spans``, one that writes to memory."""
    from shadeproxy.telemetry.otel_sdk import SdkTracer

    tracer = SdkTracer("", None, version="1.2", clock=SystemClock())
    try:
        yield tracer
    finally:
        tracer.close()
