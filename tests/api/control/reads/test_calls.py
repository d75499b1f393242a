"""Batch and locate calls that are refused: their error texts. Nothing is read for such a call."""

import msgspec
import numpy as np
import pytest

from shadeproxy.api.control.context import Access
from tests.support.frames import parse_frames

IDS = "application/vnd.shadeproxy.ids"
JSON = "application/json"
ONE = {"items": [{"bucket": "b", "key": "k"}]}


@pytest.fixture(params=["/v1/batch", "/v1/locate"])
def path(request):
    return request.param


@pytest.fixture(autouse=True)
async def data(listener):
    listener.put(k=b"1", l=b"2")
    listener.register(("k",), ("l",))
    yield
    if not listener.origin.gets:
        assert listener.context.counted_stats().totals().requests == 0


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "send either items, or a dataset and ids"),
        (ONE | {"ids": [0], "dataset": "data"}, 400, "send either items"),
        (ONE | {"dataset": "data"}, 400, "send either items"),
        (ONE | {"ordre": "given"}, 400, "unknown field `ordre`"),
        (ONE | {"order": "random"}, 400, "Invalid enum value 'random' - at `$.order`"),
        (ONE | {"epoch": 1}, 400, "name the job too"),
        (ONE | {"job": "nobody"}, 404, "job 'nobody' is not registered"),
        (ONE | {"job": "train", "rank": -1}, 400, "`int` >= 0 - at `$.rank`"),
        ({"items": [{"bucket": "b", "key": "k", "size": 3}]}, 400, "unknown field `size` - at `$.items[0]`"),
        ({"items": [{"bucket": "b", "key": "k", "offset": -1}]}, 400, "$.items[0].offset"),
        ({"items": [{"bucket": "b"}]}, 400, "missing required field `key`"),
        ({"items": [{"bucket": "b", "key": ""}]}, 400, "$.items[0].key"),
        ({"items": [{"bucket": "../b", "key": "k"}]}, 400, "$.items[0].bucket"),
        ({"items": [{"bucket": "..", "key": "k"}]}, 400, "$.items[0].bucket"),
        ({"ids": [0]}, 400, "name a dataset, or a job that was registered with one"),
        ({"ids": [0], "dataset": "none"}, 404, "dataset 'none' is not registered"),
        ({"ids": [0, 2], "dataset": "data"}, 400, "ids[1] is 2, but dataset 'data' has 2 samples"),
        ({"ids": [-1], "dataset": "data"}, 400, "$.ids[0]"),
        ({"items": [{"bucket": "b", "key": "k"}] * 65_537}, 413, "a call may ask for 65536 items"),
        ({"ids": [0] * 65_537, "dataset": "data"}, 413, "send several calls"),
        (b'{"items": [', 400, "the body is no JSON"),
        (b" " * (8 * 1024 * 1024 + 1), 413, "the body is longer than 8388608 bytes"),
    ],
    ids=lambda value: None if isinstance(value, int) else str(value)[:40],
)
async def test_json_that_is_refused(listener, path, body, status, words):
    got, text = await listener.refused(path, body)
    assert got == status
    assert words in text
    assert listener.origin.gets == 0


@pytest.mark.parametrize(
    ("query", "body", "status", "words"),
    [
        ("", b"\0\0\0\0", 400, "name a dataset"),
        ("?dataset=data", b"\0\0\0", 400, "the body is little-endian u32 ids, nothing else"),
        ("?dataset=data", b"\2\0\0\0", 400, "ids[0] is 2, but dataset 'data' has 2 samples"),
        ("?dataset=data&ordre=given", b"", 400, "'ordre' is not known | parameters: dataset, digest, job"),
        ("?dataset=data&dataset=data", b"", 400, "a parameter is there twice"),
        ("?dataset=data&items=1", b"", 400, "'items' is not known"),
        ("?dataset=data&order=best", b"", 400, "Invalid enum value 'best'"),
        ("?job=train&epoch=x", b"", 400, "$.epoch"),
        ("?job=none", b"", 404, "job 'none' is not registered"),
        ("?dataset=data", bytes(4 * 65_537), 413, "a call may ask for 65536 items"),
        ("?dataset=data", bytes(4 * 65_538), 413, "the body is longer than"),
    ],
)
async def test_ids_that_are_refused(listener, path, *, query, body, status, words):
    got, text = await listener.refused(path + query, body, IDS)
    assert got == status
    assert words in text
    assert listener.origin.gets == 0


async def test_a_query_beside_json_and_other_types_are_refused(listener, path):
    assert (await listener.refused(f"{path}?order=ready", ONE))[1].endswith(
        "put the parameters into the body"
    )
    status, text = await listener.refused(path, b"0", "text/plain")
    assert status == 415
    assert IDS in text


async def test_a_job_that_scores_by_key_has_no_ids(listener, path):
    from shadeproxy.hints.jobs import Job

    listener.context.hints.put_job(Job("free"), 0.0)
    assert "name a dataset" in (await listener.refused(f"{path}?job=free", b"", IDS))[1]


async def test_without_signatures_and_without_token_nobody_reads(listen, path):
    listener = await listen(access=Access(reads_allowed=False))
    status, text = await listener.refused(path, ONE)
    assert (status, text.split(" | ")[0]) == (403, "forbidden")
    assert "set control.token: reads through the control listener are not signed" in text


async def test_with_a_token_a_call_needs_it(listen, path):
    listener = await listen(access=Access("s3cret"))
    listener.put(k=b"1")
    status, text = await listener.refused(path, ONE)
    assert (status, text.split(" | ")[0]) == (401, "unauthorized")
    assert listener.origin.gets == 0
    connection = await listener.connect()
    await connection.ask(path, msgspec.json.encode(ONE), JSON, "Authorization: Bearer s3cret")
    assert (await connection.head())[0] == 200


async def test_as_many_as_are_allowed(listener):
    status, data = await listener.call("/v1/batch?dataset=data", np.zeros(65_536, dtype="<u4").tobytes(), IDS)
    frames, ended = parse_frames(data)
    assert (status, ended, len(frames)) == (200, True, 65_536)
    assert {frame.body for frame in frames} == {b"1"}
    assert listener.origin.gets == 1
