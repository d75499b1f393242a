"""A process that begins with the libraries loaded differs in nothing else from one started as usual."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support import preloaded

TELL = """
import json, os, resource, signal, sys, threading
told = {
    "modules": sorted(name for name in sys.modules if name.startswith(("shadeproxy", "tests"))),
    "argv": sys.argv,
    "path": sys.path,
    "main": [__name__, "orders" in globals()],
    "environment": dict(os.environ),
    "directory": os.getcwd(),
    "group": os.getpgrp(),
    "descriptors": [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")],
    "streams": [os.readlink(f"/proc/self/fd/{number}") for number in range(3)],
    "mask": os.umask(0),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    "threads": threading.active_count(),
}
print(json.dumps(told), file=sys.stderr)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return what starts the program both ways: a function of its source and its arguments."""
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0o027)

    def start(way, *arguments):
        environment = os.environ | {"OF_THIS_TEST": "1"}
        with (tmp_path / "log").open("wb") as log:
            if way == "preloaded":
                process = preloaded.start(arguments, environment=environment, stderr=log.fileno())
            else:
                process = subprocess.Popen([sys.executable, *arguments], env=environment, stderr=log)
        status = process.wait(30)
        return status, (tmp_path / "log").read_text()

    yield start
    os.umask(mask)


@pytest.mark.parametrize("form", ["-c", "-m"])
def test_a_program_sees_the_same(program, tmp_path, form):
    (tmp_path / "telling.py").write_text(TELL)
    arguments = (form, TELL if form == "-c" else "telling", "first", "--second=2")
    status, told = program("preloaded", *arguments)
    assert (status, json.loads(told)) == (0, json.loads(program("as usual", *arguments)[1]))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import os; os._exit(3)", 3),
        ("import sys; sys.exit('it fails')", 1),
        ("raise ValueError('it fails')", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_its_status_and_its_errors_are_the_same(program, code, status):
    found, text = program("preloaded", "-c", code)
    usual, usual_text = program("as usual", "-c", code)
    assert found == usual == status
    assert text.splitlines()[-1:] == usual_text.splitlines()[-1:]


def test_signals_end_it(program, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        process = preloaded.start(
            ["-c", "import time; time.sleep(600)"], environment=os.environ, stderr=log.fileno()
        )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    assert process.poll() is None
    process.terminate()
    assert process.wait(30) == process.poll() == -signal.SIGTERM
    process.kill()  # of a process that has ended: nothing


def test_variables_that_are_read_at_the_start_need_another_start(monkeypatch):
    assert preloaded.can_start(os.environ | {"CLUSTER_SECRET": "s"})
    assert not preloaded.can_start(os.environ | {"PYTHONMALLOC": "debug"})
    monkeypatch.setenv("LD_PRELOAD", "library.so")
    assert not preloaded.can_start({name: text for name, text in os.environ.items() if name != "LD_PRELOAD"})
