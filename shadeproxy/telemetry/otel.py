"""Otel spans, as the parts of the proxy make them: the interface, and the span of the request that is served.

An otel span is one timed piece of work as OpenTelemetry defines it: a client's request, a control call, a
request to the origin. Law: nothing here knows OpenTelemetry. Only otel_sdk.py does, and it is loaded only
when otel spans are switched on. The parts that make spans wrap others, and are not built otherwise.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Protocol

Value = str | int | float | bool

METHOD = "http.request.method"
STATUS = "http.response.status_code"
BUCKET = "aws.s3.bucket"
CANCELLED = "shadeproxy.cancelled"
"""Attributes that several spans have: names of OpenTelemetry's conventions, and of our own."""

SERVED_FAILS_FROM, ASKED_FAILS_FROM = 500, 400
"""Lowest statuses that count as a failure. The first is for requests that are served, where a 4xx is the
client's mistake; the second is for requests to the origin (OpenTelemetry, semantic conventions for HTTP
spans).
"""


def failure_of(status: int, fails_from: int) -> str:
    """Return the ``error`` of ``OtelSpan.end`` for an answer with ``status``."""
    return str(status) if status >= fails_from else ""


class OtelSpan(Protocol):
    """One otel span. It begins when it is made; one that is never ended is never sent. No call blocks or
    raises.
    """

    def name(self, name: str) -> None:
        """Replace the name, which was not known at the begin."""
        ...

    def note(self, facts: Mapping[str, Value]) -> None:
        """Add attributes."""
        ...

    def end(self, error: str = "") -> None:
        """End the span. ``error``: the kind of failure, or "" if the work went well."""
        ...


class OtelTracer(Protocol):
    """Begins otel spans. No call blocks or raises."""

    def begin_served(self, name: str, fields: Mapping[str, str]) -> OtelSpan:
        """Begin the span of a request that this proxy serves. ``fields``: the lower-case header fields of
        the request, of which ``traceparent`` and ``tracestate`` name the caller's span (W3C Trace Context).
        """
        ...

    def begin_asked(
        self, name: str, facts: Mapping[str, Value], *, parent: OtelSpan | None, age_s: float = 0.0
    ) -> OtelSpan:
        """Begin the span of a request to the origin. ``parent``: the served request that waits for it; None:
        the span begins a trace. ``age_s``: time since the request began.
        """
        ...


SERVED: ContextVar[OtelSpan | None] = ContextVar("served", default=None)
"""The otel span of the request that is served; None if there is none, or if otel spans are off. A task
inherits it from its creator, as it inherits the values of core/tracing.py.
"""
