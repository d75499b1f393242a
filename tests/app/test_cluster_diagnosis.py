"""The doctor finds each problem of a cluster from the facts, with its cause and the remedy."""

from dataclasses import replace

import pytest

from shadeproxy.app.cluster_diagnosis import ClusterFacts, NodeReport, cluster_findings

OWN = NodeReport(node="a", address="10.0.0.1:9002", own=True, away=False, share=0.25, recent_reads=3000)
PEER = NodeReport(
    node="b", address="10.0.0.2:9002", own=False, away=False, share=0.25, recent_reads=2500, p99_s=0.2,
    answers=512,
)  # fmt: skip
OTHERS = tuple(replace(PEER, node=node) for node in "cd")
FINE = ClusterFacts(owned=True, view=9, nodes=(OWN, PEER, *OTHERS))


def test_a_well_cluster_has_no_findings():
    assert list(cluster_findings(FINE)) == []


def peer(**changes):
    return {"nodes": (OWN, replace(PEER, **changes), *OTHERS)}


@pytest.mark.parametrize(
    ("changes", "name", "severity", "cause", "remedy"),
    [
        (
            {"refusal": "node b of the cluster has another origin"},
            "refused by the cluster",
            "wrong",
            "no seat in the cluster: it reads past all caches and refuses writes. Node b of the cluster has",
            "give all proxies of the cluster the same origin and release, and the same cluster.pages",
        ),
        (
            {"refusal": "node b speaks version 2", "owned": False},
            "refused by the cluster",
            "wrong",
            "this proxy has no seat in the cluster. Node b speaks version 2",
            "same origin and release",
        ),
        (
            {"hints_refusal": "the cluster has another origin"},
            "hints not shared",
            "wrong",
            "shares no hints with its cluster. The cluster has another origin",
            "or this one another cluster.name",
        ),
        (
            {"conflict": True},
            "state directory copied",
            "wrong",
            "another living proxy of the cluster has this one's name",
            "a state.path of its own",
        ),
        (
            {"forgotten": True},
            "removed from the cluster",
            "warning",
            "removed this proxy by `shadeproxy cluster forget`, so it caches nothing and only relays",
            "restart it to let it take part again",
        ),
        (
            {"forgotten": True, "owned": False},
            "removed from the cluster",
            "warning",
            "removed this proxy by `shadeproxy cluster forget`",
            "or stop it",
        ),
        (
            {"cut_off": True, "problem": "10.0.0.9:6379 gave no answer in 1 s"},
            "cut off from the cluster",
            "wrong",
            "no usable answer: 10.0.0.9:6379 gave no answer in 1 s; writes are refused",
            "check that Redis or Valkey runs",
        ),
        (
            {"cut_off": True, "problem": "refused", "owned": False},
            "cut off from the cluster",
            "warning",
            "refused; hints stay at this proxy",
            "cluster.engine_password",
        ),
        (
            {"unsettled_s": 41.0, "late": ("c", "d")},
            "view not settled",
            "wrong",
            "after 41 s, so writes of objects that change their owner are refused. It waits for c, d.",
            "stop one that hangs",
        ),
        (
            {"lapses": 3},
            "lease lapsed",
            "warning",
            "lease lapsed 3 times in the last hour",
            "raise cluster.lease",
        ),
        (
            {"lapses": 1},
            "lease lapsed",
            "warning",
            "lease lapsed once in the last hour",
            "pauses of this process or of its machine",
        ),
        (
            {"clock_rate": 1.07},
            "wrong clock rate",
            "wrong",
            "this machine's clock runs 7% faster than that of the engine's machine",
            "until it is right, `shadeproxy cluster drain` this proxy",
        ),
        (
            peer(away=True) | {"cut_off": True, "problem": "refused"},
            "cut off from the cluster",
            "wrong",
            "refused; writes are refused",
            "check that Redis or Valkey runs",
        ),
        ({"clock_rate": 0.9}, "wrong clock rate", "wrong", "clock runs 10% slower than that", "at that of"),
        (
            peer(problem="10.0.0.2:9002 gave no answer in 2 s", skipped=True),
            "proxy does not answer",
            "wrong",
            "b of the cluster does not answer this proxy (10.0.0.2:9002 gave no answer in 2 s), so reads of",
            "the network to 10.0.0.2:9002, its cluster.listen and cluster.advertise",
        ),
        (
            peer(away=True, problem="10.0.0.2:9002 gave no answer in 2 s", skipped=True, share=0.0),
            "proxy is away",
            "warning",
            "b of the cluster has no lease any more, so reads of its objects go to the origin, and no proxy",
            "it leaves after cluster.leave_after, or at once by `shadeproxy cluster forget b`",
        ),
        (
            peer(away=True) | {"owned": False},
            "proxy is away",
            "warning",
            "b of the cluster has no lease any more",
            "look at its log and the network to 10.0.0.2:9002",
        ),
        (
            {"hints_problem": "10.0.0.9:6379: OOM command not allowed"},
            "hints wait",
            "warning",
            "hints of this proxy's callers wait to be shared: 10.0.0.9:6379: OOM command not allowed",
            "look at Redis or Valkey: its memory",
        ),
        (
            peer(skipped=True),
            "reads go past a proxy",
            "warning",
            "b of the cluster failed three times within 5 s",
            "raise cluster.peer_timeout",
        ),
        (
            peer(p99_s=1.3),
            "slow proxy",
            "warning",
            "a hundredth of the reads at b of the cluster wait longer than 1.3 s",
            "run `shadeproxy doctor` at that proxy",
        ),
        (
            peer(recent_reads=20_000),
            "skewed share",
            "warning",
            "b of the cluster owns 25% of the objects and answered 71% of all reads in the last ten minutes",
            "spread these reads over more objects",
        ),
        (
            {"nodes": (replace(OWN, recent_reads=20_000), PEER, *OTHERS)},
            "skewed share",
            "warning",
            "a of the cluster owns 25% of the objects and answered 73%",
            "lower its cluster.weight",
        ),
        (
            {"nodes": (replace(OWN, share=0.5, recent_reads=8_000), replace(PEER, share=0.5))},
            "skewed share",
            "warning",
            "a of the cluster owns 50% of the objects and answered 76%",
            "spread these reads",
        ),
    ],
)
def test_each_problem_is_found(changes, name, severity, cause, remedy):
    (found,) = cluster_findings(replace(FINE, **changes))
    assert (found.name, found.severity) == (name, severity)
    assert cause in found.cause
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"unsettled_s": 29.0, "late": ("c",)},
        peer(p99_s=1.3, answers=20),
        {"problem": "one beat was lost"},
        peer(away=True, weight=0.0),
        {"nodes": (replace(OWN, away=True), PEER)},
        peer(recent_reads=5_000),
        {"nodes": (replace(OWN, recent_reads=900), replace(PEER, recent_reads=0))},
        {"nodes": (replace(OWN, share=0.5, recent_reads=7_000), replace(PEER, share=0.5))},
        {"nodes": (replace(OWN, recent_reads=20_000),)},
        {"nodes": (replace(OWN, share=0.0, recent_reads=20_000), PEER)},
    ],
)
def test_facts_that_are_only_unusual_are_no_finding(changes):
    assert list(cluster_findings(replace(FINE, **changes))) == []
