"""The interface by which parts of the proxy make otel spans, and the otel span of the request that is being
served.

An otel span is one timed piece of work as OpenTelemetry defines it: a client's request, a control call, a
request to the origin. Law: nothing here knows OpenTelemetry. Only otel_sdk.py does, and that module is loaded
only if otel spans are on. The parts that make otel spans are wrappers of other parts; they too are built only
if otel spans are on.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Protocol

Value = str | int | float | bool

METHOD = "http.request.method"
STATUS = "http.response.status_code"
BUCKET = "aws.s3.bucket"
CANCELLED = "shadeproxy.cancelled"
"""Names of attributes that several otel spans have. Some names follow OpenTelemetry's conventions, and others
are this proxy's own.
"""

SERVED_FAILS_FROM, ASKED_FAILS_FROM = 500, 400
"""Lowest status that counts as a failure (OpenTelemetry, semantic conventions for HTTP spans). The first
number is for requests that this proxy serves, where a 4xx is the client's mistake; the second is for requests
to the origin.
"""


def failure_of(status: int, fails_from: int) -> str:
    """Return the value of ``error`` in ``OtelSpan.end`` for an answer with ``status``: "" if the status is no
    failure.
    """
    return str(status) if status >= fails_from else ""


class OtelSpan(Protocol):
    """One otel span. Its time begins when it is made. A span that is not ended is never sent. No call blocks
    or raises.
    """

    def name(self, name: str) -> None:
        """Replace the name of the otel span. Its right name may be unknown when the span begins."""
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
        """Begin the otel span of a request that this proxy serves. ``fields``: the header fields of the
        request, with names in lower case. Of these, ``traceparent`` and ``tracestate`` name the caller's span
        (W3C Trace Context).
        """
        ...

    def begin_asked(
        self, name: str, facts: Mapping[str, Value], *, parent: OtelSpan | None, age_s: float = 0.0
    ) -> OtelSpan:
        """Begin the otel span of a request to the origin. ``parent``: the span of the served request that
        waits for it, or None to begin a trace. ``age_s``: seconds since the request began.
        """
        ...


SERVED: ContextVar[OtelSpan | None] = ContextVar("served", default=None)
"""The otel span of the request that is being served, or None if there is none or if otel spans are off. A
task inherits the value from the task that created it, as it inherits the values of core/tracing.py.
"""
