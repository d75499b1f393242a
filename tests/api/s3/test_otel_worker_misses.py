"""Otel spans of requests to a worker: each request has one, in the process that answers it."""

import asyncio

import pytest

from tests.support.otel import plain_spans
from tests.support.s3.cases import CASES, SMALL, head, ok, refusal
from tests.support.s3.fetching import fetching
from tests.support.s3.forwarding import forwarding
from tests.support.s3.scripted import CUT, WAIT, set_up

pytestmark = pytest.mark.timeout(60)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def tracer(monkeypatch):
    """Return the tracer of both the worker and the coordinator, which run in one process here."""
    return plain_spans(monkeypatch)


@pytest.fixture
async def worker(tmp_path, tracer):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup, tracer=tracer) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        tracer.begun.clear()
        yield worker


def of(tracer, kind):
    return [span for span in tracer.ended if span.kind == kind]


async def test_a_miss_is_a_served_span_with_the_request_to_the_origin(worker, tracer):
    worker.setup.server.scripts["/b/k"] = [[ok(SMALL)]]
    client = await worker.client()
    answer = await client.get("/b/k", f"traceparent: {PARENT}")
    await worker.settle()
    assert worker.begun == ["/b/k"]
    (miss,), (get,) = of(tracer, "SERVER"), of(tracer, "CLIENT")
    assert (miss.title, miss.fields["traceparent"]) == ("GetObject", PARENT)
    assert (miss.facts["http.response.body.size"], miss.error) == (len(answer.body), "")
    assert (get.title, get.parent, get.error) == ("origin GET", miss, "")


async def test_a_read_that_the_coordinator_serves_has_its_span_there(worker, tracer):
    worker.setup.server.scripts["/b/k"] = [[refusal(b"404 Not Found", b"NoSuchKey")]]
    assert (await (await worker.client()).get("/b/k")).status == 404
    await worker.settle()
    relayed, missing = of(tracer, "SERVER")
    assert (relayed.title, relayed.facts, relayed.error) == ("GetObject", {"shadeproxy.relayed": True}, "")
    assert missing.facts["http.response.status_code"] == 404


async def test_a_client_that_leaves_ends_its_span(worker, tracer):
    worker.setup.server.scripts["/b/k"] = [[head(SMALL), WAIT, SMALL]]
    client = await worker.client()
    client.ask("/b/k")
    await worker.setup.server.reached.wait()
    await client.close()
    async with asyncio.timeout(5):
        while not of(tracer, "SERVER"):
            await asyncio.sleep(0.001)
    assert [span.facts["http.response.status_code"] for span in of(tracer, "SERVER")] == [499]
    worker.setup.server.go_on.set()
    await worker.settle()


async def test_a_client_that_leaves_before_the_coordinator_answers_leaves_nothing(worker, tracer):
    worker.wire.hold()
    client = await worker.client()
    client.ask("/b/k")
    async with asyncio.timeout(5):
        while not len(worker.misses):
            await asyncio.sleep(0.001)
    await client.close()
    worker.setup.server.scripts["/b/k"] = [[ok(SMALL)]]
    worker.wire.go_on()
    await worker.settle()
    assert worker.misses._begun.served == worker.misses._begun.request_ids == {}


@pytest.mark.parametrize("name", CASES)
async def test_each_request_has_one_span_and_none_is_left(tmp_path, tracer, name):
    case = CASES[name]
    async with (
        set_up(tmp_path, by_callbacks=True, **case.settings) as setup,
        fetching(setup, tracer=tracer) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        tracer.begun.clear()
        setup.server.scripts |= {"/b/k": list(case.answers), "HEAD /b/k": [[head(SMALL)]]}
        for fields in case.asks:
            client = await worker.client()
            await client.get("/b/k", *fields)
            await worker.settle()
        served = of(tracer, "SERVER")
        answered = [span for span in served if "shadeproxy.relayed" not in span.facts]
        # A request is a hit, without an otel span, if an earlier request has cached the page.
        assert 1 <= len(answered) <= len(case.asks)
        assert len({span.facts["aws.request_id"] for span in answered}) == len(answered)
        assert {id(get.parent) for get in of(tracer, "CLIENT") if get.parent} <= {id(span) for span in served}
        assert worker.spans.under_way == {}
        assert worker.misses._begun.served == worker.misses._begun.request_ids == {}


async def test_an_upload_through_a_worker_is_forwarded_inside_its_span(tmp_path, tracer):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        forwarding(setup, tracer=tracer) as worker,
    ):
        client = await worker.client()
        client.ask("/b/new", f"traceparent: {PARENT}", method="PUT", body=b"0123456789")
        assert (await client.answer()).status == 200
        await worker.settle()
        assert worker.relayed == 0
    (upload,), (put,) = of(tracer, "SERVER"), of(tracer, "CLIENT")
    assert (upload.title, upload.facts["http.request.body.size"]) == ("PutObject", 10)
    assert (put.title, put.parent, put.facts["http.response.status_code"]) == ("origin PUT", upload, 200)


async def test_an_upload_that_fails_is_marked(tmp_path, tracer):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        forwarding(setup, tracer=tracer) as worker,
    ):
        setup.server.scripts["/b/k"] = [[CUT]]
        client = await worker.client()
        client.ask("/b/k?tagging", method="GET")
        assert (await client.answer()).status >= 500
        await worker.settle()
    (failed,), (asked,) = of(tracer, "SERVER"), of(tracer, "CLIENT")
    assert failed.error == str(failed.facts["http.response.status_code"])
    assert (asked.parent, asked.error != "") == (failed, True)
