"""Short attack runs on real proxies. A proxy or an origin with a planted fault fails its run."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from shadeproxy_bench.reliability.attack.report import judge
from shadeproxy_bench.reliability.attack.run import KINDS, Found
from shadeproxy_bench.reliability.attack.side import Violation

_PLANTED = str(Path(__file__).parent / "planted.py")


def run(tmp_path, fault, attack, only, *, proxies="1 process, plain", minutes=0.3):
    """Run the command in a process of its own, which may block. Return the finished process."""
    arguments = [f"--minutes={minutes}", f"--attacks={attack}", f"--proxies={proxies}", f"--only={only}"]
    command = [sys.executable, _PLANTED, fault, *arguments, f"--out={tmp_path}", f"--write={tmp_path}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def found_in(tmp_path):
    return msgspec.json.decode((tmp_path / "seed-1.json").read_bytes(), type=Found)


@pytest.mark.harness
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_right_requests_are_carried_out_and_answered(tmp_path, kind):
    made = run(tmp_path, "none", "smuggling", "upload of nothing", proxies=kind.name)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "**Passed**" in (tmp_path / "attack.md").read_text()
    side = found_in(tmp_path).sides[0]
    assert side.answers["200"] > 20
    assert side.counts["isolation"] > 20
    assert all(before == after > 0 for before, after in side.capacity.values())


@pytest.mark.harness
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "attack", "only", "text"),
    [
        ("smuggles", "smuggling", "upload", "a smuggled request was carried out"),
        ("loses slots", "smuggling", "upload of nothing", "requests were at the origin at once before"),
        ("leaks descriptors", "smuggling", "upload of nothing", "descriptors that were not there before"),
        ("a short body counts as whole", "broken origin", "", "with 49995 bytes, not the 50000 right ones"),
        ("the origin has other bytes", "broken origin", "early hints", "not the 50000 right ones"),
        ("the origin has other bytes", "broken origin", "stored part", "not the 39900 right ones"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, fault, attack, only, text):
    made = run(tmp_path, fault, attack, only)
    assert made.returncode == 1, made.stdout + made.stderr
    assert text in "\n".join(one.what for one in found_in(tmp_path).judged)
    assert text in (tmp_path / "seed-1.txt").read_text()
    assert "VIOLATION  " in made.stdout
    assert "**Failed, " in (tmp_path / "attack.md").read_text()


def test_an_unknown_attack_is_refused(tmp_path):
    made = run(tmp_path, "none", "nonsense", "")
    assert made.returncode == 2
    assert "no such attack: nonsense" in made.stderr


def violation(what="no end after 30 s", received="b''", late_s=0.0):
    return Violation("1 process, plain", "stuck clients", "half a head", what, [], received, "", late_s)


@pytest.mark.parametrize(
    ("one", "is_judged"),
    [
        (violation(), True),
        (violation(late_s=5.0), False),
        (violation("answered 500", "b'... timed out'", late_s=5.0), False),
        (violation("wrong bytes", "b'HTTP/1.1 200 OK'", late_s=5.0), True),
        (violation("a smuggled request was carried out", late_s=5.0), True),
    ],
)
def test_only_what_a_late_process_can_cause_is_excused(one, is_judged):
    found = Found(1, 1.0, [], [one])
    assert (found.judged == [one]) == is_judged
    assert [check.name for check in judge(found) if not check.passed] == ["stuck clients"] * is_judged
