"""Otel spans in memory, of two kinds: of a plain tracer, and of the SDK of OpenTelemetry."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from shadeproxy.app import opening
from shadeproxy.core.clock import SystemClock


class PlainSpan:
    """An otel span that a test reads. ``parent``: an otel span or None. ``error``: None until the
    span ends.
    """

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
    """A tracer without the SDK. ``begun`` has all otel spans, ``ended`` those that a real tracer
    would send.
    """

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
    """Return a tracer that all proxies use which start from now on."""
    tracer = PlainTracer()

    async def opened(*_arguments):
        return tracer

    monkeypatch.setattr(opening, "open_tracer", opened)
    return tracer


class RecordedSpans:
    """The otel spans that were sent to ``exporter``, which keeps them in memory."""

    def __init__(self, exporter):
        self.exporter = exporter

    def all(self):
        """Return all otel spans that were sent, in the order in which they ended."""
        return list(self.exporter.get_finished_spans())

    def of_kind(self, kind):
        """Return the otel spans of one kind: "SERVER" or "CLIENT"."""
        return [span for span in self.all() if span.kind.name == kind]

    def one(self, kind):
        """Return the only otel span of a kind."""
        (span,) = self.of_kind(kind)
        return span

    def clear(self):
        """Forget the otel spans that were sent so far."""
        self.exporter.clear()


def record_spans(monkeypatch) -> RecordedSpans:
    """Have every exporter of the proxy write to memory. The test is skipped if the SDK is not installed."""
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    from shadeproxy.telemetry import otel_sdk

    exporter = memory.InMemorySpanExporter()
    monkeypatch.setattr(otel_sdk, "make_exporter", lambda _endpoint, _headers: exporter)
    # This processor sends an otel span when it ends, so that a test need not wait.
    monkeypatch.setattr(otel_sdk, "BatchSpanProcessor", export.SimpleSpanProcessor)
    return RecordedSpans(exporter)


@contextmanager
def open_tracer() -> Iterator:
    """Yield a tracer of the SDK. After ``record_spans`` it writes to memory."""
    from shadeproxy.telemetry.otel_sdk import SdkTracer

    tracer = SdkTracer("", None, version="1.2", clock=SystemClock())
    try:
        yield tracer
    finally:
        tracer.close()


class Batch(NamedTuple):
    """The otel spans of one request to a collector. ``fields``: the header fields of this request."""

    path: str
    fields: dict[str, str]
    resource: dict[str, Any]
    spans: list[Any]


class Collector:
    """A collector of otel spans over HTTP, which answers with ``status``."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.status = 200
        self.url = ""

    @property
    def spans(self) -> list[Any]:
        return [span for batch in self.batches for span in batch.spans]

    def take(self, path: str, fields: dict[str, str], body: bytes) -> None:
        """Keep the otel spans of one request."""
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
    """Run a collector in a thread. The test is skipped if the SDK is not installed."""
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
