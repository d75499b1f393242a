"""A short memory run. The product passes. A proxy in which uploads or downloads pile up fails."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shadeproxy.demo import servers
from shadeproxy_bench.reliability.memory.report import markdown, plot, progress_line, verdict_lines
from shadeproxy_bench.reliability.memory.run import Plan, judge, memory_run
from shadeproxy_bench.reliability.memory.stream import MIB

# These tests measure memory. A forked copy of this process would share memory with its original.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.new_interpreter]

_HERE = Path(__file__).parent
_SMALL = Plan(
    clients=16,
    size_bytes=24 * MIB,
    ram_bytes=16 * MIB,
    inflight_bytes=64 * MIB,
    rate=0.0,
    look_s=0.1,
    line_s=0.1,
)


def failed(plan, run):
    return {check.name for check in judge(plan, run) if not check.passed}


def test_streams_stay_within_the_bound(tmp_path):
    lines = []
    run = memory_run(_SMALL, lambda look: lines.append(progress_line(look)))
    checks = judge(_SMALL, run)
    assert [check for check in checks if not check.passed] == [], verdict_lines(run, checks)
    assert run.counts.kinds.keys() == {"put", "create", "part", "complete", "get", "range"}
    assert lines
    plot(_SMALL, run, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    assert "**Passed**" in markdown(_SMALL, run, checks, "memory.png")


def test_bodies_that_are_kept_are_noticed(monkeypatch):
    command = (sys.executable, str(_HERE / "hoarding_proxy.py"), "serve", "--config")
    monkeypatch.setattr(servers, "_SERVE", command)
    run = memory_run(_SMALL, lambda _: None)
    assert failed(_SMALL, run) == {"resident at most (VmHWM)", "with the whole RAM tier"}


def test_a_wrong_bit_of_an_upload_is_noticed(monkeypatch):
    command = (sys.executable, str(_HERE / "flipping_proxy.py"), "serve", "--config")
    monkeypatch.setattr(servers, "_SERVE", command)
    plan = replace(_SMALL, clients=4)
    run = memory_run(plan, lambda _: None)
    assert "BadDigest" in " ".join(run.counts.faults)
    assert {"every byte up and down", "errors"} <= failed(plan, run)


def test_a_wrong_bit_of_a_download_is_noticed():
    plan = replace(_SMALL, clients=4, origin=(sys.executable, str(_HERE / "flipping_origin.py")))
    run = memory_run(plan, lambda _: None)
    assert {"every byte up and down", "wrong bytes"} <= failed(plan, run)
