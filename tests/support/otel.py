"""Otel spans that stay in memory: of a tracer without the SDK of OpenTelemetry, and of the SDK."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from shadeproxy.app import opening
from shadeproxy.core.clock import SystemClock


class PlainSpan:
    """An otel span that a test reads. ``parent``: another one, or None. ``error``: None until it ends."""

    def __init__(self, kind, name, facts, *, parent=None, age_s=0.0, fields=None):
        self.kind, self.title, self.facts, self.parent = kind, name, dict(facts), parent
        self.age_s, self.fields, self.error = age_s, fields, None

    def name(self, name):
        assert self.error is None, "renamed after its end"
        self.title = name

    def note(self, facts):
        assert self.error is None, "noted after its end"
        self.facts |= facts

    def end(self, error=""):
        assert self.error is None, "ended twice"
        self.error = error


class PlainTracer:
    """A tracer without the SDK. ``begun``: all spans; ``ended``: those that would be sent."""

    def __init__(self):
        self.begun = []

    def begin_served(self, name, fields):
        self.begun.append(PlainSpan("SERVER", name, {}, fields=dict(fields)))
        return self.begun[-1]

    def begin_asked(self, name, facts, *, parent, age_s=0.0):
        self.begun.append(PlainSpan("CLIENT", name, facts, parent=parent, age_s=age_s))
        return self.begun[-1]

    @property
    def ended(self):
        return [span for span in self.begun if span.error is not None]


def plain_spans(monkeypatch) -> PlainTracer:
    """Return the tracer of all proxies that start from now on."""
    tracer = PlainTracer()

    async def opened(*_arguments):
        return tracer

    monkeypatch.setattr(opening, "open_tracer", opened)
    return tracer


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


class Batch(NamedTuple):
    """Spans that a collector got in one request. ``fields``: header fields of the request."""

    path: str
    fields: dict[str, str]
    resource: dict[str, Any]
    spans: list[Any]


class Collector:
    """A collector of otel spans over HTTP. ``status``: of its answers."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.status = 200
        self.url = ""

    @property
    def spans(self) -> list[Any]:
        return [span for batch in self.batches for span in batch.spans]

    def take(self, path: str, fields: dict[str, str], body: bytes) -> None:
        """Keep the spans of one request."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        for one in message.resource_spans:
            resource = {
                fact.key: fact.value.string_value or fact.value.int_value for fact in one.resource.attributes
            }
            spans = [span for scope in one.scope_spans for span in scope.spans]
            self.batches.append(Batch(path, fields, resource, spans))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector in a thread. Skip the test if the SDK is not installed."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(self.path, dict(self.headers), body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
