"""Short runs of a cluster: proxies that share one cache pass, and proxies with copies of their own fail."""

import msgspec
import pytest

from shadeproxy_bench.reliability.cluster.faults import SHARES, faults_of
from shadeproxy_bench.reliability.cluster.found import Found
from shadeproxy_bench.reliability.cluster.nodes import LOCAL, OWNED
from shadeproxy_bench.reliability.cluster.report import keep, load, markdown
from shadeproxy_bench.reliability.cluster.run import Plan, play
from tests.support.redis_server import needs_redis

pytestmark = pytest.mark.timeout(600)


def test_the_faults_of_a_round_follow_from_the_seed():
    rounds = [[kind for kind, _ in faults_of(1, number)] for number in range(300)]
    assert rounds == [[kind for kind, _ in faults_of(1, number)] for number in range(300)]
    assert rounds != [[kind for kind, _ in faults_of(2, number)] for number in range(300)]
    assert {kind for kinds in rounds for kind in kinds} == set(SHARES)


def silent(_line):
    pass


@pytest.mark.harness
@needs_redis
def test_proxies_that_share_one_cache_survive_faults(tmp_path):
    found = play(Found(3, 0.5, OWNED), Plan(20, OWNED, tmp_path), silent)
    assert found.failures == []
    assert sum(found.faults.values()) >= 20
    assert found.reads["right"] > 500
    assert found.writes["success"] > 100
    assert found.sources["ram"] > 100
    assert "**Passed**: 20 rounds" in markdown([found])


@pytest.mark.harness
@needs_redis
def test_proxies_with_copies_of_their_own_are_found_stale(tmp_path):
    found = play(Found(1, 0.5, LOCAL), Plan(2, LOCAL, tmp_path, faulty=False), silent)
    assert set(found.violations) == {"stale"}
    assert found.writes["success"] > 20
    told = next((tmp_path / "seed-1").glob("*-stale.txt")).read_text()
    assert "VIOLATION: stale" in told
    assert "history:" in told
    assert "**Failed" in markdown([found])


@pytest.mark.harness
@needs_redis
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
