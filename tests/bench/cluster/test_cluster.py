"""Short cluster runs. Proxies that share one cache pass, and proxies that each have a cache of their own
fail.
"""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest

from shadeproxy_bench.reliability.cluster import namespaces
from shadeproxy_bench.reliability.cluster.clients import Clients
from shadeproxy_bench.reliability.cluster.faults import (
    CUT_ALL,
    CUT_HALVES,
    CUT_PAIR,
    ENGINE_KILL,
    ENGINE_STOP,
    FLUSH,
    JOIN,
    KILL,
    SHARES,
    STOP,
    faults_of,
)
from shadeproxy_bench.reliability.cluster.found import Found
from shadeproxy_bench.reliability.cluster.namespaces import NAMESPACES
from shadeproxy_bench.reliability.cluster.nodes import LOCAL, MOST_LEASES, OWNED, Shape
from shadeproxy_bench.reliability.cluster.relays import RELAYS
from shadeproxy_bench.reliability.cluster.report import keep, load, markdown, sums_of
from shadeproxy_bench.reliability.cluster.run import Plan, play
from tests.support.redis_server import needs_redis

pytestmark = pytest.mark.timeout(600)


def test_the_faults_of_a_round_follow_from_the_seed():
    rounds = [[kind for kind, _ in faults_of(1, number)] for number in range(300)]
    assert rounds == [[kind for kind, _ in faults_of(1, number)] for number in range(300)]
    assert rounds != [[kind for kind, _ in faults_of(2, number)] for number in range(300)]
    assert {kind for kinds in rounds for kind in kinds} == set(SHARES)
    # The faults of a seed never change, so a kept seed repeats its run.
    assert rounds[:4] == [[CUT_PAIR, CUT_HALVES, CUT_HALVES], [KILL, ENGINE_KILL], [ENGINE_STOP], [KILL]]


def test_a_run_may_have_more_kills_and_says_so():
    assert [kind for kind, _ in faults_of(1, 9, SHARES[KILL])] == [kind for kind, _ in faults_of(1, 9)]
    rounds = [[kind for kind, _ in faults_of(1, number, 32)] for number in range(300)]
    drawn = [kind for kinds in rounds for kind in kinds]
    assert 0.5 < drawn.count(KILL) / len(drawn) < 0.68
    assert set(drawn) == set(SHARES)
    others = [Found(2, 0.5, OWNED, kills=32), Found(3, 3.0, OWNED, workers=2, nodes=32)]
    page = markdown([Found(1, 0.5, OWNED), *others])
    assert " SEED=1\n" in page
    assert " SEED=2 KILLS=32\n" in page
    assert " SEED=3 LEASE=3 WORKERS=2 NODES=32\n" in page


def test_the_sums_of_all_seeds_are_in_one_table(tmp_path):
    first = Found(1, 0.5, OWNED, rounds=10, faults={KILL: 3, STOP: 1, FLUSH: 2, JOIN: 1})
    first.reads, first.writes = {"right": 100, "cut": 7}, {"success": 40}
    second = Found(2, 3.0, OWNED, rounds=5, faults={KILL: 4, CUT_PAIR: 1, CUT_ALL: 2, ENGINE_KILL: 1})
    second.reads, second.violations = {"right": 5}, {"stale": 1}
    assert sums_of([first, second]) == {
        "rounds": 15,
        "kill -9 of a proxy": 7,
        "SIGSTOP of a proxy": 1,
        "partition": 3,
        "restart of the empty engine, or FLUSHALL": 3,
        "SIGSTOP of the engine": 0,
        "join": 1,
        "leave": 0,
        "reads": 112,
        "writes": 40,
        "violations": 1,
    }
    for one in (second, first, second):
        keep(one, tmp_path)
    assert load(tmp_path) == [first, second]
    page = (tmp_path / "cluster.md").read_text()
    assert "| all seeds | lease of 0.5 s | lease of 3 s | times |" in page
    assert "| kill -9 of a proxy | 3 | 4 | 7 |" in page
    assert "    make chaos-cluster ROUNDS=5 SEED=2 LEASE=3\n" in page
    counted = sum(sums_of([first, second]).values()) - 15 - 112 - 40 - 1
    assert counted == sum(sum(one.faults.values()) for one in (first, second)), "each kind is in one row"
    assert sum(sums_of([Found(1, 0.5, OWNED, faults=dict(SHARES))]).values()) == sum(SHARES.values())


def test_seeds_that_run_side_by_side_keep_each_others_results(tmp_path):
    def keep_often(seed):
        for rounds in range(1, 31):
            keep(Found(seed, 0.5, OWNED, rounds=rounds), tmp_path)

    with ThreadPoolExecutor() as threads:
        list(threads.map(keep_often, range(4)))
    assert [one.rounds for one in load(tmp_path)] == [30] * 4


@pytest.mark.parametrize(("lease_s", "patience_s"), [(0.5, 20.0), (3.0, 42.0)])
def test_a_reader_waits_longer_than_a_proxy_is_stopped(lease_s, patience_s):
    cluster, judge = SimpleNamespace(shape=Shape(OWNED, lease_s, 0)), SimpleNamespace(histories=[])
    assert Clients(cluster, judge, random.Random(0))._patience_s == patience_s > MOST_LEASES * lease_s


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
def test_several_seeds_run_in_the_best_network_there_is_and_go_on(tmp_path):
    def run(rounds):
        command = [sys.executable, "-m", "shadeproxy_bench.reliability.cluster", "--rounds", str(rounds)]
        command += ["--seed", "1", "2", "--write", str(tmp_path), "--out", str(tmp_path / "out")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout, load(tmp_path)

    said, before = run(1)
    why = namespaces.refusal()
    assert f"network: {RELAYS if why else NAMESPACES}\n" in said
    assert why in said
    again, after = run(2)
    assert "seed 2 goes on after 1 rounds" in again
    assert [one.rounds for one in (*before, *after)] == [1, 1, 2, 2]
    assert all(two.reads["right"] > one.reads["right"] for one, two in zip(before, after, strict=True))
    assert f"| reads | {sums_of(after)['reads']:,} |" in again


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
    plan = Plan(2, LOCAL, tmp_path, lambda now: keep(now, tmp_path), faulty=False)
    first = play(Found(2, 0.5, LOCAL, nodes=1), plan, silent)
    assert first.failures == []
    assert first.reads["right"] > 50
    [kept] = load(tmp_path)
    assert kept.rounds == 2
    second = play(kept, plan._replace(rounds=4), silent)
    assert second.rounds == 4
    assert second.reads["right"] > first.reads["right"]
    assert msgspec.json.decode((tmp_path / "cluster.json").read_bytes())[0]["rounds"] == 4
    assert "**Passed**: 4 rounds" in (tmp_path / "cluster.md").read_text()
