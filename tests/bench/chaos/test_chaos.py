"""Short chaos runs with faults and kills. The product passes a run, and a broken proxy fails one."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from shadeproxy_bench.reliability.chaos.report import keep, markdown, summary
from shadeproxy_bench.reliability.chaos.run import Run, chaos
from shadeproxy_bench.reliability.chaos.scene import Plan
from shadeproxy_bench.reliability.chaos.verdict import judge
from shadeproxy_bench.reliability.kit.bodies import MIB

_BROKEN, _TRUSTING = (
    (sys.executable, str(Path(__file__).parent / f"{name}_proxy.py")) for name in ("broken", "trusting")
)
_SMALL = {"ram_bytes": 8 * MIB, "disk_bytes": 16 * MIB}


def failures(run):
    return [check for check in judge(run) if check.passed is False]


@pytest.mark.harness
def test_a_sound_proxy_survives(tmp_path):
    kills = dict.fromkeys(("proxy, kill -9", "origin, kill -9", "worker, kill -9"), 1.0)
    # A busy machine needs longer until all kinds of requests and kills have occurred.
    for seconds in (5.0, 30.0, 120.0):
        plan = Plan(seconds, seed=3, severity=5.0, kill_every_s=1.0, calm_s=0.0, kills=kills, **_SMALL)
        run = chaos(plan, tmp_path / "out", lambda _line: None)
        if run.kills and run.counts.outcomes.get("ok", 0) > 20 and any(run.injected.values()):
            break
    assert failures(run) == [], summary(run)
    assert run.kills
    assert any(run.injected.values())
    page = keep(run, tmp_path)
    keep(run, tmp_path)
    assert len(msgspec.json.decode((tmp_path / "chaos.json").read_bytes(), type=list[Run])) == 1
    assert page.read_text() == markdown([run])
    assert "**Passed**" in page.read_text()


@pytest.mark.harness
def test_a_wrong_byte_a_short_answer_and_a_hang_are_noticed(tmp_path):
    plan = Plan(
        8.0, seed=4, severity=0.0, limit_s=2.0, calm_s=0.0, kills={}, roles=("http",), proxy=_BROKEN, **_SMALL
    )
    for seconds in (8.0, 40.0):
        run = chaos(replace(plan, seconds=seconds), tmp_path, lambda _line: None)
        found = {check.name.partition(",")[0] for check in failures(run)}
        if {"wrong bytes", "hangs"} <= found:
            break
    assert {"wrong bytes", "hangs", "every object right once the faults were over"} <= found, summary(run)
    faults = "\n".join((*run.counts.faults, *run.swept.faults))
    assert "4095 bytes, not 4096" in faults or "Content-Length 4095, not 4096" in faults
    assert "wrong bytes for version" in faults


@pytest.mark.harness
def test_a_version_that_a_check_would_have_replaced_is_noticed(tmp_path):
    plan = Plan(8.0, seed=5, severity=0.5, calm_s=0.0, kills={}, roles=("http",), proxy=_TRUSTING, **_SMALL)
    for seconds in (10.0, 40.0, 80.0):
        run = chaos(replace(plan, seconds=seconds), tmp_path, lambda _line: None)
        if run.counts.outcomes.get("wrong"):
            break
    assert run.counts.faults, summary(run)
    assert all("is not of a version" in fault for fault in run.counts.faults), summary(run)
