"""The measurement of each suite in a tiny run: it ends, counts correctly, and notices faults."""

import importlib.util
from contextlib import closing
from types import SimpleNamespace

import pytest

from shadeproxy_bench import clients, run
from shadeproxy_bench.clients import Clients, Job
from shadeproxy_bench.faults import BenchError, NotBuilt
from shadeproxy_bench.load import ReaderLoad
from shadeproxy_bench.objects import Piece, key_of
from shadeproxy_bench.origin import Latency
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.registry import SUITES
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites import cluster as cluster_suite
from shadeproxy_bench.suites import scripts
from shadeproxy_bench.suites.beside_jobs import Crowd, Hits, cost_us, hit_beside
from shadeproxy_bench.suites.epochs import first_epoch, shuffled_epochs, worst_later_epoch
from shadeproxy_bench.suites.knowledge import apply_scores, choose_victim, take_order
from shadeproxy_bench.suites.misses import cold_reads
from shadeproxy_bench.suites.sdk import connector, connector_rate, sdk_rate
from shadeproxy_bench.suites.tiers import write_cost

CLIENTS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed"),
    )
    for name in ("boto3", "obstore")
]


@pytest.fixture
def stock(stack):
    return stack.enter_context(closing(Clients()))


@pytest.fixture
def servers(make_origin, stack, tmp_path):
    source = make_origin()
    return stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * 1024**2)), source


def test_misses_are_misses(servers):
    ours, source = servers
    rate, cpu = cold_reads(ours, source, objects=8, rounds=2, connections=4)
    assert rate.ours > 0
    assert rate.reference > 0
    assert cpu.reference is None
    with pytest.raises(BenchError, match=r"not all of 8 reads were misses: {'ram': 8}"):
        cold_reads(ours, source, objects=8, rounds=2, connections=4)


def test_an_epoch_is_cold_first_and_then_hits(servers):
    first, *later = shuffled_epochs(*servers, objects=20, seed=0)
    assert first[2] == 0
    assert [hits for _, _, hits in later] == [1.0, 1.0]


def test_the_worst_later_epoch_is_judged():
    rounds = [[(9.0, 1.0, 0.0), (1.0, 2.0, 0.2), (3.0, 2.0, 0.1)]] * 3
    found = worst_later_epoch(rounds)
    assert (found.ours, found.reference, found.note) == (3.0, 2.0, "epoch 3, hit ratio 0.100")
    assert first_epoch(rounds).ours == 9.0


def test_tier_writes_are_compared():
    found = write_cost(writes=4, rounds=2, capacity_bytes=2 * 1024**2)
    assert found.ours > 0
    assert found.reference > 0


def test_scores_and_victims():
    assert apply_scores(samples=500, scores=100, rounds=2).ours > 0
    assert choose_victim(residents=2000, choices=3).ours > 0


def test_hits_beside_jobs_follow_the_announced_orders():
    hits = Hits([Piece(4000, number) for number in range(400)], 60_000, 1.0)
    found = hit_beside(hits, jobs=3, rounds=1)
    assert found.ours > 0
    assert found.reference > 0


def test_reads_beside_jobs_that_miss_are_noticed(servers):
    ours, _ = servers
    hits = Hits([Piece(4000, number) for number in range(400)], 400, 0.1)
    with pytest.raises(BenchError, match=r"proxy: wanted hits, got {'"):
        cost_us(Crowd(ours, hits.pieces, jobs=3), ReaderLoad(), hits)
    taken = take_order(samples=500, rounds=2)
    assert taken.ours > 0
    assert taken.note.startswith("the loop is held ")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stock_client_reads_until_the_time_is_over(make_origin, stock, client):
    source = make_origin()
    done = stock.run(Job(client, source.url, 300_000, 2, 3, 0.1))
    assert done.error == ""
    assert done.bytes > 0
    assert done.wall_s == 0.1


@pytest.mark.parametrize("client", CLIENTS)
def test_wrong_bytes_reach_no_stock_client_unseen(make_origin, stock, client):
    source = make_origin(seed=1)
    done = stock.run(Job(client, source.url, 300_000, 2, 1, 0.1))
    assert done.error == "WrongBytes: 300000/00000000.bin: wrong bytes at 0"


@pytest.mark.parametrize("client", CLIENTS)
def test_bodies_are_not_compared_in_windows_that_count(make_origin, stock, client):
    done = stock.run(Job(client, make_origin(seed=1).url, 4000, 2, 2, 0.2, compare=False))
    assert done.error == ""
    assert done.bytes > 0


@pytest.fixture
def count(monkeypatch):
    """Return a counter for two workers and a window of 10 s. ``at(s)`` sets the clock."""
    now = [0.0]
    monkeypatch.setattr(clients.time, "perf_counter", lambda: now[0])
    counted = clients._Count(Job("boto3", "http://127.0.0.1:1", 4000, 2, 2, 10.0, compare=False))
    return SimpleNamespace(came=counted.came, of=counted, at=lambda s: now.__setitem__(0, s))


def test_the_clock_waits_for_the_last_worker(count):
    assert count.came(0, 0, "ab", turn=0) == 2
    assert count.came(0, 2, "cd", turn=0) == 4
    count.at(4.0)
    count.came(1, 0, "ab", turn=0)
    assert count.of.bytes == 0
    count.at(13.9)
    count.came(0, 4, "ef", turn=0)
    assert not count.of.over
    count.at(14.0)
    count.came(1, 2, "cd", turn=0)
    assert count.of.over
    assert count.of.bytes == 2


def test_the_clock_waits_no_longer_than_half_the_window(count):
    count.came(0, 0, "ab", turn=0)
    count.at(5.0)
    count.came(0, 0, "ab", turn=1)
    count.came(1, 0, "ab", turn=0)
    assert count.of.bytes == 2
    assert not count.of.over
    count.at(15.0)
    assert count.of.over


def test_a_worker_that_failed_ends_the_others(count):
    assert not count.of.over
    count.of.errors.append(OSError())
    assert count.of.over
    assert list(count.of.numbers()) == [0]


@pytest.mark.skipif(importlib.util.find_spec("s3torchconnectorclient") is None, reason="not installed")
def test_the_connector_reads_the_right_bytes(make_origin):
    keys = [key_of(100_000, number) for number in range(3)]
    source = make_origin()
    assert connector_rate(connector(source), keys, threads=1, batch=2) > 0
    with pytest.raises(BenchError, match=f"{keys[0]}: wrong bytes"):
        connector_rate(lambda _key: bytes(100_000), keys, threads=2, batch=2)


def test_samples_that_came_short_fail_the_row():
    assert sdk_rate(lambda ids: len(ids) * 100_000, 5, batch=2) > 0
    with pytest.raises(BenchError, match="2 samples came as 199999 bytes"):
        sdk_rate(lambda ids: len(ids) * 100_000 - 1, 5, batch=2)


def test_a_script_that_is_not_there_is_not_built(tmp_path):
    with pytest.raises(NotBuilt, match=r"^bench/start.py is not there$"):
        scripts.script_function("start.py", "measure", tmp_path)
    (tmp_path / "start.py").write_text("def other(): return 1")
    with pytest.raises(NotBuilt, match=r"^bench/start.py has no function measure$"):
        scripts.script_function("start.py", "measure", tmp_path)
    assert scripts.script_function("start.py", "other", tmp_path)() == 1


def test_the_start_script_plugs_in(monkeypatch):
    monkeypatch.setattr("shadeproxy_bench.suites.start.script_function", lambda _script, _name: fake_start)
    rows = [run.measure("start", planned) for planned in SUITES["start"](Scale(quick=True))]
    assert [row.ours for row in rows] == [0.5, 2.0, 280.0, 1.5, 6.0, 320.0]
    assert [row.met for row in rows] == [True, True, True, False, False, False]


def fake_start(_pages, _directory):
    served = type("Served", (), {"accept_s": 0.5, "first_hit_s": 2.0})
    late = type("Served", (), {"accept_s": 1.5, "first_hit_s": 6.0})
    return {
        "clean": (served, type("Held", (), {"memory_bytes": 280.0})),
        "killed": (late, type("Held", (), {"memory_bytes": 320.0})),
    }


def test_every_row_of_every_suite_says_how_it_is_measured(monkeypatch):
    started = cluster_suite.cluster
    monkeypatch.setattr(cluster_suite, "cluster", lambda *_, **__: started(2, samples=1000))
    for name, suite in SUITES.items():
        rows = list(suite(Scale()))
        assert rows, name
        assert all(row.how and row.unit and row.name for row in rows)
        assert len({row.name for row in rows}) == len(rows)


def test_the_matrix_has_every_size_with_every_number_of_connections():
    cells = {row.cell for row in SUITES["matrix"](Scale())}
    assert len(cells) == 4 * 4 * 2 * 3
    assert ("64 MB x 256", "obstore, nginx, 0 ms") in cells
    assert ("64 MB x 256", "boto3, Ceph RGW, 0 ms") in cells
    assert Piece(64_000_000, 0).path == "/bench/64000000/00000000.bin"


def test_an_origin_s_latency_varies_around_its_median():
    varied = Latency(0.02, sigma=0.5, seed=1)
    waits = sorted(varied.next_s() for _ in range(4001))
    assert waits[2000] == pytest.approx(0.02, rel=0.05)
    assert 3 * 0.02 < waits[3960] < 5 * 0.02
    assert {Latency(0.02, sigma=0.0, seed=seed).next_s() for seed in range(9)} == {0.02}
