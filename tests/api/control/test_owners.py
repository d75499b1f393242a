"""GET /v1/datasets/{dataset}/owners returns, for each sample of a dataset, the proxy that caches it."""

import json

import numpy as np
import pytest

from shadeproxy.cluster.ownership import OwnedObjects
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from tests.support.cluster_nodes import ClusterNodes

TYPE = "application/vnd.shadeproxy.owners"
LINES = [{"bucket": "b", "key": f"k{i}"} for i in range(40)] + [
    {"bucket": "b", "key": "shard", "offset": 10 * i, "length": 10} for i in range(8)
]
PATH = "/v1/datasets/d/owners"
ANY = 0xFFFF


class Cluster(ClusterNodes):
    """Nodes a, b and c. Node c has weight 0, so it owns no object."""

    def __init__(self):
        super().__init__(a=1.0, b=2.0, c=0.0)
        self.status = self.status_with(owned=OwnedObjects(by_rule=lambda _: False))

    @property
    def view(self):
        return self.beats[0].membership.view


@pytest.fixture
async def cluster(client, context):
    cluster = Cluster()
    context.cluster = lambda: cluster.status
    lines = "".join(json.dumps(line) + "\n" for line in LINES)
    answer = await client.put("/v1/datasets/d", data=lines, headers={"content-type": "application/x-ndjson"})
    assert answer.status == 200
    cluster.digest = (await answer.json())["digest"]
    return cluster


async def owners(client, **headers):
    """Return the head of the answer as JSON, the name of each sample's owner, and the ETag."""
    answer = await client.get(PATH, headers=headers)
    assert (answer.status, answer.content_type) == (200, TYPE)
    body = await answer.read()
    size = int.from_bytes(body[:4], "little")
    assert size % 4 == 0
    head, column = json.loads(body[4 : 4 + size]), np.frombuffer(body[4 + size :], "<u2")
    names = [None if number == ANY else head["nodes"][number]["node"] for number in column]
    return head, names, answer.headers["ETag"]


async def test_each_sample_has_the_owner_that_every_node_computes(client, cluster):
    await cluster.run(12)
    head, names, _ = await owners(client)
    assert head["here"] == "a"
    assert head["nodes"] == [{"node": "a", "control": "a:9001"}, {"node": "b", "control": "b:9001"}]
    assert names == [cluster.view.home(object_hash(ObjectRef("b", line["key"]))) for line in LINES]
    assert set(names) == {"a", "b"}
    assert len(set(names[40:])) == 1, "the samples of one object have one owner"


async def test_samples_of_a_node_that_is_away_are_asked_anywhere(client, cluster):
    await cluster.run(12)
    _, before, first = await owners(client)
    await cluster.run(8, cluster.beats[0], cluster.beats[2])
    _, names, second = await owners(client)
    assert names == ["a" if name == "a" else None for name in before]
    assert first != second


async def test_an_answer_of_another_node_is_not_taken_for_unchanged(client, cluster):
    await cluster.run(12)
    _, _, tag = await owners(client)
    cluster.status = cluster.status_with(at=1, owned=OwnedObjects(by_rule=lambda _: False))
    head, _, other = await owners(client, **{"If-None-Match": tag})
    assert (head["here"], other != tag) == ("b", True)


async def test_owners_are_sent_again_only_when_they_have_changed(client, cluster):
    await cluster.run(12)
    _, _, tag = await owners(client)
    answer = await client.get(PATH, headers={"If-None-Match": tag})
    assert (answer.status, answer.headers["ETag"], await answer.read()) == (304, tag, b"")
    await cluster.run(8, cluster.beats[0])
    answer = await client.get(PATH, headers={"If-None-Match": tag})
    assert answer.status == 200


@pytest.mark.parametrize("why", ["no cluster", "no view", "own pages", "other settings"])
async def test_without_shared_pages_no_sample_has_an_owner(client, cluster, context, why):
    if why == "no cluster":
        context.cluster = lambda: None
    elif why == "own pages":
        cluster.status = cluster.status_with(owned=None)
    if why != "no view":
        await cluster.run(12)
    if why == "other settings":
        cluster.beats[0].membership.duties.refusal = "other settings"
    head, names, tag = await owners(client)
    assert (head["nodes"], names) == ([], [])
    assert tag == f'"{cluster.digest}"'


async def test_a_data_set_with_other_samples_is_refused(client, cluster):
    await cluster.run(12)
    assert (await client.get(f"{PATH}?digest={cluster.digest}")).status == 200
    answer = await client.get(f"{PATH}?digest=sha256:0")
    assert (answer.status, (await answer.json())["error"]["code"]) == (409, "conflict")
    assert (await client.get("/v1/datasets/none/owners")).status == 404
