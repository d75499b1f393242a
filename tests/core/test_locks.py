"""The lock of a directory. The error names the process that holds the lock, even if another process
took it.
"""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from shadeproxy.core import locks

_TAKE = """
import os, subprocess, sys
from pathlib import Path
from shadeproxy.core.locks import lock
descriptor = lock(Path(sys.argv[1]))
worker = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor], stdout=subprocess.DEVNULL)
print(worker.pid, flush=True)
os.read(0, 1)
"""


@pytest.fixture
def orphan(tmp_path):
    """Return the pids of a worker and of its parent. The parent took the lock and is dead, and the worker has
    inherited the lock.
    """
    taker = subprocess.Popen(
        [sys.executable, "-c", _TAKE, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = int(taker.stdout.readline())
    taker.kill()
    taker.wait(10)
    yield worker, taker.pid
    os.kill(worker, signal.SIGKILL)
    taker.stdin.close()
    taker.stdout.close()


def refusal(tmp_path) -> str:
    with pytest.raises(locks.Held) as held:
        locks.lock(tmp_path / "lock")
    return str(held.value)


def test_an_orphan_that_holds_the_lock_is_named_by_its_own_pid(tmp_path, orphan):
    worker, parent = orphan
    assert refusal(tmp_path) == f"process {worker}, a worker of process {parent}"
    assert locks.holder_of(tmp_path / "lock") == f"process {worker}, a worker of process {parent}"


def test_a_stopped_orphan_is_told_as_stopped(tmp_path, orphan):
    worker, parent = orphan
    os.kill(worker, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while "stopped" not in (text := refusal(tmp_path)):
        assert time.monotonic() < deadline, text
    assert text == (
        f"process {worker}, which is stopped (kill -CONT {worker}, or kill -KILL {worker}),"
        f" a worker of process {parent}"
    )


def test_a_free_lock_is_held_by_none(tmp_path):
    assert locks.holder_of(tmp_path / "lock") == ""
    os.close(locks.lock(tmp_path / "lock"))
    assert locks.holder_of(tmp_path / "lock") == ""
    os.close(locks.lock(tmp_path / "lock"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_does_not_keep_the_lock_from_being_taken(tmp_path, monkeypatch, code):
    (tmp_path / "lock").touch()

    def full(*_arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", full)
    descriptor = locks.lock(tmp_path / "lock")
    monkeypatch.undo()
    assert refusal(tmp_path) == "an unknown process"
    os.close(descriptor)


def test_a_broken_disk_does(tmp_path, monkeypatch):
    def broken(*_arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(OSError, match="Input/output error"):
        locks.lock(tmp_path / "lock")


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return the list of pauses of ``lock``. Another descriptor holds the lock as ``holder_of`` does, and
    gives it up in the first pause.
    """
    os.close(locks.lock(tmp_path / "lock"))
    descriptor = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    pauses = []

    def pause(_seconds: float) -> None:
        pauses.append(1)
        if len(pauses) == 1:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    monkeypatch.setattr(locks, "sleep", pause)
    yield pauses
    os.close(descriptor)


def test_a_start_in_the_moment_in_which_a_free_lock_is_asked_about_takes_it(tmp_path, asked):
    os.close(locks.lock(tmp_path / "lock"))
    assert asked == [1]


def test_a_start_does_not_wait_for_a_holder(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "sleep", lambda _seconds: pytest.fail("waited"))
    held = locks.lock(tmp_path / "lock")
    assert refusal(tmp_path) == f"process {os.getpid()}"
    os.close(held)


def test_who_asks_and_never_ends_is_named(tmp_path, monkeypatch):
    """A process that asks for the holder and never ends is named. For example, a ``shadeproxy doctor`` may
    have been stopped while it asked.
    """
    os.close(locks.lock(tmp_path / "lock"))
    monkeypatch.setattr(locks, "sleep", lambda _seconds: None)
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert refusal(tmp_path) == f"process {os.getpid()}"
