"""A copied process does what a new interpreter would: its program, streams, environment, status and end."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.copied import Copy, original, run_command
from tests.support.served import COPIED_SERVE

SLEEP = "import time; print(flush=True); time.sleep(300)"


@pytest.fixture
def start(tmp_path):
    """Start a copy that writes its errors to ``tmp_path / "log"``."""
    started: list[Copy] = []

    def start(*arguments: str, environment: dict[str, str] | None = None) -> Copy:
        with (tmp_path / "log").open("ab") as log:
            copy = original().start(
                list(arguments), stderr=log.fileno(), environment=os.environ | (environment or {})
            )
        started.append(copy)
        return copy

    yield start
    for copy in started:
        copy.kill()
        copy.wait(30)


def test_it_has_the_surroundings_of_the_test(start, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    text = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['ONE'], 'HOME' in os.environ)"
    mask = os.umask(0o027)
    try:
        made = start("-c", f"open('file', 'w').close(); {text}", "a b", environment={"ONE": "1"})
        assert made.wait(30) == 0
    finally:
        os.umask(mask)
    assert capfd.readouterr().out == f"['a b'] {tmp_path} 1 False\n"
    assert Path("file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("text", "status", "log"),
    [("pass", 0, ""), ("raise SystemExit(3)", 3, ""), ("import sys; sys.exit('no')", 1, "no\n"),
     ("import atexit; atexit.register(lambda: open(2, 'w', closefd=False).write('end'))", 0, "end")],
)  # fmt: skip
def test_it_ends_as_an_interpreter_does(start, tmp_path, text, status, log):
    assert start("-c", text).wait(30) == status
    assert (tmp_path / "log").read_text() == log


def test_an_error_is_shown_with_its_stack(start, tmp_path):
    assert start("-c", "1 / 0").wait(30) == 1
    assert (tmp_path / "log").read_text().endswith("ZeroDivisionError: division by zero\n")


def test_the_command_line_runs_as_in_a_new_interpreter(start, capfd):
    _, *serve = COPIED_SERVE
    assert start(*serve, "--version").wait(30) == 0
    assert capfd.readouterr().out.startswith("shadeproxy ")
    assert start(*serve, "nothing").wait(30) == 2


def test_signals_reach_it_and_end_it(start):
    copy = start("-c", SLEEP)
    assert copy.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        copy.wait(0.01)
    copy.terminate()
    assert copy.wait(30) == copy.poll() == -signal.SIGTERM
    copy.send_signal(signal.SIGTERM)  # of an ended process, as with Popen, that is nothing


def test_an_interrupt_is_one_though_the_original_ignores_it(start, tmp_path):
    text = "import signal; signal.raise_signal(signal.SIGINT)"
    assert start("-c", text).wait(30) == -signal.SIGINT
    assert "KeyboardInterrupt" in (tmp_path / "log").read_text()


def test_copies_share_no_chance(start, capfd):
    for _ in range(2):
        assert start("-c", "import random; print(random.random())").wait(30) == 0
    first, second = capfd.readouterr().out.split()
    assert first != second


def test_a_copy_has_no_descriptor_of_the_original(start, capfd):
    start("-c", "import os; print(len(os.listdir('/proc/self/fd')))").wait(30)
    assert capfd.readouterr().out == "4\n", "its streams, and the directory that is listed"


def test_what_only_a_new_interpreter_would_use_is_refused(start):
    with pytest.raises(AssertionError, match="only a new interpreter"):
        start("-c", "pass", environment={"PYTHONOPTIMIZE": "1"})


def test_a_command_is_run_to_its_end_and_its_output_kept(tmp_path):
    done = run_command("config", "--set", "policy.name=lru", environment={"SHADEPROXY__ORIGIN__REGION": "r"})
    assert (done.returncode, done.stderr) == (0, "")
    assert 'name = "lru"' in done.stdout
    assert 'region = "r"' in done.stdout
    done = run_command("config", "--set", "policy.name=x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --set policy.name: ")


def test_a_command_that_takes_too_long_is_ended(tmp_path):
    places = [f"{name}={tmp_path / name}" for name in ("cache.ram.path", "state.path", "origin.path")]
    settings = ["origin.kind=file", "s3.listen=127.0.0.1:0", "cache.disk.capacity=0", *places]
    with pytest.raises(subprocess.TimeoutExpired):
        run_command("serve", *(word for one in settings for word in ("--set", one)), timeout_s=0.01)
