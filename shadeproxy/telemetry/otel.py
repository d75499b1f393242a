"""Otel spans, as the parts of the proxy make them: the interface, and the span of the request that is being
served.

An otel span is one timed piece of work as OpenTelemetry defines it: a client's request, a control call, a
request to the origin. Law: nothing here knows OpenTelemetry. Only otel_sdk.py does, and it is loaded only
when otel spans are switched on. The parts that make spans wrap other parts, and are only built when otel
spans are on.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Protocol

Value = str | int | float | bool

METHOD = "http.request.method"
STATUS = "http.response.status_code"
BUCKET = "aws.s3.bucket"
CANCELLED = "shadeproxy.cancelled"
"""Names of attributes that several spans have. Some are of OpenTelemetry's conventions, others are this
proxy's own.
"""

SERVED_FAILS_FROM, ASKED_FAILS_FROM = 500, 400
"""Lowest status that counts as a failure: of a request that this proxy serves, where a 4xx is the client's
mistake, and of a request that this proxy sends to the origin (OpenTelemetry, semantic conventions for HTTP
spans).
"""


def failure_of(status: int, fails_from: int) -> str:
    """Return the ``error`` to give to ``OtelSpan.end`` for an answer with ``status``; "" if it is no
    failure.
    """
    return str(status) if status >= fails_from else ""


class OtelSpan(Protocol):
    """One otel span. It begins when it is made. If it is not ended, it is never sent. No call blocks or
    raises.
    """

    def name(self, name: str) -> None:
        """Replace the name of the span, because the right one was not known when the span began."""
        ...

    def note(self, facts: Mapping[str, Value]) -> None:
        """Add attributes to the span."""
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
        """Begin the span of a request to the origin. ``parent``: the span of the served request that waits
        for it; None: the span begins a trace of its own. ``age_s``: seconds since the request began.
        """
        ...


SERVED: ContextVar[OtelSpan | None] = ContextVar("served", default=None)
"""The otel span of the request that is being served; None if there is none, or if otel spans are off. A task
inherits it from the task that created it, as it inherits the values of core/tracing.py.
"""
