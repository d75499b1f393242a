"""Otel spans of a proxy of several processes. Each process sends the spans of the requests that it serves."""

from contextlib import closing
from http.client import HTTPConnection

import pytest

from tests.support.otel import collecting
from tests.support.workers import wait_for_workers


@pytest.fixture
def collector():
    with collecting() as collector:
        yield collector


def ask(served, method, path, body=None):
    with closing(HTTPConnection(served.s3.removeprefix("http://"), timeout=30)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def test_workers_send_the_spans_of_misses_and_uploads(serve, bucket_directory, collector):
    origin = serve(origin__kind="file", origin__path=str(bucket_directory))
    served = serve(
        origin__endpoint=origin.s3,
        origin__credentials__source="anonymous",
        s3__workers="3",
        telemetry__otel__enabled="true",
        telemetry__otel__endpoint=collector.url,
    )
    pids = set(wait_for_workers(served))
    for n in range(20):
        (bucket_directory / "data" / f"object{n}").write_bytes(b"body" * (n + 1))
        assert ask(served, "GET", f"/data/object{n}") == 200
        assert ask(served, "PUT", f"/data/new{n}", b"new") == 200
    served.stop()
    by_pid = {}
    for batch in collector.batches:
        by_pid.setdefault(batch.resource["process.pid"], []).extend(batch.spans)
    assert pids & by_pid.keys()
    spans = [span for pid in pids & by_pid.keys() for span in by_pid[pid]]
    names = [span.name for span in spans]
    assert {"GetObject", "PutObject", "origin GET", "origin PUT"} <= set(names)
    ids = {span.span_id for span in spans}
    assert {span.parent_span_id for span in spans if span.name == "origin PUT"} <= ids
    served_spans = [span for span in collector.spans if span.name in {"GetObject", "PutObject"}]
    answered = [span for span in served_spans if "shadeproxy.relayed" not in {a.key for a in span.attributes}]
    assert len(answered) == 40
