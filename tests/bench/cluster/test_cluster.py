"""Short runs of a cluster: proxies that share one cache pass, and proxies with copies of their own fail."""

import shutil

import msgspec
import pytest

from shadeproxy_bench.reliability.cluster.found import Found
from shadeproxy_bench.reliability.cluster.nodes import LOCAL
from shadeproxy_bench.reliability.cluster.report import keep, load, markdown
from shadeproxy_bench.reliability.cluster.run import Plan, play

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (shutil.which("redis-server") or shutil.which("valkey-server")),
        reason="needs redis-server or valkey-server (Debian: apt-get install redis-server)",
    ),
]


def silent(_line):
    pass


def test_proxies_with_copies_of_their_own_are_found_stale(tmp_path):
    found = play(Found(1, 0.5, LOCAL), Plan(2, LOCAL, tmp_path, faulty=False), silent)
    assert set(found.violations) == {"stale"}
    assert found.writes["success"] > 20
    told = next((tmp_path / "seed-1").glob("violation-*.txt")).read_text()
    assert "VIOLATION: stale" in told
    assert "history:" in told
    assert "**Failed" in markdown([found])


def test_one_proxy_alone_is_right_and_a_seed_goes_on(tmp_path):
    plan = Plan(2, LOCAL, tmp_path, lambda now: keep(now, tmp_path), nodes=1, faulty=False)
    first = play(Found(2, 0.5, LOCAL), plan, silent)
    assert first.failures == []
    assert first.reads["right"] > 50
    [kept] = load(tmp_path)
    assert kept.rounds == 2
    second = play(kept, plan._replace(rounds=4), silent)
    assert second.rounds == 4
    assert second.reads["right"] > first.reads["right"]
    assert msgspec.json.decode((tmp_path / "cluster.json").read_bytes())[0]["rounds"] == 4
    assert "**Passed**: 4 rounds" in (tmp_path / "cluster.md").read_text()
