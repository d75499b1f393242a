"""The namespace of the buckets that a call names: the proxy's own, or another one of the configuration."""

import pytest

from shadeproxy.api.control.bodies import PageSummary, PinList, PinSummary
from shadeproxy.api.control.context import CachedObject
from shadeproxy.core.types import ObjectMeta, ObjectRef
from shadeproxy.engine.placement.pins import Prefix

HINT = "leave namespace out for the proxy's own, or name one of team-a"
UNKNOWN = f"no client of the configuration reads in a namespace 'team-b' | {HINT}"


@pytest.mark.parametrize("call", ["purge", "pin", "unpin", "warm"])
@pytest.mark.parametrize(
    ("named", "meant"), [({}, ""), ({"namespace": "shared"}, ""), ({"namespace": ""}, "")]
)
async def test_a_call_means_the_proxys_own_namespace(client, backend, call, named, meant):
    assert (await client.post(f"/v1/{call}", json={"uri": "s3://b/a", **named})).ok
    assert backend.places == [Prefix("b", "a", meant)]


@pytest.mark.parametrize("call", ["purge", "pin", "unpin", "warm"])
async def test_a_call_may_name_another(client, backend, refused, call):
    assert (await client.post(f"/v1/{call}", json={"uri": "s3://b/a", "namespace": "team-a"})).ok
    assert backend.places == [Prefix("b", "a", "team-a")]
    answer = await client.post(f"/v1/{call}", json={"uri": "s3://b/a", "namespace": "team-b"})
    assert await refused(answer, 404, "unknown_name") == UNKNOWN
    assert len(backend.places) == 1


async def test_the_hint_says_where_there_is_only_one(client, context, refused):
    context.upstreams = {"": "shared"}
    answer = await client.post("/v1/purge", json={"uri": "s3://b/a", "namespace": "x"})
    assert "leave namespace out: there is only the proxy's own" in await refused(answer, 404, "unknown_name")


async def test_objects_are_looked_at_in_the_namespace_that_is_named(client, backend, refused):
    cached = CachedObject(ObjectMeta('"e"', 4), (PageSummary(0, "ram", 4, pinned=False),))
    backend.objects[ObjectRef("b", "k", "team-a")] = cached
    assert (await client.get("/v1/objects/b/k")).status == 404
    answer = await client.get("/v1/objects/b/k?namespace=team-a")
    assert (await answer.json())["uri"] == "s3://b/k"
    await client.get("/v1/objects/b?namespace=team-a&prefix=p")
    assert backend.places == [Prefix("b", "p", "team-a")]
    for path in ("/v1/objects/b", "/v1/objects/b/k"):
        answer = await client.get(f"{path}?namespace=team-b")
        assert await refused(answer, 404, "unknown_name") == UNKNOWN


async def test_pins_tell_their_namespace(client, backend, monkeypatch):
    pins = (PinSummary("s3://b/a", "call", 1.0), PinSummary("s3://b/a", "call", 2.0, "team-a"))
    monkeypatch.setattr(backend, "pins", lambda: PinList(pins, 0, 0))
    told = (await (await client.get("/v1/pins")).json())["pins"]
    assert [pin.get("namespace") for pin in told] == [None, "team-a"]


async def test_a_dataset_is_of_one_namespace(client, backend, context, refused):
    backend.listing = {"b": {"x/1": 1, "x/2": 1}}
    body = {"bucket": "b", "prefix": "x/", "namespace": "team-a"}
    listed = await (await client.put("/v1/datasets/l", json=body)).json()
    assert backend.listed_in == ["team-a"]
    lines = b'{"bucket": "b", "key": "x/1"}\n{"bucket": "b", "key": "x/2"}\n'
    kind = {"Content-Type": "application/x-ndjson"}
    digests = {}
    for query in ("", "?namespace=team-a"):
        answer = await client.put(f"/v1/datasets/m{len(query)}{query}", data=lines, headers=kind)
        digests[query] = (await answer.json())["digest"]
    # The digest covers the namespace, both in a dataset from a listing and in one from a manifest.
    assert listed["digest"] == digests["?namespace=team-a"] != digests[""]
    dataset = context.hints.dataset("l")
    assert dataset.ref(0) == ObjectRef("b", "x/1", "team-a")
    assert [sample.ref.namespace for sample in dataset.samples()] == ["team-a", "team-a"]
    for answer in (
        await client.put("/v1/datasets/n?namespace=team-b", data=lines, headers=kind),
        await client.put("/v1/datasets/n", json={"bucket": "b", "namespace": "team-b"}),
    ):
        assert await refused(answer, 404, "unknown_name") == UNKNOWN
    answer = await client.put("/v1/datasets/n?namespace=team-a", json={"bucket": "b"})
    assert "put it into the body" in await refused(answer, 400, "invalid_request")


async def test_scores_by_key_are_of_the_jobs_dataset_or_of_the_namespace_that_is_named(
    client, backend, refused
):
    backend.listing = {"b": {"k": 1}}
    await client.put("/v1/datasets/d", json={"bucket": "b", "namespace": "team-a"})
    await client.put("/v1/jobs/j", json={"dataset": "d"})
    scores = {"keys": {"b/k": 0.5}}
    for named in ({}, {"namespace": "team-a"}):
        assert (await client.post("/v1/jobs/j/scores", json=scores | named)).ok
    answer = await client.post("/v1/jobs/j/scores", json=scores | {"namespace": "shared"})
    assert "b/k is not in dataset 'd'" in await refused(answer, 400, "invalid_request")
    answer = await client.post("/v1/jobs/j/scores", json=scores | {"namespace": "team-b"})
    assert await refused(answer, 404, "unknown_name") == UNKNOWN
    answer = await client.post("/v1/jobs/j/scores", json={"ids": [0], "scores": [1], "namespace": "team-a"})
    assert "a namespace belongs to keys" in await refused(answer, 400, "invalid_request")
