"""cluster status, owner and forget: their calls, their output, and their errors."""

import json

import msgspec
import pytest

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
    assert ["b", "25.0%", "64", "here", "b:9000", "b:9001", "1.0"] in rows
    assert ["c", "0.0%", "64", "away", "c:9000", "c:9001", "1.0"] in rows


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
