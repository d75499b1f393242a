"""Otel spans of control calls. The application has this middleware only if otel spans are on."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from shadeproxy.telemetry.otel import (
    CANCELLED,
    METHOD,
    SERVED,
    SERVED_FAILS_FROM,
    STATUS,
    OtelTracer,
    failure_of,
)

_CALLS = "/v1/"


def span_calls(tracer: OtelTracer) -> Middleware:
    """Return a middleware that makes a span of each call under /v1. Probes, scrapes of metrics and the
    dashboard have no span.

    The reads of a batch are requests to the origin, whose spans are inside the span of the call.
    """

    @web.middleware
    async def span(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        if resource is None or not resource.canonical.startswith(_CALLS):
            return await handler(request)
        # The name of the span has the route's pattern, without names of jobs and datasets, so that a
        # collector can count calls by that name.
        called = tracer.begin_served(f"{request.method} {resource.canonical}", request.headers)
        called.note({METHOD: request.method, "http.route": resource.canonical})
        served = SERVED.set(called)
        try:
            response = await handler(request)
        except BaseException:
            # Errors have been turned into answers before. So this exception means that the caller has gone.
            called.note({CANCELLED: True})
            called.end()
            raise
        finally:
            SERVED.reset(served)
        called.note({STATUS: response.status})
        called.end(failure_of(response.status, SERVED_FAILS_FROM))
        return response

    return span
