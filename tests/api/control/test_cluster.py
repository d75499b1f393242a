import msgspec
import pytest

from shadeproxy.cluster.node_stats import NodeStats
from shadeproxy.cluster.ownership import OwnedObjects
from shadeproxy.cluster.peers import PeerState
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from tests.support.cluster_nodes import ClusterNodes


class Cluster(ClusterNodes):
    """Nodes a and b, which share their pages. ``status`` is the view of the cluster that node a shows."""

    def __init__(self):
        super().__init__(a=1.0, b=3.0)
        self.status = self.status_with(
            owned=OwnedObjects(by_rule=lambda _ref: False),
            stats=self._stats,
            peers=lambda: {"b": PeerState(True, 0.25, 100)},
        )

    async def _stats(self):
        return [NodeStats(node="a", reads=7), NodeStats(node="b", problem="it is gone")]


@pytest.fixture
async def cluster(context):
    cluster = Cluster()
    context.cluster = lambda: cluster.status
    return cluster


async def get(client, path, status=200):
    answer = await client.get(path)
    assert answer.status == status, await answer.text()
    return await answer.json()


async def test_a_proxy_without_a_cluster_says_so(client):
    answer = await get(client, "/v1/cluster")
    assert (answer["name"], answer["nodes"]) == ("", [])
    assert "cluster.name" in (await get(client, "/v1/cluster/owner/b/k", 409))["error"]["hint"]
    assert (await client.post("/v1/cluster/forget", json={"node": "a"})).status == 409


async def test_the_nodes_are_shown_with_their_shares(client, cluster):
    await cluster.run(12)
    answer = await get(client, "/v1/cluster")
    assert (answer["name"], answer["node"], answer["problem"]) == ("trainers", "a", "")
    assert answer["view"] == answer["settled"] > 0
    assert answer["lease_s"] == 2.0
    assert not answer["cut_off"]
    assert [(one["node"], one["share"], one["away"], one["s3"]) for one in answer["nodes"]] == [
        ("a", 0.25, False, "a:9000"),
        ("b", 0.75, False, "b:9000"),
    ]


async def test_a_node_that_is_away_owns_nothing(client, cluster):
    await cluster.run(12)
    await cluster.run(8, cluster.beats[0])
    nodes = (await get(client, "/v1/cluster"))["nodes"]
    assert [(one["node"], one["share"], one["away"]) for one in nodes] == [
        ("a", 1.0, False),
        ("b", 0.0, True),
    ]


async def test_a_node_that_is_cut_off_says_why(client, cluster):
    before = await get(client, "/v1/cluster")
    assert "no beat" in before["problem"]
    await cluster.run(12)
    cluster.server.up = False
    await cluster.run(4)
    answer = await get(client, "/v1/cluster")
    assert (answer["cut_off"], answer["lease_s"]) == (True, 0.0)
    assert answer["problem"] == "the fake log is down"


async def test_the_owner_of_an_object(client, cluster):
    assert "problem" in (await get(client, "/v1/cluster/owner/b/k", 409))["error"]["hint"]
    await cluster.run(12)
    seen = set()
    for number in range(12):
        answer = await get(client, f"/v1/cluster/owner/b/dir/k{number}")
        assert answer["uri"] == f"s3://b/dir/k{number}"
        assert answer["owner"] == answer["home"]
        assert answer["here"] == (answer["owner"] == "a")
        seen.add(answer["owner"])
    assert seen == {"a", "b"}
    view = cluster.beats[0].membership.view
    other = await get(client, "/v1/cluster/owner/b/dir/k1?namespace=team-a")
    assert other["owner"] == view.owner(object_hash(ObjectRef("b", "dir/k1", "team-a")))
    await get(client, "/v1/cluster/owner/b/k?namespace=unknown", 404)


async def test_a_forgotten_node_is_out_at_once(client, cluster):
    await cluster.run(12)
    answer = await client.post("/v1/cluster/forget", json={"node": "b"})
    assert answer.status == 200
    await cluster.run(3)
    nodes = (await get(client, "/v1/cluster"))["nodes"]
    assert [one["node"] for one in nodes] == ["a"]
    answer = await client.post("/v1/cluster/forget", json={"node": "z"})
    assert answer.status == 404
    assert "nodes: a" in (await answer.json())["error"]["hint"]


async def test_a_node_says_that_it_was_forgotten(client, cluster):
    await cluster.run(12)
    assert (await get(client, "/v1/cluster"))["forgotten"] is False
    answer = await client.post("/v1/cluster/forget", json={"node": "a"})
    assert answer.status == 200
    await cluster.run(3)
    answer = await get(client, "/v1/cluster")
    assert (answer["forgotten"], answer["lease_s"]) == (True, 0.0)
    assert [one["node"] for one in answer["nodes"]] == ["b"]


async def test_an_operator_learns_that_the_log_is_down(client, cluster):
    await cluster.run(12)
    cluster.server.up = False
    answer = await client.post("/v1/cluster/forget", json={"node": "b"})
    assert answer.status == 503
    assert "the node may be removed nevertheless: call `shadeproxy cluster status`" in await answer.text()
    assert (await answer.json())["error"]["code"] == "cluster_unavailable"


# ---------------------------------------------------------------------- drain


async def drain(client, status=200, *, drain=True):
    answer = await client.post("/v1/cluster/drain", json={"drain": drain})
    assert answer.status == status, await answer.text()
    return await answer.json()


def shares(answer):
    return {one["node"]: one["share"] for one in answer["nodes"]}


async def test_a_drained_node_gives_its_share_up_and_takes_it_again(client, cluster):
    await cluster.run(12)
    before = await get(client, "/v1/cluster")
    assert (before["drained"], before["moving"], shares(before)) == (False, False, {"a": 0.25, "b": 0.75})
    answer = await drain(client)
    assert (answer["drained"], answer["moving"]) == (True, True)
    assert shares(answer) == {"a": 0.25, "b": 0.75}, "the others do not know it yet"
    await cluster.run(4)
    answer = await get(client, "/v1/cluster")
    assert (answer["drained"], answer["moving"], shares(answer)) == (True, False, {"a": 0.0, "b": 1.0})
    assert answer["view"] == answer["settled"] > before["view"]
    assert answer["lease_s"] > 0, "it stays a node, for its clients"
    assert (await drain(client))["moving"] is False, "a second call changes nothing"
    assert (await drain(client, drain=False))["moving"] is True
    await cluster.run(4)
    answer = await get(client, "/v1/cluster")
    assert (answer["drained"], answer["moving"], shares(answer)) == (False, False, {"a": 0.25, "b": 0.75})


async def test_a_share_moves_until_the_other_node_has_adopted_the_view(client, cluster):
    await cluster.run(12)
    await drain(client)
    await cluster.run(3, cluster.beats[0])
    answer = await get(client, "/v1/cluster")
    assert (answer["moving"], answer["late"]) == (True, ["b"])
    assert answer["view"] > answer["settled"]
    await cluster.run(4)
    answer = await get(client, "/v1/cluster")
    assert (answer["moving"], answer["late"]) == (False, [])


async def test_the_only_node_with_a_weight_is_not_drained(client, cluster):
    assert "no view" in (await drain(client, 409))["error"]["message"]
    await cluster.run(12)
    await cluster.run(8, cluster.beats[0])
    message = (await drain(client, 409))["error"]["message"]
    assert "only node here that has a weight" in message, "b is away"
    await cluster.run(4)
    duties = cluster.beats[1].membership.duties
    duties.change_facts(msgspec.structs.replace(duties.facts, weight=0.0))
    await cluster.run(4)
    answer = await drain(client, 409)
    assert "start another node" in answer["error"]["hint"]
    assert (await get(client, "/v1/cluster"))["drained"] is False


async def test_a_node_without_a_share_is_not_drained(client, context, cluster):
    await cluster.run(12)
    cluster.beats[0].membership.duties.refusal = "node b has another origin"
    assert "node b has another origin" in (await drain(client, 409))["error"]["message"]
    cluster.beats[0].membership.duties.refusal = ""
    status = cluster.status_with()
    context.cluster = lambda: status
    assert "cluster.pages" in (await drain(client, 409))["error"]["message"]
    context.cluster = lambda: None
    await drain(client, 409)


# ---------------------------------------------------------------------- statistics of all nodes


async def test_a_node_that_reads_go_past_is_marked(client, cluster):
    await cluster.run(12)
    a, b = (await get(client, "/v1/cluster"))["nodes"]
    assert (a["skipped"], a["p99_s"]) == (False, 0.0)
    assert (b["skipped"], b["p99_s"]) == (True, 0.25)


async def test_statistics_of_all_nodes_only_if_they_are_asked_for(client, context, cluster):
    for path in ("/v1/stats", "/v1/stats?cluster=0"):
        assert "nodes" not in await get(client, path)
    answer = await get(client, "/v1/stats?cluster=1")
    assert [(one["node"], one["reads"], one["problem"]) for one in answer["nodes"]] == [
        ("a", 7, ""),
        ("b", 0, "it is gone"),
    ]
    assert answer["totals"]["requests"] == 0
    status = cluster.status_with()
    context.cluster = lambda: status
    assert "at each of them" in (await get(client, "/v1/stats?cluster=1", 409))["error"]["hint"]
    context.cluster = lambda: None
    await get(client, "/v1/stats?cluster=1", 409)
    await get(client, "/v1/stats?nodes=1", 400)
