"""The demo with several proxies at a smaller size: a real cluster with a real Redis or Valkey, and a real
training.
"""

import json

import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.demo import cluster as demo_cluster
from shadeproxy.demo.cluster import require_cluster, settled
from shadeproxy.demo.messages import Counted
from shadeproxy.demo.nodes import run_nodes
from shadeproxy.demo.nodes_report import Node, NodesReport, NodesRun, findings, table
from tests.support.command_lines import processes_below
from tests.support.redis_server import needs_redis

OBJECTS = 300
MIB = 1024**2


@pytest.mark.slow
@pytest.mark.timeout(180)
@needs_redis
def test_a_training_through_two_proxies_is_measured_beside_one(tmp_path, console):
    work, reports = tmp_path / "work", tmp_path / "reports"
    work.mkdir()
    report = run_nodes(reports, 2, objects=OBJECTS, epochs=2, trust_s=0, work_dir=work, console=console)
    nodes = report.together.nodes
    assert [node.share for node in nodes] == pytest.approx([0.5, 0.5], abs=0.1)
    for epoch in range(2):
        # A read counts at one proxy only. A sample that occurs twice in a batch is read once. A sample that
        # is evicted between its locate call and the reader's copy is read twice.
        assert 0.7 * OBJECTS < sum(node.epochs[epoch].requests for node in nodes) < 1.2 * OBJECTS
        # Each rank reads a part of all samples, and the other proxy caches half of this part.
        assert all(0.1 * OBJECTS < node.lan_reads[epoch] < 0.4 * OBJECTS for node in nodes)
        assert all(node.lan_bytes[epoch] > 1000 * node.lan_reads[epoch] for node in nodes)
    assert all(node.epochs[1].hits_ram for node in nodes)
    (alone,) = report.alone.nodes
    assert 0.7 * OBJECTS < alone.epochs[1].requests < 1.2 * OBJECTS
    assert alone.lan_reads == (0, 0)
    assert json.loads((reports / "nodes.json").read_text())["together"]["nodes"][1]["lan_reads"]
    said = console.file.getvalue()
    assert "2 proxies, owned pages: epoch 2: accuracy" in said
    assert "one instead" in said
    assert list(work.iterdir()) == []
    assert processes_below(work) == []


def counted(*, hits: int, mib: int) -> Counted:
    return Counted(
        requests=100,
        bytes=0,
        hits_ram=hits,
        hits_disk=0,
        coalesced=0,
        hit_bytes=0,
        origin_requests=100 - hits,
        origin_bytes=mib * MIB,
    )


def test_the_table_has_each_proxy_their_sum_and_the_one_beside(make_report, console):
    first, cold = counted(hits=0, mib=50), (0, 0)
    nodes = tuple(
        Node(share, (first, counted(hits=hits, mib=3)), (9, 50), (9 * MIB, 4 * MIB))
        for share, hits in ((0.25, 40), (0.75, 60))
    )
    alone = (Node(1.0, (first, counted(hits=55, mib=5)), cold, cold),)
    whole = make_report()
    report = NodesReport(
        whole.machine,
        whole.dataset,
        whole.cache_bytes,
        NodesRun(nodes, (9.0, 2.0), (0.0, 0.0), 0.9),
        NodesRun(alone, (9.0, 1.5), (0.0, 0.0), 0.8),
    )
    console.print(table(report))
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["1", "25.0%", "100", "40.0%", "0.0%", "50", "4.0", "60", "3.0"] in rows
    assert ["all", "2", "100.0%", "200", "50.0%", "0.0%", "100", "8.0", "100", "6.0"] in rows
    assert ["one", "instead", "100.0%", "100", "55.0%", "0.0%", "0", "0.0", "45", "5.0"] in rows
    hits, network, times = findings(report)
    assert "they answer 50.0% of the reads; one proxy with the same capacity answers 55.0%" in hits
    assert "8.0 MiB an epoch crossed the network, 50% of the reads" in network
    assert "2.0 s, and 1.5 s with one proxy; the accuracy at the end is 90.0% and 80.0%" in times


def test_each_missing_part_of_a_cluster_is_named(monkeypatch):
    monkeypatch.setattr(demo_cluster.shutil, "which", lambda _: None)
    monkeypatch.setattr(demo_cluster.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        require_cluster()
    assert str(caught.value) == (
        "demo --nodes needs redis-server or valkey-server (Debian, Ubuntu: apt-get install redis-server) and"
        " the Python package redis (in a checkout: pip install '.[cluster]')"
    )


def test_a_view_is_settled_when_all_that_live_have_it_and_a_lease():
    def said(name, *, view=3, agreed=3, lease_s=1.0, nodes=("a", "b")):
        return {
            "node": name,
            "view": view,
            "settled": agreed,
            "lease_s": lease_s,
            "nodes": [{"node": one, "away": one == "gone"} for one in (*nodes, "gone")],
        }

    assert settled([said("a"), said("b")])
    assert not settled([said("a")]), "b lives too"
    assert not settled([said("a"), said("b", lease_s=0.0)])
    assert not settled([said("a"), said("b", view=4, nodes=("a", "b"))])
    assert not settled([said("a", agreed=2), said("b", agreed=2)])
