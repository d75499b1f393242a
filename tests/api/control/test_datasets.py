import asyncio
import gc
import gzip
import hashlib
import json
import threading

import pytest

from shadeproxy.api.control import datasets as calls
from shadeproxy.core.errors import OriginAnswer, OriginUnavailable
from shadeproxy.core.types import ListEntry, ListPage
from shadeproxy.core.workpool import raise_if_cancelled
from shadeproxy.hints import manifest

LINES = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
TWO = b'{"bucket": "b", "key": "a/1"}\n{"bucket": "b", "key": "a/2"}\n'
DIGEST = "sha256:" + hashlib.sha256(b"b\0a/1\0\nb\0a/2\0\n").hexdigest()


LINES_OF_JOB = b"".join(b'{"bucket": "b", "key": "k%d"}\n' % number for number in range(10))


async def put(client, body, **headers):
    return await client.put("/v1/datasets/train", data=body, headers=LINES | headers)


async def test_lines_are_registered_and_told(client):
    summary = {"dataset": "train", "digest": DIGEST, "count": 2}
    assert await (await put(client, TWO)).json() == summary
    assert await (await client.get("/v1/datasets/train")).json() == summary
    assert await (await client.get("/v1/datasets")).json() == {"datasets": [summary]}


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/jsonl", "application/gzip"])
async def test_gzip_is_recognised_under_any_of_the_types(client, kind):
    answer = await client.put("/v1/datasets/train", data=gzip.compress(TWO), headers={"Content-Type": kind})
    assert (await answer.json())["digest"] == DIGEST


async def test_gzip_as_content_encoding(client):
    answer = await put(client, gzip.compress(TWO), **{"Content-Encoding": "gzip"})
    assert (await answer.json())["digest"] == DIGEST


async def test_a_damaged_content_encoding_is_told(client, refused):
    answer = await put(client, b"not gzip at all", **{"Content-Encoding": "gzip"})
    await refused(answer, 400, "malformed_body")


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}])
async def test_a_gzip_bomb_is_refused_by_what_it_unpacks_to(listening, refused, headers):
    bomb = gzip.compress(b"\n" * (64 << 20))
    assert len(bomb) < 1 << 17
    text = await refused(await put(listening, bomb, **headers), 413, "body_too_large")
    assert "more lines than bytes" in text


async def test_only_manifests_may_be_packed(listening, refused):
    body, headers = gzip.compress(b'{"bucket": "b"}'), {"Content-Encoding": "gzip"}
    answer = await listening.put("/v1/datasets/train", data=body, headers=headers | JSON)
    assert "Content-Encoding gzip is not taken here" in await refused(answer, 415, "unsupported_media_type")
    answer = await put(listening, TWO, **{"Content-Encoding": "br"})
    assert "Content-Encoding br is not taken here" in await refused(answer, 415, "unsupported_media_type")


async def test_a_manifest_is_given_up_when_its_client_has_gone(listening, context, monkeypatch):
    """The proxy notices that a client has gone during the last and longest step of a big manifest.

    In this step, which computes the digest, the proxy reads nothing from the client.
    """
    begun, ended = threading.Event(), threading.Event()

    def digest_of(*_arguments):
        begun.set()
        try:
            while True:
                raise_if_cancelled()
        finally:
            ended.set()

    monkeypatch.setattr(manifest, "digest_of", digest_of)
    sent = asyncio.create_task(put(listening, TWO))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    sent.cancel()
    await asyncio.gather(sent, return_exceptions=True)
    await asyncio.to_thread(ended.wait, 60)
    assert ended.is_set()
    assert not context.hints.datasets


async def test_a_body_over_the_limit_is_refused_before_it_is_read(client, refused, monkeypatch):
    monkeypatch.setattr(calls, "MAX_BYTES", 10)
    assert "longer than 10 bytes" in await refused(await put(client, TWO), 413, "body_too_large")

    async def chunks():
        yield TWO[:5]
        yield TWO[5:]

    answer = await client.put("/v1/datasets/train", data=chunks(), headers=LINES)
    assert "longer than 10 bytes" in await refused(answer, 413, "body_too_large")


async def test_a_bad_line_is_named_and_nothing_is_registered(client, refused):
    text = await refused(await put(client, TWO + b'{"bucket": "b"}\n'), 400, "malformed_body")
    assert "line 3" in text
    assert "`key`" in text
    await refused(await client.get("/v1/datasets/train"), 404, "unknown_name")


async def test_an_empty_manifest_is_refused(client, refused):
    assert "no sample" in await refused(await put(client, b""), 400, "invalid_request")


async def test_the_type_must_be_named(client, refused):
    answer = await client.put("/v1/datasets/train", data=TWO, headers={"Content-Type": "text/plain"})
    text = await refused(answer, 415, "unsupported_media_type")
    assert "text/plain" in text
    assert "application/x-ndjson" in text


async def test_the_manifest_comes_back_with_its_digest_as_etag(client):
    await put(client, TWO)
    answer = await client.get("/v1/datasets/train?format=jsonl")
    body = await answer.read()
    assert [json.loads(line) for line in body.splitlines()] == [json.loads(line) for line in TWO.splitlines()]
    assert answer.headers["ETag"] == f'"{DIGEST}"'
    again = await client.get("/v1/datasets/train?format=jsonl", headers={"If-None-Match": f'"{DIGEST}"'})
    assert again.status == 304
    other = await client.get("/v1/datasets/train?format=jsonl", headers={"If-None-Match": '"x"'})
    assert other.status == 200


async def test_an_unknown_format_is_told(client, refused):
    await put(client, TWO)
    text = await refused(await client.get("/v1/datasets/train?format=csv"), 400, "invalid_request")
    assert "format=jsonl" in text


async def test_the_proxy_lists_a_prefix_in_key_order_over_pages(client, backend):
    backend.listing = {"b": {"a/2": 1, "a/1": 5, "a/": 0, "a/3": 0, "z": 1, "a/sub/": 0}}
    answer = await client.put("/v1/datasets/train", json={"bucket": "b", "prefix": "a/"})
    assert (await answer.json())["count"] == 3
    assert backend.list_calls > 1
    lines = await (await client.get("/v1/datasets/train?format=jsonl")).text()
    assert [json.loads(line)["key"] for line in lines.splitlines()] == ["a/1", "a/2", "a/3"]


async def test_a_listing_and_the_same_lines_have_one_digest(client, backend):
    backend.listing = {"b": {"a/1": 1, "a/2": 1}}
    answer = await client.put("/v1/datasets/train", json={"bucket": "b", "prefix": "a/"})
    assert (await answer.json())["digest"] == DIGEST


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (OriginAnswer(404, "NoSuchBucket"), (404, "unknown_name", "no bucket 'b'")),
        (OriginAnswer(403, "AccessDenied"), (403, "access_denied", "proxy's own origin credentials")),
        (OriginAnswer(400, "InvalidBucketName"), (502, "origin_refused", "InvalidBucketName")),
        (OriginUnavailable("the origin does not answer"), (503, "origin_unavailable", "does not answer")),
    ],
)
async def test_a_listing_that_fails_says_why(client, backend, refused, refusal, told):
    status, code, text = told
    backend.refusal = refusal
    answer = await client.put("/v1/datasets/train", json={"bucket": "b"})
    assert text in await refused(answer, status, code)


@pytest.mark.parametrize("keys", [["a/2", "a/1"], ["a/1", "a/1"]])
async def test_a_listing_out_of_order_makes_no_dataset(client, backend, refused, keys):
    backend.odd_page = ListPage(tuple(ListEntry(key, 1, '"e"') for key in keys), truncated=False)
    answer = await client.put("/v1/datasets/train", json={"bucket": "b"})
    text = await refused(answer, 503, "origin_unavailable")
    assert f"'a/1' comes after {keys[0]!r}" in text


async def test_an_empty_prefix_listing_is_refused(client, backend, refused):
    backend.listing = {"b": {}}
    answer = await client.put("/v1/datasets/train", json={"bucket": "b"})
    assert "check the bucket and the prefix" in await refused(answer, 400, "invalid_request")


async def test_a_misspelt_field_is_told(client, refused):
    answer = await client.put("/v1/datasets/train", json={"bucket": "b", "prefx": "a/"})
    text = await refused(answer, 400, "invalid_request")
    assert "prefx" in text
    assert "fields: bucket, prefix" in text


async def test_a_dataset_in_use_is_neither_replaced_nor_deleted(client, job, refused):
    text = await refused(await put(client, TWO), 409, "conflict")
    assert "in use by job 'resnet'" in text
    assert "DELETE /v1/jobs/resnet" in text
    await refused(await client.delete("/v1/datasets/train"), 409, "conflict")
    assert (await client.delete(job)).status == 204
    assert (await put(client, TWO)).status == 200
    assert (await client.delete("/v1/datasets/train")).status == 204
    await refused(await client.delete("/v1/datasets/train"), 404, "unknown_name")


async def test_a_job_that_ended_gives_its_dataset_free_and_begins_anew(client, job, context, refused):
    await client.post(f"{job}/scores", json={"ids": [1], "scores": [2]})
    await client.put(f"{job}/epochs/0/order", json={"ids": [3, 1, 2]})
    assert (await client.delete(f"{job}/ranks/0")).status == 204
    await refused(await put(client, TWO), 409, "conflict")  # Rank 1 is still training.
    assert (await client.delete(f"{job}/ranks/1")).status == 204
    shown = await (await client.get(job)).json()
    assert (shown["in_use"], shown["live"], shown["scores"]["known"]) == (False, True, 1)
    assert (await put(client, LINES_OF_JOB)).status == 200
    assert (await (await client.get(job)).json())["scores"]["known"] == 1  # The same manifest drops no score.
    registered = await (await put(client, TWO)).json()
    shown = await (await client.get(job)).json()
    assert (shown["digest"], shown["count"]) == (registered["digest"], 2)
    assert (shown["scores"]["known"], shown["order"]) == (0, None)
    assert not context.hints.orders.trackers
    await client.put(job, json={"dataset": "train", "world_size": 2})
    assert (await (await client.get(job)).json())["in_use"]
    await refused(await put(client, LINES_OF_JOB), 409, "conflict")


async def test_a_silent_job_gives_its_dataset_free(client, job, context, clock):
    clock.advance(3600)
    context.hints.expire(clock.now_s())
    assert (await put(client, TWO)).status == 200
    # The job is dropped with the old manifest. If it was only paused and went on, its ids would mean other
    # samples.
    assert (await client.get(job)).status == 404


async def test_an_order_on_its_way_to_a_job_that_begins_anew_is_for_nobody(client, job, context, clock):
    await client.put(f"{job}/epochs/0/order", json={"ids": [3, 1, 2]})
    orders = context.hints.orders
    orders.put(context.hints.check_order("resnet", [9, 8], epoch=1, rank=0), clock.now_s())
    prepared = orders.begin("resnet")
    for rank in (0, 1):
        await client.delete(f"{job}/ranks/{rank}")
    await put(client, TWO)
    orders.finish(prepared, prepared.build.run())
    assert not orders.trackers


@pytest.mark.parametrize("name", ["a b", ".x", "a%2Fb", "x" * 129, "a;b"])
async def test_names_are_checked(client, refused, name):
    answer = await client.put(f"/v1/datasets/{name}", data=TWO, headers=LINES)
    assert "names are 1 to 128" in await refused(answer, 400, "invalid_request")


@pytest.mark.parametrize("end", [b"{", b'{"bucket": "b", "key": "k", "offset": 1}'])
async def test_a_refused_list_leaves_nothing_for_the_garbage_collector(client, end):
    """The memory of a list is counted only until its call is answered."""
    gc.collect()
    before = builders()  # Other tests have left these.
    gc.disable()
    try:
        lines = b'{"bucket": "b", "key": "k"}\n' * 10_000
        answer = await client.put("/v1/datasets/bad", data=lines + end, headers=LINES)
        assert answer.status == 400
        await answer.read()
        await asyncio.sleep(0.05)
        left = [one for one in builders() if one not in before]
    finally:
        gc.enable()
    assert left == []


def builders():
    return [one for one in gc.get_objects() if isinstance(one, manifest.ManifestBuilder)]
