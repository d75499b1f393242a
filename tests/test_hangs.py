"""Hanging tests: a test that hangs is ended and its stack is shown, also in processes of xdist.

A fixture that hangs after a failure is ended, and so is a server that runs beside a failed test.
"""

import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.e2e.loopback import served

ROOT = Path(__file__).parent.parent

AFTER_A_FAILURE = """
import threading

import pytest


@pytest.fixture
def hanging():
    yield
    threading.Event().wait()


def test_fails(hanging):
    raise AssertionError
"""

# PyDLL does not release the interpreter's lock, so no Python code of another thread can run meanwhile.
LOCKED = """
import ctypes


def test_hangs():
    ctypes.PyDLL(None).sleep(1000)
"""


def run(path, text):
    """Run tests as ``make test`` does. The time after which a stack is shown is only a second."""
    path.write_text(text)
    options = [
        "-n",
        "1",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        *("--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "2"),
        *("-o", "faulthandler_exit_on_timeout=true"),
    ]
    command = [sys.executable, "-m", "pytest", "-q", *options, "-o", "faulthandler_timeout=1", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)


def test_a_fixture_that_hangs_after_a_failure_is_ended_and_shown(tmp_path):
    done = run(tmp_path / "test_it.py", AFTER_A_FAILURE)
    assert done.returncode == 1
    assert "crashed while running" in done.stdout
    assert "in hanging\n" in done.stderr


def test_a_test_that_keeps_the_lock_is_ended_and_shown(tmp_path):
    """xdist runs such a test again, in a new process, which hangs too. The run ends all the same."""
    done = run(tmp_path / "test_it.py", LOCKED)
    assert done.returncode == 1, done.stdout
    assert "test_hangs - worker" in done.stdout
    assert "in test_hangs\n" in done.stderr


def test_a_stack_is_shown_before_the_time_limit_ends_the_process(pytestconfig):
    assert 0 < float(pytestconfig.getini("faulthandler_timeout")) < float(pytestconfig.getini("timeout"))


def test_a_server_ends_with_the_test_that_fails_beside_it():
    """A server ends if the test in its block fails. Its thread would else use CPU and keep the
    process alive.
    """
    before = threading.enumerate()
    with pytest.raises(ValueError, match="no number"), served(http.server.BaseHTTPRequestHandler):
        int("no number")
    assert threading.enumerate() == before
