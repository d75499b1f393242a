"""A short soak with small tiers. The product passes. A wrong byte or an open descriptor fails the soak."""

import sys
from pathlib import Path

import pytest

from shadeproxy.demo import servers
from shadeproxy_bench.reliability.kit.bodies import MIB
from shadeproxy_bench.reliability.soak.report import markdown, minute_line, plot
from shadeproxy_bench.reliability.soak.run import Plan, soak
from shadeproxy_bench.reliability.soak.verdict import judge

_HERE = Path(__file__).parent
_SMALL = {
    "ram_bytes": 24 * MIB,
    "disk_bytes": 48 * MIB,
    "warm_s": 2.0,
    "settle_s": 2.0,
    "look_s": 0.5,
    "line_s": 1.0,
}
_KINDS = {
    "get",
    "range",
    "columns",
    "head",
    "if-match",
    "last bytes",
    "pipelined",
    "304",
    "412",
    "416",
    "slow",
    "hang up",
    "put",
    "locate",
    "batch",
    "scores",
}


_SHORT = _SMALL | {"warm_s": 0.5, "settle_s": 0.5}
"""Settings of the runs that must fail. These runs may be shorter, because their faults show before the
clients have sent every kind of request.
"""


def failures(run):
    return {check.name for check in judge(run) if check.passed is False}


@pytest.mark.slow
def test_a_sound_proxy_passes(tmp_path):
    for seconds in (5.0, 20.0, 60.0):  # A busy machine needs longer until every kind of request has occurred.
        plan, lines = Plan(seconds, seed=3, rest_s=90.0, **_SMALL), []
        run = soak(plan, tmp_path, lambda sample, counts, to=lines: to.append(minute_line(sample, counts)))
        if set(run.counts.kinds) >= _KINDS and "pages were evicted" not in failures(run):
            break
    assert failures(run) == set(), (run.counts, run.complaints)
    assert len(lines) >= 3
    assert set(run.counts.kinds) >= _KINDS
    assert {"ram", "disk", "origin"} <= set(run.counts.sources)
    assert len((tmp_path / "samples.jsonl").read_bytes().splitlines()) == len(run.samples)
    plot(run.samples, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    assert "**Passed**" in markdown(plan, run, judge(run), "soak.png")


@pytest.mark.slow
def test_one_wrong_byte_is_noticed(tmp_path):
    origin = (sys.executable, str(_HERE / "flipping_origin.py"))
    run = soak(Plan(3.0, seed=4, rest_s=0.5, origin=origin, **_SHORT), tmp_path, lambda *_: None)
    assert "wrong bytes" in failures(run)
    assert any("wrong bytes for version" in fault for fault in run.counts.faults)


@pytest.mark.harness
@pytest.mark.parametrize("workers", [1, 2])
def test_stored_parts_that_are_confused_are_noticed(tmp_path, monkeypatch, workers):
    command = (sys.executable, str(_HERE / "confusing_proxy.py"), "serve", "--config")
    monkeypatch.setattr(servers, "_SERVE", command)
    for seconds in (3.0, 20.0, 60.0):
        plan = Plan(seconds, seed=6, rest_s=0.5, workers=workers, **_SHORT)
        run = soak(plan, tmp_path, lambda *_: None)
        if "wrong bytes" in failures(run):
            break
    assert any("wrong: columns" in fault for fault in run.counts.faults), run.counts


@pytest.mark.slow
def test_a_descriptor_that_stays_open_is_noticed(tmp_path, monkeypatch):
    command = (sys.executable, str(_HERE / "leaking_proxy.py"), "serve", "--config")
    monkeypatch.setattr(servers, "_SERVE", command)
    run = soak(Plan(3.0, seed=5, rest_s=2.0, **_SHORT), tmp_path, lambda *_: None)
    assert run.rested.others > run.idle.others
    assert "descriptors, idle before and after" in failures(run)
