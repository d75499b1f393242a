"""Misses beside nginx: only misses count, every byte is compared, and the row reports how many objects were
stored.
"""

import shutil

import pytest

from shadeproxy_bench import run
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import PATH, Answered, ReaderLoad, WrkLoad
from shadeproxy_bench.nginx import STORING, storing_nginx
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.registry import SUITES
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.suites.storing import (
    LATENCY_S,
    NewObjects,
    compare_misses,
    fill,
    load_misses,
    most_misses,
)

has_nginx = pytest.mark.skipif(shutil.which("nginx", path=PATH) is None, reason="nginx is not installed")
MIB = 1024**2


def compared(ours, reference, *, all_stored=False, size_bytes=4000):
    new = NewObjects(size_bytes)
    return compare_misses(
        ours, reference, new, load=ReaderLoad(), rounds=1, seconds=0.2, all_stored=all_stored
    )


@pytest.fixture
def source(make_origin):
    return make_origin(latency_s=LATENCY_S)


def test_nothing_is_asked_for_twice():
    new = NewObjects(4000)
    asked = new.take(3) + new.take(2)
    assert asked == [Piece(4000, number) for number in range(5)]
    # There are 32 connections, and each gets at most 200 answers a second.
    assert most_misses(1.0) > 32 * 200


def test_more_answers_than_objects_fail_the_row(source):
    class TooMany(ReaderLoad):
        def run(self, _server, requests, **_options):
            return Answered(len(requests) + 1, (len(requests) // 2 + 1, len(requests) // 2))

    with pytest.raises(BenchError, match=r"^origin: only \d+ of \d+ reads were misses$"):
        load_misses(source, TooMany(), NewObjects(4000), seconds=0.1)


def test_each_thread_reads_its_own_objects(source):
    class TwoThreads(ReaderLoad):
        def run(self, _server, _requests, **_options):
            return Answered(5, (3, 2))

    asked = load_misses(source, TwoThreads(), NewObjects(4000), seconds=0.1)
    assert [piece.number for piece in asked] == [0, 2, 4, 1, 3]


@pytest.mark.skipif(shutil.which("wrk", path=PATH) is None, reason="wrk is not installed")
def test_threads_of_wrk_share_objects_of_which_each_is_read_once(source, stack, tmp_path):
    ours = stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * MIB, origin_connections=64))
    load = WrkLoad(shutil.which("wrk", path=PATH), threads=3)
    asked = load_misses(ours, load, NewObjects(4000), seconds=1, connections=6)
    assert {piece.number % 3 for piece in asked} == {0, 1, 2}
    first = max(piece.number for piece in asked) + 3 * 6
    assert set(read_pieces(ours, asked, connections=2).sources) == {"ram"}
    assert set(read_pieces(ours, [Piece(4000, first)], connections=1).sources) == {"origin"}


@has_nginx
def test_both_store_what_they_fetch(source, stack, tmp_path):
    reference = stack.enter_context(storing_nginx(tmp_path, source))
    ours = stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * MIB))
    found = compared(ours, reference, all_stored=True)
    assert found.ours >= 0
    assert found.note.endswith("asked for: proxy 100%..100%, proxy_cache 100%..100%")


@has_nginx
def test_a_full_cache_of_nginx_evicts(source, stack, tmp_path):
    reference = stack.enter_context(storing_nginx(tmp_path, source, cache_bytes=MIB))
    assert reference.name == STORING
    new = NewObjects(4000)
    fill([reference], new, 2 * MIB)
    last = new.take(1)
    assert read_pieces(reference, last, connections=1).sources == {"miss": 1}
    assert read_pieces(reference, last, connections=1).sources == {"hit": 1}


def test_what_is_not_stored_fails_a_row_of_a_growing_tier(source, make_origin):
    """In a row about a growing tier, objects that are not stored make the row fail. Here an origin replaces
    the proxy, and stores nothing.
    """
    other = make_origin("other", latency_s=LATENCY_S)
    with pytest.raises(BenchError, match=r"^origin stored only 0% of the objects$"):
        compared(other, source, all_stored=True)
    assert compared(other, source).note.endswith("asked for: other 0%..0%, origin 0%..0%")


@pytest.mark.parametrize("wrong_side", ["ours", "reference"])
def test_wrong_bytes_on_either_side_fail_the_row(make_origin, wrong_side):
    right, wrong = (
        make_origin("right", latency_s=LATENCY_S),
        make_origin("wrong", latency_s=LATENCY_S, seed=1),
    )
    sides = (wrong, right) if wrong_side == "ours" else (right, wrong)
    with pytest.raises(BenchError, match="wrong bytes"):
        compared(*sides)


def test_without_nginx_the_rows_say_so(monkeypatch, tmp_path):
    monkeypatch.setattr("shadeproxy_bench.nginx.PATH", str(tmp_path))
    for planned in SUITES["storing"](Scale(quick=True)):
        row = run.measure("storing", planned)
        assert (row.status, row.ours) == ("reference missing", None)
        assert row.note == "nginx is not installed; on Debian and Ubuntu: apt-get install nginx-light"
