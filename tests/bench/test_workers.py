"""Several processes beside one: the workers must have worked, and too few cores are said."""

import pytest

from shadeproxy_bench import run
from shadeproxy_bench.faults import BenchError, TooFewCores
from shadeproxy_bench.load import ReaderLoad
from shadeproxy_bench.machine import cpu_s, own_cpu_s
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites import workers
from shadeproxy_bench.suites.storing import LATENCY_S, NewObjects
from shadeproxy_bench.suites.workers import (
    Cost,
    ask_hits,
    ask_misses,
    ask_uploads,
    compare_processes,
    cost_of,
    require_cores,
)


@pytest.fixture
def source(make_origin):
    return make_origin(latency_s=LATENCY_S)


@pytest.fixture
def ours(source, stack, tmp_path):
    return stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * 1024**2))


def test_each_round_asks_and_compares(ours):
    load, pieces = ReaderLoad(), [Piece(4000, number) for number in range(20)]
    assert ask_misses(load, NewObjects(4000), seconds=0.1)(ours).answers > 0
    assert ask_hits(load, pieces, seconds=0.1)(ours).answers > 0
    cost = cost_of(ours, ask_hits(load, pieces, seconds=0.1))
    assert cost.rate > 0
    assert ask_uploads(pieces)(ours).answers == len(pieces)
    assert own_cpu_s(ours.pid) <= cpu_s(ours.pid)


def test_what_is_no_hit_fails_the_row(ours):
    pieces = [Piece(4000, number) for number in range(20)]
    with pytest.raises(BenchError, match=r"wanted hits of ram, got {'origin': 20}"):
        ask_hits(ReaderLoad(), pieces, seconds=0.1)(ours)


def test_wrong_bytes_fail_the_row(make_origin):
    wrong, pieces = (
        make_origin("wrong", latency_s=LATENCY_S, seed=1),
        [Piece(4000, number) for number in range(20)],
    )
    for ask in (
        ask_hits(ReaderLoad(), pieces, seconds=0.1),
        ask_misses(ReaderLoad(), NewObjects(4000), seconds=0.1),
    ):
        with pytest.raises(BenchError, match="wrong bytes"):
            ask(wrong)


def test_workers_that_did_nothing_fail_the_row(ours, source, monkeypatch):
    several, one, asked = ours._replace(name="several"), source, []
    costs = {"several": Cost(100.0, 60.0, 9.0), "origin": Cost(80.0, 80.0, 5.0)}
    monkeypatch.setattr(workers, "cost_of", lambda server, _ask, **_options: costs[server.name])
    found = compare_processes(several, one, asked.append, rounds=2)
    assert asked == [several] * 5 + [one]
    assert (found.total.ours, found.total.reference) == (100.0, 80.0)
    assert (found.coordinator.ours, found.coordinator.reference) == (60.0, None)
    assert (found.rate.ours, found.rate.reference) == (9.0, 5.0)
    costs["several"] = Cost(100.0, 96.0, 9.0)
    with pytest.raises(BenchError, match=r"^several: the workers took no part$"):
        compare_processes(several, one, asked.append, rounds=2)


def test_a_machine_with_too_few_cores_says_so(monkeypatch):
    monkeypatch.setattr(workers, "available_cores", lambda: 4)
    require_cores(2)
    with pytest.raises(
        TooFewCores, match=r"^3 processes, a client and an origin need 5 cores, and there are 4;"
    ):
        require_cores(3)


def test_the_rows_that_cannot_be_measured_here_have_no_number(monkeypatch):
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    rows = {row.name: row for row in workers.workers(Scale(quick=True))}
    for name in ("8 processes, miss, 100 KB: CPU of all", "4 processes, RAM hit, 4 KB: throughput"):
        row = run.measure("workers", rows[name])
        assert (row.status, row.ours, row.met) == ("too few cores", None, False)
        assert "there are 2" in row.note
    monkeypatch.setattr(workers, "measure_processes", lambda *_arguments: None)
    row = run.measure("workers", rows["2 processes, RAM hit, 4 KB: throughput"])
    assert row.status == "too few cores"
