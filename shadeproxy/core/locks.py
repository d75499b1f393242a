"""The lock file of a directory: one process holds the directory, and a second process that tries to lock it
learns which process holds it.

A lock belongs to an open file, which workers inherit. So the process that took the lock may be dead, while
one of its workers, stopped or hanging, still holds the lock. The open files in ``/proc`` show who holds it.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

LOCK_NAME = "lock"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full medium."""
_TRIES = 20
_PAUSE_S = 0.01
"""Pause between two attempts to lock, in seconds. ``holder_of`` keeps its lock for a far shorter time."""
_PROCESSES = Path("/proc")
_STOPPED = frozenset({"T", "t"})


class Held(Exception):
    """Another process holds the lock. The text of the error is "process 4711", with a note if that process is
    stopped.
    """


def lock(path: Path) -> int:
    """Lock the file ``path``; create it if it is missing. Return the descriptor that holds the lock. Raises
    Held, OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor)
        _write_pid(descriptor)
    except BlockingIOError:
        holder = _holder(descriptor, path.name)
        os.close(descriptor)
        raise Held(holder) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _take(descriptor: int) -> None:
    """Take the lock. Raises BlockingIOError if another process holds it.

    A process in ``holder_of`` holds a shared lock for a moment; this function waits until that lock ends.
    """
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        # A shared lock is refused only while another process holds the exclusive one, so this line raises
        # only then.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        sleep(_PAUSE_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def holder_of(path: Path) -> str:
    """Return a text that names the process that holds the lock file ``path``, as that of ``Held``; "" if no
    process holds it. The file is not changed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor, path.name)
    except OSError:
        return ""
    else:
        return ""
    finally:
        os.close(descriptor)


def holders_of(path: Path) -> set[int]:
    """Return the ids of the other processes that have the lock file ``path`` open, as far as /proc shows them
    to this user.
    """
    try:
        return _open_in(path.stat(), path.name) - {os.getpid()}
    except OSError:
        return set()


def _write_pid(descriptor: int) -> None:
    """Write the process id into the lock file, for people to read. On a full disk the file stays empty."""
    with suppress_full():
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


@contextmanager
def suppress_full() -> Iterator[None]:
    """Ignore an error of a full medium in the block. Other errors are raised."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise


def _holder(descriptor: int, name: str) -> str:
    found = _open_in(os.fstat(descriptor), name) - {os.getpid()}
    written = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    if not found or written in map(str, found):
        # /proc shows no open files of another user's or another container's processes. Then the number in the
        # file is all that is known.
        return _described(written) if written.isdecimal() else "an unknown process"
    return _described(str(min(found))) + (f", a worker of process {written}" if written.isdecimal() else "")


def _open_in(status: os.stat_result, name: str) -> set[int]:
    """Return the ids of the processes that have the file of this ``status`` and ``name`` open, as far as
    /proc shows them to this user.
    """
    found = set()
    for process in _PROCESSES.iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                # Touch no files of other names: they may be on disks that hang.
                files = (file for file in (process / "fd").iterdir() if file.readlink().name == name)
                if any(os.path.samestat(file.stat(), status) for file in files):
                    found.add(int(process.name))
    return found


def _described(pid: str) -> str:
    with suppress(OSError, IndexError):
        # The name of the program comes before the state, and may contain any character (proc(5)).
        state = (_PROCESSES / pid / "stat").read_text().rpartition(")")[2].split()[0]
        if state in _STOPPED:
            return f"process {pid}, which is stopped (kill -CONT {pid}, or kill -KILL {pid})"
    return f"process {pid}"
