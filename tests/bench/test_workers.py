"""A proxy of several processes beside a proxy of one. The workers must have worked, and the load grows with
the number of workers.
"""

import pytest

from shadeproxy_bench import run, sides
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import ReaderLoad
from shadeproxy_bench.machine import children_of, cpu_s, own_cpu_s
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites import workers
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.suites.storing import LATENCY_S, NewObjects
from shadeproxy_bench.suites.workers import (
    Cost,
    ask_hits,
    ask_misses,
    ask_uploads,
    compare_processes,
    cost_of,
    purge,
)

FEW = {"seconds": 0.1, "connections": 32}


@pytest.fixture
def source(make_origin):
    return make_origin(latency_s=LATENCY_S)


@pytest.fixture
def ours(source, stack, tmp_path):
    return stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * 1024**2))


def test_each_round_asks_and_compares(ours):
    load, pieces = ReaderLoad(), [Piece(4000, number) for number in range(20)]
    assert ask_misses(load, NewObjects(4000), **FEW)(ours).answers > 0
    assert ask_hits(load, pieces, **FEW)(ours).answers > 0
    cost = cost_of(ours, ask_hits(load, pieces, **FEW))
    assert cost.rate > 0
    for clients in (1, 2):
        uploaded = ask_uploads(pieces, connections=4, clients=clients)(ours)
        assert uploaded.answers == len(pieces)
        assert uploaded.seconds > 0
    assert own_cpu_s(ours.pid) <= cpu_s(ours.pid)


def test_what_is_no_hit_fails_the_row(ours):
    pieces = [Piece(4000, number) for number in range(20)]
    with pytest.raises(BenchError, match=r"wanted hits of ram, got {'origin': 20}"):
        ask_hits(ReaderLoad(), pieces, **FEW)(ours)


def test_what_is_not_stored_fails_only_rounds_that_count(source):
    """Objects that are not stored make only rounds fail that count. Here an origin replaces the proxy, and
    stores nothing.
    """
    new = NewObjects(4000)
    assert ask_misses(ReaderLoad(), new, all_stored=False, **FEW)(source).answers > 0
    with pytest.raises(BenchError, match=r"^origin stored only 0% of the objects$"):
        ask_misses(ReaderLoad(), new, **FEW)(source)


def test_wrong_bytes_fail_the_row(make_origin):
    wrong, pieces = (
        make_origin("wrong", latency_s=LATENCY_S, seed=1),
        [Piece(4000, number) for number in range(20)],
    )
    for ask in (
        ask_hits(ReaderLoad(), pieces, **FEW),
        ask_misses(ReaderLoad(), NewObjects(4000), **FEW),
    ):
        with pytest.raises(BenchError, match="wrong bytes"):
            ask(wrong)


def test_workers_that_did_nothing_fail_the_row(ours, source, monkeypatch):
    several, one, asked, before = ours._replace(name="several"), source, [], []
    costs = {"several": Cost(100.0, 60.0, 9.0), "origin": Cost(80.0, 80.0, 5.0)}
    monkeypatch.setattr(workers, "cost_of", lambda server, _ask, **_options: costs[server.name])
    found = compare_processes(several, one, asked.append, rounds=2, before=before.append)
    assert asked == [several] * 5 + [one]
    assert before == [*asked, one, several, one, several]
    compare_processes(several, one, None, rounds=1, warm=before.append)
    assert before[-6:] == asked
    assert (found.total.ours, found.total.reference) == (100.0, 80.0)
    assert (found.coordinator.ours, found.coordinator.reference) == (60.0, None)
    assert (found.rate.ours, found.rate.reference) == (9.0, 5.0)
    assert found.rate.note == "cores busy: 0.00, one process 0.00"
    costs["several"] = Cost(100.0, 60.0, 19_000.0)
    assert compare_processes(several, one, asked.append, rounds=2).rate.note.startswith("cores busy: 1.90, ")
    costs["several"] = Cost(100.0, 96.0, 9.0)
    with pytest.raises(BenchError, match=r"^several: the workers took no part$"):
        compare_processes(several, one, asked.append, rounds=2)


def test_a_purge_leaves_no_hits(ours):
    pieces = [Piece(4000, number) for number in range(20)]
    for _ in range(2):
        assert read_pieces(ours, pieces, connections=2).sources == {"origin": 20}
        purge(ours)


def test_hits_over_tls_are_measured_with_several_processes(monkeypatch):
    work = workers.Work("RAM hit over TLS, 4 KB", "hit", 4_000, objects=20, over_tls=True)
    seen = []

    def compare(several, one, ask, *, rounds, warm, before):
        assert warm is ask
        before(several)
        seen.extend([several.url, one.url, ask(several).answers, ask(one).answers, rounds])
        seen.extend(len(children_of(server.pid)) for server in (several, one))

    monkeypatch.setattr(workers, "compare_processes", compare)
    workers.measure_processes(Scale(quick=True), 2, work)
    assert all(url.startswith("https://") for url in seen[:2])
    assert min(seen[2:4]) > 0
    assert seen[4:] == [3, 1, 0]


def test_the_rows_that_cannot_be_measured_here_have_no_number(monkeypatch):
    monkeypatch.setattr(sides, "available_cores", lambda: 2)
    rows = {row.name: row for row in workers.workers(Scale(quick=True))}
    assert rows["2 processes, miss, 4 KB: CPU of all"].how.startswith("32 connections, origin 5 ms away,")
    for name in (
        "8 processes, miss, 100 KB: CPU of all",
        "4 processes, RAM hit, 4 KB: throughput",
        "first epoch, 64 readers, origin 5 ms away: wall",
    ):
        row = run.measure("workers", rows[name])
        assert (row.status, row.ours, row.met) == ("too few cores", None, False)
        assert "there are 2" in row.note
    monkeypatch.setattr(workers, "measure_processes", lambda *_arguments: None)
    row = run.measure("workers", rows["2 processes, RAM hit, 4 KB: throughput"])
    assert row.status == "too few cores"
