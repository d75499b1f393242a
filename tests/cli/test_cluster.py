"""``shadeproxy cluster`` status, owner and forget: their calls, their output, and their errors."""

import json

import msgspec
import pytest

from shadeproxy.cluster.node_stats import NodeStats
from shadeproxy.cluster.status import ClusterSummary, NodeStatus, ObjectOwner

NODES = [
    NodeStatus(
        node=name, weight=64.0, share=share, away=away, s3=f"{name}:9000", control=f"{name}:9001", peer="",
        release="1.0",
    )
    for name, share, away in (("a", 0.75, False), ("b", 0.25, False), ("c", 0.0, True))
]  # fmt: skip
SUMMARY = ClusterSummary(
    name="trainers", node="a", view=9, settled=9, lease_s=2.25, round_trip_s=0.0012, nodes=NODES
)


def answered(control, answer):
    control.answer = (200, msgspec.json.encode(answer).decode())


def test_status_shows_the_nodes(shade, control):
    answered(control, SUMMARY)
    result = shade("cluster", "status", "--url", control.url)
    assert result.exit_code == 0
    assert control.requests == [("GET", "/v1/cluster", None, None)]
    assert "cluster trainers, view 9 (settled), seen by a" in result.stdout
    assert "2.2 s left; beat: 1.2 ms" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["b", "25.0%", "64", "here", "-", "b:9000", "b:9001", "1.0"] in rows
    assert ["c", "0.0%", "64", "away", "-", "c:9000", "c:9001", "1.0"] in rows
    assert "drained" not in result.stdout
    assert "removed" not in result.stdout
    assert "waits for" not in result.stdout


def test_status_shows_slow_and_skipped_nodes_and_the_late_ones(shade, control):
    slow = msgspec.structs.replace(NODES[1], p99_s=0.25, skipped=True)
    changed = {"nodes": [NODES[0], slow], "late": ["b"], "settled": 8, "drained": True}
    answered(control, msgspec.structs.replace(SUMMARY, **changed))
    result = shade("cluster", "status", "--url", control.url)
    assert ["b", "25.0%", "64", "skipped", "250.0", "ms", "b:9000", "b:9001", "1.0"] in [
        line.split() for line in result.stdout.splitlines()
    ]
    assert "not settled yet" in result.stdout
    assert "the view waits for: b" in result.stdout
    assert "this proxy is drained, until `shadeproxy cluster drain --undo` or a restart" in result.stdout


def test_status_says_that_there_is_no_view_yet(shade, control):
    answered(control, msgspec.structs.replace(SUMMARY, view=0, settled=0, nodes=[]))
    assert (
        "cluster trainers, no view yet, seen by a" in shade("cluster", "status", "--url", control.url).stdout
    )


def test_status_says_that_the_called_proxy_was_removed(shade, control):
    answered(control, msgspec.structs.replace(SUMMARY, forgotten=True))
    result = shade("cluster", "status", "--url", control.url)
    assert "this proxy was removed by `shadeproxy cluster forget`, until a restart" in result.stdout


def test_status_as_json(shade, control):
    answered(control, SUMMARY)
    result = shade("cluster", "status", "--json", "--url", control.url)
    assert json.loads(result.stdout) == msgspec.to_builtins(SUMMARY)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": ""}, "set cluster.name"),
        ({"problem": "127.0.0.1:6379 gave no answer in 1 s"}, "gave no answer"),
        ({"refusal": "node b has another origin"}, "another origin"),
        ({"conflict": True}, "do not copy state.path"),
    ],
)
def test_status_fails_where_the_proxy_takes_no_part(shade, control, changed, said):
    answered(control, msgspec.structs.replace(SUMMARY, **changed))
    result = shade("cluster", "status", "--url", control.url)
    assert result.exit_code == 1
    assert said in result.stderr
    assert bool(result.stdout) == ("name" not in changed)


def test_owner_names_the_node(shade, control):
    answered(control, ObjectOwner(uri="s3://b/a b/k", owner="a", home="a", here=True))
    result = shade("cluster", "owner", "s3://b/a b/k", "--namespace", "team/x", "--url", control.url)
    assert control.requests == [("GET", "/v1/cluster/owner/b/a%20b/k?namespace=team%2Fx", None, None)]
    assert result.stdout == "s3://b/a b/k: a\n"


def test_owner_says_that_the_home_is_away(shade, control):
    answered(control, ObjectOwner(uri="s3://b/k", owner="a", home="c", here=True))
    result = shade("cluster", "owner", "s3://b/k", "--url", control.url)
    assert result.stdout == "s3://b/k: a; its place is at c, which is away\n"


@pytest.mark.parametrize("uri", ["b/k", "s3://b", "s3://", "s3:///k"])
def test_owner_needs_an_object(shade, control, uri):
    result = shade("cluster", "owner", uri, "--url", control.url)
    assert result.exit_code == 2
    assert "s3://bucket/key" in result.stderr
    assert control.requests == []


def test_forget_sends_the_node(shade, control):
    answered(control, SUMMARY)
    result = shade("cluster", "forget", "c", "--url", control.url)
    assert (result.exit_code, result.stdout) == (0, "c is forgotten\n")
    method, path, _, body = control.requests[0]
    assert (method, path) == ("POST", "/v1/cluster/forget")
    assert body == {"node": "c"}


@pytest.fixture
def soon(control, monkeypatch):
    """Let the share move when a waiting command asks for the second time."""
    looks = []

    def look(_seconds):
        looks.append(1)
        if len(looks) == 2:
            answered(control, msgspec.structs.replace(SUMMARY, view=10, drained=True))

    monkeypatch.setattr("shadeproxy.cli.cluster.time.sleep", look)
    answered(control, msgspec.structs.replace(SUMMARY, moving=True, drained=True))
    return looks


@pytest.mark.parametrize(
    ("option", "drain", "said"),
    [
        ((), True, "a is drained: it relays for its clients, until `shadeproxy cluster drain --undo`"),
        (("--undo",), False, "a has its share again"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_drain_waits_until_all_have_agreed(shade, control, option, drain, said):
    result = shade("cluster", "drain", *option, "--url", control.url)
    assert result.exit_code == 0, result.stderr
    posted, *looks = control.requests
    assert (posted[0], posted[1], posted[3]) == ("POST", "/v1/cluster/drain", {"drain": drain})
    assert [look[:2] for look in looks] == [("GET", "/v1/cluster")] * 2
    assert f"view 10 is settled; {said}" in result.stdout


@pytest.mark.usefixtures("soon")
def test_drain_as_json(shade, control):
    result = shade("cluster", "drain", "--json", "--url", control.url)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["view"] == 10


def test_drain_says_for_which_node_the_view_waits(shade, control):
    changed = {"moving": True, "late": ["b", "c"], "problem": "the engine is down"}
    answered(control, msgspec.structs.replace(SUMMARY, **changed))
    result = shade("cluster", "drain", "--wait", "0", "--url", control.url)
    assert result.exit_code == 1
    assert len(control.requests) == 1
    assert "view 9 is not settled after 0 s, and waits for b, c: the engine is down" in result.stderr
    assert "the node still asks for the change" in result.stderr


COUNTED = [
    NodeStats(node="a", reads=100, hits=50, bytes=2048, relayed=7, relayed_bytes=1024, fallbacks=1,
              origin_requests=50, origin_bytes=1024, used_bytes=1, capacity_bytes=4, lease_s=2.5, view=9),
    NodeStats(node="b", reads=300, hits=250, bytes=2048, lease_s=1.0, view=8),
]  # fmt: skip


def stats_of(control, *nodes):
    control.answer = (200, json.dumps({"nodes": msgspec.to_builtins(list(nodes))}))


def test_stats_of_the_cluster_have_a_row_a_node_and_sums(shade, control):
    stats_of(control, *COUNTED)
    result = shade("stats", "--cluster", "--url", control.url)
    assert result.exit_code == 0, result.stderr
    assert control.requests[0][:2] == ("GET", "/v1/stats?cluster=1")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "a 100 50.0% 2.0 KiB 7 1.0 KiB 1 50 1.0 KiB 25.0% 2.5 s 9" in rows
    assert "all 400 75.0% 4.0 KiB 7 1.0 KiB 1 50 1.0 KiB 25.0%" in rows


def test_a_silent_node_is_shown_and_fails_the_command(shade, control):
    stats_of(control, COUNTED[0], NodeStats(node="b", problem="10.0.0.2:9002 gave no answer in 2 s"))
    result = shade("stats", "--cluster", "--url", control.url)
    assert result.exit_code == 1
    assert "1 of 2 nodes gave no answer: b: 10.0.0.2:9002 gave no answer in 2 s" in result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["b", *["-"] * 9, "no", "answer"] in rows
    assert ["all", "100"] in [row[:2] for row in rows], "the sums are of those that answered"


def test_stats_of_the_cluster_as_json_and_not_watched(shade, control):
    stats_of(control, *COUNTED)
    result = shade("stats", "--cluster", "--json", "--url", control.url)
    assert [one["node"] for one in json.loads(result.stdout)] == ["a", "b"]
    result = shade("stats", "--cluster", "--watch", "--url", control.url)
    assert result.exit_code == 2
    assert "leave out --watch" in result.stderr
