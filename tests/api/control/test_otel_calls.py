"""Otel spans of control calls.

Each is named by its route, and is the parent of the spans of the requests to the origin.
"""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.otel_calls import span_calls
from shadeproxy.telemetry.otel import SERVED
from tests.support.otel import PlainTracer


@pytest.fixture
def tracer():
    return PlainTracer()


@pytest.fixture
async def client(context, tracer):
    server = TestServer(make_control_app(context, [span_calls(tracer)]))
    async with TestClient(server) as client:
        yield client


async def test_a_call_is_a_span_with_the_name_of_its_route(client, tracer):
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert (await client.put("/v1/jobs/mine", json={}, headers=parent)).status < 300
    (call,) = tracer.ended
    assert (call.kind, call.title, call.error) == ("SERVER", "PUT /v1/jobs/{job}", "")
    assert call.facts == {
        "http.request.method": "PUT",
        "http.route": "/v1/jobs/{job}",
        "http.response.status_code": 200,
    }
    assert parent.items() <= call.fields.items()


async def test_a_wrong_call_is_no_failure_of_the_proxy(client, tracer):
    await client.get("/v1/jobs/none")
    assert [(call.facts["http.response.status_code"], call.error) for call in tracer.ended] == [(404, "")]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/", "/v1/nothing", "/openapi.json"])
async def test_probes_scrapes_and_unknown_paths_have_none(client, tracer, path):
    await client.get(path)
    assert tracer.begun == []


async def test_the_call_is_the_served_request_while_it_works(client, tracer, context, monkeypatch):
    during = []
    monkeypatch.setattr(context, "count_reads", lambda: during.append(SERVED.get()))
    await client.get("/v1/stats")
    assert during == tracer.ended


class Request:
    """A request for which the application has found the route."""

    method, headers = "GET", {}

    def __init__(self, path):
        resource = type("Resource", (), {"canonical": path})
        self.match_info = type("Match", (), {"route": type("Route", (), {"resource": resource})})


async def test_a_failure_is_marked(tracer):
    async def fail(_request):
        return web.Response(status=500)

    assert (await span_calls(tracer)(Request("/v1/stats"), fail)).status == 500
    assert [(call.facts["http.response.status_code"], call.error) for call in tracer.ended] == [(500, "500")]


async def test_a_caller_that_hangs_up_ends_the_span(tracer):
    async def hang_up(_request):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await span_calls(tracer)(Request("/v1/stats"), hang_up)
    assert [(call.facts["shadeproxy.cancelled"], call.error) for call in tracer.ended] == [(True, "")]
    assert SERVED.get() is None
