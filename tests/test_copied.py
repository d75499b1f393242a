"""A copied process does what a new interpreter would do, with program, streams, environment,
status and end.
"""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support import copied_programs
from tests.support.copied import Copy, original, run_command
from tests.support.served import COPIED_SERVE, wait_for
from tests.support.workers import wait_for_workers

LATE_THREAD = """
import sys, threading, time
threading.Thread(target=lambda: (time.sleep(0.1), sys.stderr.write("thread"))).start()
"""
GARBAGE = """
import sys
class Circle:
    def __del__(self):
        sys.stderr.write("collected")
one = Circle()
one.itself = one
del one
"""
SLEEP = "import time; print(flush=True); time.sleep(300)"


@pytest.fixture
def start(tmp_path):
    """Yield a function that starts copies, which write their errors to ``tmp_path / "log"``."""
    started: list[Copy] = []

    def start(*arguments: str, environment: dict[str, str] | None = None, **how: int) -> Copy:
        with (tmp_path / "log").open("ab") as log:
            copy = original().start(
                list(arguments), stderr=log.fileno(), environment=os.environ | (environment or {}), **how
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
     ("import sys; sys.exit(None)", 0, ""), ("import sys; sys.exit(-1)", 255, ""),
     ("import atexit; atexit.register(lambda: open(2, 'w', closefd=False).write('end'))", 0, "end"),
     ("import sys; sys.stderr.write('no end')", 0, "no end"), ("import sys; sys.stdout = None", 0, ""),
     (LATE_THREAD, 0, "thread"), (GARBAGE, 0, "collected")],
)  # fmt: skip
def test_it_ends_as_an_interpreter_does(start, tmp_path, text, status, log):
    assert start("-c", text).wait(30) == status
    assert (tmp_path / "log").read_text() == log


def test_what_it_cannot_write_at_its_end_is_said(start, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    copy = start("-c", "import sys; sys.stdout = open(1, 'w', closefd=False); print('lost')", stdout=writer)
    os.close(writer)
    assert copy.wait(30) == 120
    assert "BrokenPipeError" in (tmp_path / "log").read_text()


def test_an_error_is_shown_with_its_stack(start, tmp_path):
    assert start("-c", "1 / 0").wait(30) == 1
    assert (tmp_path / "log").read_text().endswith("ZeroDivisionError: division by zero\n")


def test_the_command_line_runs_as_in_a_new_interpreter(start, capfd):
    _, *serve = COPIED_SERVE
    assert start(*serve, "--version").wait(30) == 0
    assert capfd.readouterr().out.startswith("shadeproxy ")
    assert start(*serve, "nothing").wait(30) == 2


def test_a_script_has_its_arguments_and_finds_what_is_beside_it(start, tmp_path, capfd):
    (tmp_path / "beside.py").write_text("VALUE = 7")
    (tmp_path / "script.py").write_text("import sys, beside; print(__name__, sys.argv, beside.VALUE)")
    script = str(tmp_path / "script.py")
    assert start(script, "a b").wait(30) == 0
    assert capfd.readouterr().out == f"__main__ {[script, 'a b']} 7\n"


def test_it_may_have_a_session_of_its_own(start):
    assert os.getsid((other := start("-c", SLEEP)).pid) == os.getsid(0) != other.pid
    copy = start("-c", SLEEP, own_session=True)
    assert os.getsid(copy.pid) == copy.pid
    os.killpg(copy.pid, signal.SIGTERM)
    assert copy.wait(30) == -signal.SIGTERM


def test_signals_reach_it_and_end_it(start):
    copy = start("-c", SLEEP)
    assert copy.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        copy.wait(0.01)
    copy.terminate()
    assert copy.wait(30) == copy.poll() == -signal.SIGTERM
    copy.send_signal(signal.SIGTERM)  # As with Popen, nothing happens: the process has ended.


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


def test_a_program_of_the_products_own_code_has_pipes_and_is_a_copy(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        program = copied_programs.start(
            [sys.executable, "-m", "json.tool", "--compact"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, env=os.environ, start_new_session=True,
        )  # fmt: skip
    assert isinstance(program, Copy)
    with program.stdin, program.stdout:
        program.stdin.write(b'{"a":  1}')
        program.stdin.close()
        assert program.stdout.read() == b'{"a":1}\n'
        assert program.wait(30) == 0


@pytest.mark.parametrize(
    ("command", "variables"),
    [([sys.executable, "-c", "pass"], {}), (["true"], {}),
     ([sys.executable, "-m", "this"], {"PYTHONOPTIMIZE": "1"})],
)  # fmt: skip
def test_other_programs_are_started_as_they_are(tmp_path, command, variables):
    with (tmp_path / "log").open("wb") as log:
        program = copied_programs.start(
            command, stdout=log, stderr=log, env=os.environ | variables, start_new_session=True
        )
    assert isinstance(program, subprocess.Popen)
    assert program.wait(30) == 0


def test_workers_are_copies_with_a_command_line_and_request_ids_of_their_own(serve, tmp_path):
    (tmp_path / "buckets" / "data").mkdir(parents=True)
    (tmp_path / "buckets" / "data" / "k").write_bytes(b"body")
    served = serve(origin__kind="file", origin__path=str(tmp_path / "buckets"), s3__workers="2")
    (worker,) = wait_for_workers(served)
    line = b"\0".join([sys.executable.encode(), b"-c", b"shadeproxy.app.worker"])
    wait_for(lambda: Path(f"/proc/{worker}/cmdline").read_bytes().rstrip(b"\0") == line)

    def seen() -> bool:
        with urllib.request.urlopen(f"{served.s3}/data/k", timeout=30) as answer:
            ids.add(answer.headers["x-amz-request-id"][:8])
        return len(ids) == 2

    ids = set[str]()
    wait_for(seen)
    assert served.stop() == 0
    wait_for(lambda: not Path(f"/proc/{worker}").exists())


def test_a_worker_that_is_killed_is_replaced_by_a_copy(serve, tmp_path):
    (tmp_path / "buckets" / "data").mkdir(parents=True)
    served = serve(origin__kind="file", origin__path=str(tmp_path / "buckets"), s3__workers="2")
    (worker,) = wait_for_workers(served)
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{worker}").exists())
    assert wait_for_workers(served) != [worker]


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
