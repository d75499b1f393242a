"""A request has one id: in the answer, in the log and in the request to the origin."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.served import log_of, wait_for

FIELD = "x-shade-request-id"


@pytest.fixture
def proxy(serve, fake_origin):
    fake_origin.objects = {"/data/a": b"a" * 1000, "/data/b": b"b" * 1000}
    return serve(
        origin__endpoint=fake_origin.url, origin__credentials="anonymous", telemetry__access_log="true"
    )


def fetch(proxy, path: str, method: str = "GET", **fields: str):
    request = urllib.request.Request(proxy.s3 + path, method=method, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()
            return answer.headers
    except urllib.error.HTTPError as error:
        return error.headers


def logged(proxy, request_id: str) -> list[dict]:
    return wait_for(lambda: [line for line in log_of(proxy, "request") if line["request_id"] == request_id])


def asked(origin, path: str) -> list[dict[str, str]]:
    return [fields for _, asked_path, fields in origin.asked if asked_path.partition("?")[0] == path]


def test_misses_carry_the_id_to_the_origin_and_hits_are_logged_with_theirs(proxy, fake_origin):
    miss, hit = fetch(proxy, "/data/a"), fetch(proxy, "/data/a")
    assert (miss["x-shade-cache"], hit["x-shade-cache"]) == ("origin", "ram")
    assert miss["x-amz-request-id"] != hit["x-amz-request-id"]
    assert [fields[FIELD] for fields in asked(fake_origin, "/data/a")] == [miss["x-amz-request-id"]]
    for headers in (miss, hit):
        (line,) = logged(proxy, headers["x-amz-request-id"])
        assert line["source"] == headers["x-shade-cache"]


def test_what_is_forwarded_carries_it_too_and_the_log_names_both_ids(proxy, fake_origin):
    headers = fetch(proxy, "/data/a?tagging", **{FIELD: "of the client"})
    assert headers["x-amz-request-id"] == "OF-THE-ORIGIN"
    (sent,) = asked(fake_origin, "/data/a")
    (line,) = logged(proxy, sent[FIELD])
    assert line["origin_request_id"] == "OF-THE-ORIGIN"


def test_a_fill_that_several_readers_share_carries_the_id_of_the_first(proxy, fake_origin):
    fake_origin.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(fetch, proxy, "/data/b") for _ in range(4)]
        wait_for(lambda: proxy.stats()["gauges"]["readings"] == 4)
        fake_origin.gate.set()
        headers = [answer.result() for answer in answers]
    (sent,) = asked(fake_origin, "/data/b")
    (leader,) = [one for one in headers if one["x-shade-cache"] == "origin"]
    assert sent[FIELD] == leader["x-amz-request-id"]


def test_the_answer_to_a_failure_names_the_request_of_the_log(proxy, fake_origin):
    headers = fetch(proxy, "/data/none")
    (line,) = logged(proxy, headers["x-amz-request-id"])
    assert (line["status"], line["operation"]) == (404, "GetObject")


def test_a_proxy_behind_a_proxy_remembers_the_requests_of_the_first(serve, fake_origin):
    """A proxy behind another proxy still answers repeated requests from its request cache. Each request has a
    new id, so the fast lane must recognise the rest of the head.
    """
    fake_origin.objects = {"/data/a": b"a" * 1000}
    behind = serve(origin__endpoint=fake_origin.url, origin__credentials="anonymous")
    front = serve(origin__endpoint=behind.s3, origin__credentials="anonymous")
    for _ in range(5):
        fetch(front, "/data/a")
        urllib.request.urlopen(
            urllib.request.Request(
                front.control + "/v1/purge", b'{"uri": "s3://data"}', {"Content-Type": "application/json"}
            ),
            timeout=20,
        ).close()
    assert behind.stats()["totals"]["hits_ram"] == 4


def test_reads_of_a_batch_carry_the_id_of_their_call(proxy, fake_origin):
    """Reads of a batch have the id of the batch call. The SDK makes such calls: one call, many objects."""
    items = [{"bucket": "data", "key": key} for key in ("a", "b")]
    body = json.dumps({"items": items}).encode()
    request = urllib.request.Request(
        f"{proxy.control}/v1/batch", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        request_id = answer.headers[FIELD]
        answer.read()
    assert len(request_id) == 16
    for path in ("/data/a", "/data/b"):
        assert [fields[FIELD] for fields in asked(fake_origin, path)] == [request_id]
