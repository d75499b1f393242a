"""The row about a first epoch of many readers: every byte is compared, and a hit makes the row fail."""

from contextlib import contextmanager
from functools import partial

import pytest

from shadeproxy_bench import sides
from shadeproxy_bench.faults import BenchError, TooFewCores
from shadeproxy_bench.machine import children_of
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites import first_epoch
from shadeproxy_bench.suites.first_epoch import first_epochs, read_epoch
from shadeproxy_bench.suites.misses import read_pieces

FEW = {"readers": 4, "clients": 2}


@pytest.fixture
def source(make_origin):
    return make_origin(processes=2)


@pytest.fixture
def ours(source, stack, tmp_path):
    return stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * 1024**2))


def test_an_origin_of_several_processes_gives_the_right_bytes(source):
    pieces = [Piece(4000, number) for number in range(50)]
    assert read_pieces(source, pieces, connections=10).requests == 50
    assert len(children_of(source.pid)) == 1


def test_each_round_reads_new_objects_on_both_sides(ours, source):
    found = first_epochs(ours, source, objects=10, rounds=2, **FEW)
    assert found.ours > 0
    assert found.reference > 0


def test_hits_and_wrong_bytes_fail_the_row(ours, make_origin):
    pieces = [Piece(1000, number) for number in range(10)]
    assert read_epoch(ours, pieces, **FEW) > 0
    with pytest.raises(BenchError, match=r"^proxy: 10 of 10 reads were hits$"):
        read_epoch(ours, pieces, **FEW)
    with pytest.raises(BenchError, match="wrong bytes"):
        read_epoch(make_origin("wrong", seed=1), pieces, **FEW)


def test_the_number_of_processes_fits_the_machine(monkeypatch, make_origin):
    """The number of processes follows from the machine: eight workers on 16 cores, four on 8, and
    none on 4.
    """
    asked = []

    @contextmanager
    def fake(_work, _behind, *, more, **_options):
        asked.append(more["s3"]["workers"])
        yield make_origin(f"ours{len(asked)}")

    monkeypatch.setattr(first_epoch, "proxy", fake)
    monkeypatch.setattr(first_epoch, "_objects", lambda _scale: 10)
    monkeypatch.setattr(first_epoch, "first_epochs", partial(first_epochs, **FEW))
    for cores in (8, 16, 4):
        for module in (sides, first_epoch):
            monkeypatch.setattr(module, "available_cores", lambda cores=cores: cores)
        if cores > 4:
            found = first_epoch.measure_first_epoch(Scale(quick=True), 0.005)
            assert found.note == f"{asked[-1]} processes"
    assert asked == [4, 8]
    with pytest.raises(TooFewCores, match=r"^4 processes"):
        first_epoch.measure_first_epoch(Scale(quick=True), 0.005)
