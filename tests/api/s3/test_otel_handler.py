"""Otel spans of S3 requests. Each request except a hit of the fast lane has one, and answers are the same."""

import asyncio
from types import SimpleNamespace

import pytest

from shadeproxy.api.s3 import otel_handler
from shadeproxy.api.s3.exchange import Exchange
from shadeproxy.api.s3.otel_handler import OtelRequests
from shadeproxy.telemetry.otel import SERVED
from tests.support.otel import plain_spans
from tests.support.s3.cases import CASES, SMALL, head, ok, refusal, short
from tests.support.s3.scripted import CUT, WAIT, set_up

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def tracer(monkeypatch):
    return plain_spans(monkeypatch)


@pytest.fixture(params=[True, False], ids=["callbacks", "task"])
async def setup(tmp_path, tracer, request):
    async with set_up(tmp_path, by_callbacks=request.param) as setup:
        await setup.warm(2)
        tracer.begun.clear()
        setup.server.scripts |= {"/b/k": [[ok(SMALL)]], "HEAD /b/k": [[head(SMALL)]]}
        yield setup


def served(tracer):
    return [span for span in tracer.ended if span.kind == "SERVER"]


def asked(tracer):
    return [span for span in tracer.ended if span.kind == "CLIENT"]


async def test_a_miss_is_a_served_span_with_the_request_to_the_origin(setup, tracer):
    client = await setup.client()
    client.ask("/b/k", "x-shade-job: run;epoch=3;rank=0", f"traceparent: {PARENT}", "tracestate: a=b")
    answer = await client.answer()
    await setup.settle()
    (miss,), (get,) = served(tracer), asked(tracer)
    assert (miss.title, miss.error) == ("GetObject", "")
    assert (miss.fields["traceparent"], miss.fields["tracestate"]) == (PARENT, "a=b")
    assert len(miss.facts.pop("aws.request_id")) == 16
    assert miss.facts == {
        "rpc.method": "GetObject",
        "http.response.status_code": 200,
        "http.response.body.size": len(answer.body),
        "http.request.body.size": 0,
        "shadeproxy.source": "origin",
        "aws.s3.bucket": "b",
        "shadeproxy.job": "run",
        "shadeproxy.epoch": 3,
        "shadeproxy.rank": 0,
    }
    assert get.parent is miss
    assert (get.title, get.facts["aws.s3.key"], get.facts["shadeproxy.attempts"]) == ("origin GET", "k", 1)


async def test_hits_of_the_fast_lane_have_no_span(setup, tracer):
    client = await setup.client()
    await client.get("/b/k")
    await setup.settle()
    tracer.begun.clear()
    for _ in range(3):
        assert (await client.get("/b/k")).field(b"x-shade-cache") == b"ram"
    # The fast lane answers this request too, but parses and reports it each time.
    assert (await client.get("/b/k", "If-None-Match: x", f"traceparent: {PARENT}")).status == 200
    assert tracer.begun == []


async def test_a_coalesced_read_has_its_own_span_and_no_request(setup, tracer):
    setup.server.scripts["/b/k"] = [[head(SMALL), WAIT, SMALL]]
    first, second = await setup.client(), await setup.client()
    first.ask("/b/k")
    await setup.server.reached.wait()
    second.ask("/b/k")
    await asyncio.sleep(0.02)
    setup.server.go_on.set()
    await asyncio.gather(first.answer(), second.answer())
    await setup.settle()
    assert sorted(span.facts["shadeproxy.source"] for span in served(tracer)) == ["coalesced", "origin"]
    (get,) = asked(tracer)
    assert get.parent.facts["shadeproxy.source"] == "origin"


async def test_a_repeated_read_is_one_request_of_the_read_that_began_it(setup, tracer):
    """Both attempts of a read count as one request in one otel span, whose parent is the read's span.

    This holds even if the failure shows on a kept connection that was opened for another read.
    """
    setup.server.scripts["/b/k"] = [[refusal(b"503 Slow Down", b"SlowDown")], [ok(SMALL)]]
    assert (await (await setup.client()).get("/b/k")).status == 200
    await setup.settle()
    (miss,), (get,) = served(tracer), asked(tracer)
    assert (get.parent, get.error, get.facts["shadeproxy.attempts"]) == (miss, "", 2)


async def test_an_error_answer_has_its_status_and_the_cause_below_it(setup, tracer):
    setup.server.scripts["/b/k"] = [[CUT]]
    assert (await (await setup.client()).get("/b/k")).status == 503
    await setup.settle()
    (failed,), (get,) = served(tracer), asked(tracer)
    assert (failed.facts["http.response.status_code"], failed.error) == (503, "503")
    assert (get.parent, get.error) == (failed, "OriginUnavailable")
    assert get.facts["shadeproxy.attempts"] == 4


async def test_a_missing_object_is_no_failure_of_the_proxy(setup, tracer):
    setup.server.scripts["/b/k"] = [[refusal(b"404 Not Found", b"NoSuchKey")]]
    await (await setup.client()).get("/b/k")
    await setup.settle()
    (missing,), (get,) = served(tracer), asked(tracer)
    assert (missing.facts["http.response.status_code"], missing.error) == (404, "")
    assert (get.facts["http.response.status_code"], get.error) == (404, "OriginAnswer")


async def test_a_refused_request_has_a_span_without_one_to_the_origin(setup, tracer):
    await (await setup.client()).get("/b/k?uploads&nonsense=1")
    (refused,) = served(tracer)
    assert refused.facts["http.response.status_code"] >= 400
    assert asked(tracer) == []


async def test_bytes_that_are_no_request_have_the_span_of_a_refused_request(setup, tracer):
    client = await setup.client()
    client.writer.write(b"nonsense\r\n\r\n")
    assert (await client.answer()).status == 400
    (refused,) = served(tracer)
    assert (refused.title, refused.error) == ("Invalid", "")
    assert refused.facts["http.response.status_code"] == 400
    assert asked(tracer) == []


async def test_an_upload_is_forwarded_inside_its_span(setup, tracer):
    client = await setup.client()
    client.ask("/b/new", f"Traceparent: {PARENT}", method="PUT", body=b"0123456789")
    assert (await client.answer()).status == 200
    (upload,), (put,) = served(tracer), asked(tracer)
    assert (upload.title, upload.facts["shadeproxy.source"]) == ("PutObject", "bypass")
    assert upload.facts["http.request.body.size"] == 10
    assert upload.fields.get("traceparent", upload.fields.get("Traceparent")) == PARENT
    assert (put.title, put.parent, put.facts["http.response.status_code"]) == ("origin PUT", upload, 200)


@pytest.mark.parametrize("spans", [True, False])
async def test_the_origin_gets_the_client_s_own_traceparent_of_a_forwarded_request_alone(
    tmp_path, monkeypatch, spans
):
    """A client's traceparent reaches the origin on a forwarded request only, with and without otel spans.

    The proxy does not sign this field.
    """
    if spans:
        plain_spans(monkeypatch)
    async with set_up(tmp_path, by_callbacks=True) as setup:
        setup.server.scripts["/b/k"] = [[ok(SMALL)]]
        client = await setup.client()
        client.ask("/b/k", f"traceparent: {PARENT}")
        assert (await client.answer()).status == 200
        await setup.settle()
        client.ask("/b/k", f"traceparent: {PARENT}", method="PUT", body=b"x")
        assert (await client.answer()).status == 200
    get, put = (fields for path, fields in setup.server.fields if path == "/b/k")
    assert "traceparent" not in get
    assert put["traceparent"] == PARENT
    assert "traceparent" not in put["authorization"]


async def test_a_head_is_served_inside_its_span(setup, tracer):
    client = await setup.client()
    client.ask("/b/k", method="HEAD")
    assert (await client.answer(bodiless=True)).status == 200
    (stat,), (request,) = served(tracer), asked(tracer)
    assert (stat.title, request.title, request.parent) == ("HeadObject", "origin HEAD", stat)


async def test_a_client_that_leaves_ends_its_span(setup, tracer):
    setup.server.scripts["/b/k"] = [[head(SMALL), WAIT, SMALL]]
    client = await setup.client()
    client.ask("/b/k")
    await setup.server.reached.wait()
    await client.close()
    async with asyncio.timeout(5):
        while not served(tracer):
            await asyncio.sleep(0.001)
    (left,) = served(tracer)
    assert (left.facts["http.response.status_code"], left.error) == (499, "")
    setup.server.go_on.set()
    await setup.settle()


async def test_requests_of_one_connection_are_no_parents_of_each_other(setup, tracer):
    client = await setup.client()
    setup.server.scripts |= {f"/b/{n}": [[ok(SMALL)]] for n in range(3)}
    for n in range(3):
        await client.get(f"/b/{n}")
        client.ask(f"/b/{n}", method="PUT", body=b"x")
        await client.answer()
    await setup.settle()
    assert len(served(tracer)) == len(asked(tracer)) == 6
    assert {id(span.parent) for span in asked(tracer)} == {id(span) for span in served(tracer)}


async def test_the_task_of_a_connection_forgets_the_request_that_was_served(tracer):
    """After a request, the time until the next request of the connection belongs to no otel span."""
    exchange = Exchange(None, now_s=0.0)
    exchange.request = SimpleNamespace(fields={})
    with OtelRequests(tracer, None).serving(exchange, None):
        assert [SERVED.get()] == tracer.begun
    assert SERVED.get() is None


async def run(setup, case):
    """Send the requests of ``case``. Return what clients and origin saw, and the statistics."""
    await setup.warm(2)
    setup.server.scripts |= {"/b/k": list(case.answers), "HEAD /b/k": [[head(SMALL)]]}
    answers = []
    for fields in case.asks:
        answers.append(await (await setup.client()).get("/b/k", *fields))
        await setup.settle()
    return {
        "answers": [one._replace(body=b"") if one.cut else one for one in answers],
        "cached": await setup.cached("/b/k"),
        "asked": setup.server.asked,
        "counted": setup.counted(),
        "started": setup.started,
    }


@pytest.mark.parametrize("name", CASES)
async def test_spans_change_nothing_that_is_seen(tmp_path, monkeypatch, name):
    case = CASES[name]
    async with set_up(tmp_path / "off", by_callbacks=True, **case.settings) as setup:
        off = await run(setup, case)
    tracer, made = plain_spans(monkeypatch), []

    class Kept(OtelRequests):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(otel_handler, "OtelRequests", Kept)
    async with set_up(tmp_path / "on", by_callbacks=True, **case.settings) as setup:
        on = await run(setup, case)
        assert [spans.under_way for spans in made] == [{}]
    if case.is_timed or case.settings:  # The first of two timers decides what is requested again.
        off = {key: off[key] for key in ("answers", "cached")}
    for key, value in off.items():
        assert on[key] == value, (key, short(on[key]), short(value))
    ended = served(tracer)
    assert {id(get.parent) for get in asked(tracer)} <= {id(span) for span in ended}
    assert sum(span.facts["aws.s3.bucket"] == "b" for span in ended) == len(ended)
