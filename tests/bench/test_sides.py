"""The load on servers of several processes. With few cores it is as on small machines, and it grows with the
number of processes.
"""

import pytest

from shadeproxy_bench import sides
from shadeproxy_bench.faults import TooFewCores
from shadeproxy_bench.sides import Sides, require_cores, sides_of


def on(monkeypatch, cores):
    monkeypatch.setattr(sides, "available_cores", lambda: cores)


@pytest.mark.parametrize("processes", [2, 3])
def test_where_cores_are_shared_the_load_is_one_thread_and_one_origin(monkeypatch, processes):
    on(monkeypatch, 2)
    assert sides_of("miss", processes) == sides_of("hit", processes) == Sides(32, 1, 1, apart=False)
    assert sides_of("PUT", processes) == Sides(4, 1, 1, apart=False)
    assert sides_of("miss", processes).told == "32 connections"


@pytest.mark.parametrize(
    ("kind", "processes", "cores", "expected"),
    [
        ("miss", 8, 16, (512, 4, 4)),
        ("hit", 8, 16, (256, 8, 1)),
        ("PUT", 8, 16, (128, 4, 4)),
        ("miss", 2, 16, (128, 2, 2)),
        ("miss", 2, 4, (128, 1, 1)),
        ("hit", 2, 4, (64, 2, 1)),
        ("miss", 4, 10, (255, 3, 3)),
    ],
)
def test_the_load_grows_with_the_processes(monkeypatch, kind, processes, cores, expected):
    on(monkeypatch, cores)
    found = sides_of(kind, processes)
    assert found == (*expected, True)
    assert found.connections % found.threads == 0
    if kind == "miss":
        assert processes + found.threads + found.origins <= cores
    assert f"client of {found.threads} threads, origin of {found.origins} processes" in found.told


def test_a_machine_with_too_few_cores_says_so(monkeypatch):
    on(monkeypatch, 4)
    require_cores(2)
    with pytest.raises(
        TooFewCores, match=r"^3 processes, a client and an origin need 6 cores, and there are 4;"
    ):
        require_cores(3)
