"""The judgement of rows, the written results, and rows that must never pass silently."""

import io
import json
import math
import platform
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shadeproxy.cli.main import app
from shadeproxy.core.errors import ConfigError
from shadeproxy_bench import machine, run
from shadeproxy_bench.faults import BenchError, NotBuilt, ReferenceMissing, TooFewCores
from shadeproxy_bench.markdown import markdown
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.results import Doubt, Measured, Results, Target, merged, read_results
from shadeproxy_bench.rounds import alternate, repeat


def test_sides_take_turns_and_medians_count():
    order = []

    def side(name, values):
        found = iter(values)
        return lambda: order.append(name) or next(found)

    found = alternate(side("ours", [3, 1, 9]), side("reference", [5, 5, 6]), rounds=3)
    assert order == ["reference", "ours"] * 3
    assert (found.ours, found.ours_spread) == (3, (1, 9))
    assert (found.reference, found.reference_spread) == (5, (5, 6))
    assert repeat(lambda: 4.0, rounds=2) == Measured(4.0, None, (4.0, 4.0))


@pytest.mark.parametrize(
    ("target", "ours", "ratio", "met", "shortfall"),
    [
        (Target(1.0), 5.0, 1.0, True, None),
        (Target(0.8), 5.0, 0.6, False, 0.25),
        (Target(1.05, at_least=False), 5.0, 1.05, True, None),
        (Target(1.0, at_least=False), 5.0, 1.5, False, 0.5),
        (Target(150.0, at_least=False, of="ours"), 300.0, None, False, 1.0),
        (Target(150.0, at_least=False, of="ours"), 150.0, None, True, None),
        (Target(0.0, at_least=False, of="ours"), 3.0, None, False, None),
        (Target(1.0), 5.0, None, False, None),
        (Target(1.0), 5.0, float("nan"), False, None),
    ],
)
def test_a_target_judges_ratio_or_figure(target, ours, ratio, met, shortfall):
    assert target.met(ours=ours, ratio=ratio) is met
    if ratio is None or not math.isnan(ratio):
        assert target.shortfall(ours=ours, ratio=ratio) == pytest.approx(shortfall)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BenchError("wrong bytes"), "failed"),
        (ReferenceMissing("install it"), "reference missing"),
        (TooFewCores("4 are needed"), "too few cores"),
        (NotBuilt("later"), "not built"),
        (ValueError("a defect"), "failed"),
    ],
)
def test_what_was_not_measured_never_passes(plan, error, status):
    row = run.measure("suite", plan(error, target=Target(1.0, at_least=False)))
    assert (row.status, row.met, row.ours, row.ratio) == (status, False, None, None)
    assert str(error) in row.note


def test_the_ratio_goes_the_way_the_row_says(plan):
    found = Measured(10.0, 20.0)
    assert run.measure("s", plan(found)).ratio == 2.0
    assert run.measure("s", plan(found, ratio_is="ours / reference")).ratio == 0.5


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=140)


@pytest.fixture
def suites(monkeypatch, three_rows, plan):
    def grid(_scale):
        yield plan(Measured(1.0, 2.0), "cell", cell=("4 KB x 1", "boto3"))

    known = {"three": three_rows, "grid": grid}
    monkeypatch.setattr(run, "SUITES", known)
    return known


def test_the_files_hold_every_row(suites, tmp_path, console):
    run.run_bench([], quick=True, out=tmp_path / "new", console=console)
    written = json.loads((tmp_path / "new" / "results.json").read_text())
    assert {"machine", "date", "rows"} <= set(written)
    assert [row["name"] for row in written["rows"]] == ["fast", "slow", "wrong", "cell"]
    wanted = {"name", "ours", "reference", "unit", "ratio", "target", "met"}
    assert all(wanted <= set(row) for row in written["rows"])
    assert [row["met"] for row in written["rows"]] == [True, False, False, True]
    text = (tmp_path / "new" / "results.md").read_text()
    assert machine.describe() in text
    assert "2 of 4 targets met, 1 without a number" in text
    assert "| fast | 10 (9..11) | 20 | us | 2 | >= 1 | met |" in text
    assert "- slow: 0.5 where >= 1 is wanted, 50% off (why it is slow)" in text
    assert "- wrong: failed (wrong bytes)" in text
    assert "| 4 KB x 1 | 2 (1 / 2) |" in text
    said = console.file.getvalue()
    assert "failed  wrong: wrong bytes" in said
    assert "9..11" in said
    assert "boto3" in said


def test_a_run_of_some_suites_keeps_the_rows_of_the_others(suites, tmp_path, console):
    run.run_bench([], quick=True, out=tmp_path, console=console)
    run.run_bench(["three"], quick=True, out=tmp_path, console=console)
    assert [row.name for row in read_results(tmp_path / "results.json").rows] == [
        "fast",
        "slow",
        "wrong",
        "cell",
    ]


def test_rows_of_another_machine_do_not_stay(suites):
    rows = tuple(run.measure_all(suites, Scale(), lambda _row: None))
    now = Results("this", "now", rows[3:])
    assert merged(Results("that", "then", rows), now) == now
    assert len(merged(Results("this", "then", rows), now).rows) == 4
    assert merged(Results("this", "then", rows[3:], (Doubt("busy", ("grid",)),)), now) == now
    assert merged(None, now) == now


def test_what_made_rows_doubtful_goes_with_them(suites):
    rows = tuple(run.measure_all(suites, Scale(), lambda _row: None))
    names = tuple(dict.fromkeys(row.suite for row in rows))
    busy, again = Doubt("busy", names), Doubt("less busy", (rows[-1].suite,))
    now = Results("this", "now", rows[3:], (again,))
    both = merged(Results("this", "then", rows, (busy,)), now)
    assert both.doubts == (Doubt("busy", names[:-1]), again)
    assert f"Warning ({rows[-1].suite}): less busy." in markdown(both)


def test_a_file_of_another_form_is_no_earlier_run(tmp_path):
    (tmp_path / "results.json").write_text('{"rows": 3}')
    assert read_results(tmp_path / "results.json") is None


def test_an_unknown_suite_is_named():
    with pytest.raises(ConfigError, match=r"there is no suite 'fast'; there are hits, disk, sdk, misses, "):
        run.select(["hits", "fast"])


def test_the_command_fails_when_a_row_did(suites, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", "--quick"])
    assert result.exit_code == 1
    assert "error: 1 rows failed: wrong" in result.output
    assert list(tmp_path.iterdir()) == []
    assert CliRunner().invoke(app, ["bench", "--suite", "grid", "--out", "here"]).exit_code == 0
    assert (tmp_path / "here" / "results.md").exists()
    assert CliRunner().invoke(app, ["bench", "--suite", "none"]).exit_code == 2


def test_rows_that_are_not_asked_for_are_not_measured(suites, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [row.name for row in run.measure_all(suites, Scale(), lambda _row: None, only="ast")] == ["fast"]
    result = CliRunner().invoke(app, ["bench", "--only", "fast"])
    assert result.exit_code == 0
    assert "slow" not in result.output
    assert list(tmp_path.iterdir()) == []
    result = CliRunner().invoke(app, ["bench", "--only", "nothing"])
    assert result.exit_code == 2
    assert "--only 'nothing': no row of these suites has it in its name" in result.output


def test_a_busy_machine_and_an_interpreted_lane_are_said(monkeypatch):
    monkeypatch.setattr(machine, "COMPILED", True)
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert "the machine was busy when the run began: load average 9.00" in machine.warnings()[0]
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    assert machine.warnings() == ()
    monkeypatch.setattr(machine, "COMPILED", False)
    assert machine.warnings()[0].startswith("the fast lane was interpreted")


@pytest.mark.parametrize(
    ("optimised", "said"),
    [(True, " (optimised build)"), (False, " (built without --enable-optimizations)"), (None, "")],
)
def test_the_machine_line_says_how_python_was_built(monkeypatch, optimised, said):
    monkeypatch.setattr("shadeproxy.core.interpreter.is_optimised", lambda: optimised)
    assert f", Python {platform.python_version()}{said}, shadeproxy " in machine.describe()


def test_the_cpu_of_descendants_counts():
    # The parent sleeps. Its child, whose CPU time counts, works until it is killed.
    burn = "import time; end = time.time() + 30\nwhile time.time() < end: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], start_new_session=True) as process:
        try:
            while machine.cpu_s(process.pid) < 0.3:
                assert process.poll() is None
        finally:
            machine.os.killpg(process.pid, 9)


def test_another_build_of_the_same_kernel_is_the_same_machine(monkeypatch):
    monkeypatch.setattr(platform, "release", lambda: "6.1.9-25-amd64")
    assert ", Linux 6.1.9, Python " in machine.describe()
