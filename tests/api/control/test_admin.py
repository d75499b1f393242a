import asyncio

import pytest

from shadeproxy.api.control import admin
from shadeproxy.api.control.bodies import PageSummary
from shadeproxy.api.control.context import CachedObject
from shadeproxy.core.errors import Conflict, StateError, UnknownName
from shadeproxy.core.types import ObjectMeta, ObjectRef


@pytest.mark.parametrize(
    ("uri", "prefix"), [("s3://b/a/1", "a/1"), ("s3://b/", ""), ("s3://b", ""), ("s3://b//x", "/x")]
)
@pytest.mark.parametrize("dry_run", [True, False])
async def test_purge_names_bucket_and_prefix(client, backend, uri, prefix, dry_run):
    answer = await client.post("/v1/purge", json={"uri": uri, "dry_run": dry_run})
    assert await answer.json() == {"objects": 2, "pages": 3, "bytes": 4096}
    assert backend.purges == [("b", prefix, dry_run)]


@pytest.mark.parametrize("call", ["purge", "pin", "unpin", "warm"])
@pytest.mark.parametrize("uri", ["b/a", "s3://", "s3:///a", "http://b/a", ""])
async def test_what_is_no_uri_is_refused(client, backend, refused, call, uri):
    answer = await client.post(f"/v1/{call}", json={"uri": uri})
    assert "write s3://bucket/prefix" in await refused(answer, 400, "invalid_request")
    assert backend.purges == backend.pinned == backend.work == []


@pytest.mark.parametrize("call", ["pin", "unpin"])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_pin_and_unpin_name_bucket_and_prefix(client, backend, call, dry_run):
    answer = await client.post(f"/v1/{call}", json={"uri": "s3://b/a/1", "dry_run": dry_run})
    told = {"uri": "s3://b/a/1", "objects": 2, "pages": 3, "bytes": 4096, "held": 1}
    assert await answer.json() == told
    assert backend.pinned == [(call, "b", "a/1", dry_run)]


async def test_a_pin_that_is_refused_is_told(client, backend, refused):
    backend.refusal = UnknownName("no call pinned s3://b/a", hint="pinned are s3://b/c")
    text = await refused(await client.post("/v1/unpin", json={"uri": "s3://b/a"}), 404, "unknown_name")
    assert text == "no call pinned s3://b/a | pinned are s3://b/c"
    backend.refusal = Conflict("pinned by rules[0]", hint="write pin = false there")
    await refused(await client.post("/v1/unpin", json={"uri": "s3://b/a"}), 409, "conflict")
    backend.refusal = StateError("control state cannot be written")
    await refused(await client.post("/v1/pin", json={"uri": "s3://b/a"}), 500, "state_failed")


async def test_pins_are_listed(client):
    assert await (await client.get("/v1/pins")).json() == {
        "pins": [
            {"uri": "s3://b/a", "by": "call", "since_s": 12.5},
            {"uri": "s3://*/x", "by": "rules[1]", "since_s": None},
        ],
        "bytes": 10,
        "limit_bytes": 90,
    }


async def test_a_misspelt_dry_run_purges_nothing(client, backend, refused):
    answer = await client.post("/v1/purge", json={"uri": "s3://b", "dryrun": True})
    assert "dryrun" in await refused(answer, 400, "invalid_request")
    assert backend.purges == []


@pytest.mark.parametrize("key", ["k1", "a//b", "a/../b", "with space", "ünï/x%2F", "a?b#c", "a\nb"])
async def test_an_object_is_shown_with_pages_and_weight(client, backend, key):
    from urllib.parse import quote

    backend.objects[ObjectRef("b", key)] = CachedObject(
        ObjectMeta('"e"', 10, (("Content-Type", "image/png"),)),
        (PageSummary(0, "ram", 10, pinned=False),),
        validated_s=12.5,
    )
    await client.put("/v1/jobs/free", json={})
    await client.post("/v1/jobs/free/scores", json={"keys": {f"b/{key}": 3, "b/else": 1}})
    from yarl import URL

    path = URL(f"http://127.0.0.1:{client.port}/v1/objects/b/{quote(key)}", encoded=True)
    answer = await client.session.get(path)
    assert await answer.json() == {
        "uri": f"s3://b/{key}",
        "etag": '"e"',
        "size": 10,
        "headers": [["Content-Type", "image/png"]],
        "validated_s": 12.5,
        "freshness": "fresh",
        "pages": [{"number": 0, "tier": "ram", "bytes": 10, "pinned": False}],
        "total_pages": 1,
        "weight": 1.5,
    }


async def test_a_part_of_a_page_is_shown_with_its_first_byte(client, backend):
    pages = (PageSummary(2, "ram", 100, pinned=False, start=9_000_000),)
    backend.objects[ObjectRef("b", "k")] = CachedObject(ObjectMeta('"e"', 9 << 20), pages)
    shown = await (await client.get("/v1/objects/b/k")).json()
    assert shown["pages"] == [{"number": 2, "tier": "ram", "bytes": 100, "pinned": False, "start": 9_000_000}]


async def test_an_object_without_scores_has_no_weight(client, backend):
    backend.objects[ObjectRef("b", "k")] = CachedObject(ObjectMeta('"e"', 10), ())
    shown = await (await client.get("/v1/objects/b/k")).json()
    assert shown["weight"] is None
    assert shown["pages"] == []


async def test_metadata_that_is_not_utf_8_is_shown_with_replaced_octets(client, backend):
    meta = ObjectMeta('"v1-\udce9"', 10, (("x-amz-meta-by", "Ren\udce9"),))
    backend.objects[ObjectRef("b", "k")] = CachedObject(meta, ())
    shown = await (await client.get("/v1/objects/b/k")).json()
    assert (shown["etag"], shown["headers"]) == ('"v1-\ufffd"', [["x-amz-meta-by", "Ren\ufffd"]])
    (listed,) = (await (await client.get("/v1/objects/b")).json())["objects"]
    assert listed["etag"] == '"v1-\ufffd"'


async def test_cached_objects_are_listed(client, backend):
    for key in ("d/a", "d/b", "d/\udcff"):
        pages = (
            PageSummary(0, "ram", 4 << 20, True),
            PageSummary(1, "disk", 4 << 20, pinned=False),
            PageSummary(2, "ram", 100, pinned=False, start=9_000_000),
        )
        backend.objects[ObjectRef("b", key)] = CachedObject(ObjectMeta('"e"', 9 << 20), pages, 12.5, "stale")
    told = await (await client.get("/v1/objects/b", params={"prefix": "d/", "limit": "2"})).json()
    summary = {
        "key": "d/a",
        "etag": '"e"',
        "size": 9 << 20,
        "pages": 2,
        "parts": 1,
        "total_pages": 3,
        "bytes": (8 << 20) + 100,
        "tiers": {"ram": 2, "disk": 1},
        "pinned": 1,
        "validated_s": 12.5,
        "freshness": "stale",
    }
    objects = [summary, summary | {"key": "d/b"}]
    assert told == {"bucket": "b", "prefix": "d/", "objects": objects, "more": 1, "next": "d/b"}
    rest = await (await client.get("/v1/objects/b", params={"start_after": "d/b"})).json()
    assert [found["key"] for found in rest["objects"]] == ["d/\ufffd"]
    assert (rest["more"], rest["next"]) == (0, None)
    assert backend.listings == [("b", "d/", "", 2), ("b", "", "d/b", 100)]


async def test_a_long_list_is_summed_up_in_steps(client, backend, monkeypatch):
    summed_up, most = 0, 0
    summary = admin._summary

    def counted(*of):
        nonlocal summed_up
        summed_up += 1
        return summary(*of)

    async def watch():
        nonlocal most
        before = 0
        while True:
            most, before = max(most, summed_up - before), summed_up
            await asyncio.sleep(0)

    monkeypatch.setattr(admin, "_summary", counted)
    for number in range(1000):
        pages = (PageSummary(0, "ram", 10, pinned=False),)
        backend.objects[ObjectRef("b", f"{number:04d}")] = CachedObject(ObjectMeta('"e"', 10), pages)
    watching = asyncio.create_task(watch())
    told = await (await client.get("/v1/objects/b", params={"limit": "1000"})).json()
    watching.cancel()
    assert len(told["objects"]) == 1000
    assert 0 < most <= 64


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?limit=x", "limit"),
        ("?delimiter=/", "'delimiter' is not known"),
        ("?prefix=a&prefix=b", "a parameter is there twice | parameters: prefix, limit, start_after"),
    ],
)
async def test_a_listing_that_is_asked_for_wrongly_is_refused(client, backend, refused, query, text):
    assert text in await refused(await client.get(f"/v1/objects/b{query}"), 400, "invalid_request")
    assert backend.listings == []


@pytest.mark.parametrize("bucket", ["Bad_Bucket!", "..", ".", "a b", "x" * 256, "<b>"])
@pytest.mark.parametrize("call", ["purge", "pin", "unpin", "warm"])
async def test_what_cannot_be_a_bucket_is_refused(client, backend, refused, call, bucket):
    answer = await client.post(f"/v1/{call}", json={"uri": f"s3://{bucket}/x"})
    text = await refused(answer, 400, "invalid_request")
    assert "cannot be the name of a bucket | write s3://bucket/prefix; a bucket is 1 to 255 of" in text
    assert backend.purges == backend.pinned == backend.work == []


async def test_a_listing_of_what_cannot_be_a_bucket_is_refused(client, backend, refused):
    answer = await client.get("/v1/objects/Bad_Bucket!")
    assert "cannot be the name of a bucket" in await refused(answer, 400, "invalid_request")
    assert backend.listings == []


async def test_an_object_that_is_not_cached_is_told(client, refused):
    text = await refused(await client.get("/v1/objects/b/k"), 404, "unknown_name")
    assert "nothing of s3://b/k is cached" in text
