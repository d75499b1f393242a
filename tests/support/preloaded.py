"""Python processes that begin with the libraries loaded, which saves most of the processor time of a start.

One process of each test run loads the libraries and forks a process for each program. No module of ShadeProxy
is loaded before the fork, so a program executes all of them, as after any other start. Arguments,
environment, working directory, umask and the three standard streams are those that ``subprocess.Popen`` would
give it. Its command line in /proc is not, nor its limits: a test of those starts a process from scratch.
"""

import atexit
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_LIBRARIES = (
    "aiohttp.web", "asyncio", "awscrt.checksums", "defusedxml.ElementTree", "diskcache", "msgspec.json",
    "numpy", "prometheus_client", "pydantic_settings", "rich.console", "rich.table", "structlog", "typer",
    "uvloop", "xxhash",
)  # fmt: skip
_MOST_BYTES = 1 << 18
_READ_AT_START = ("PYTHON", "MALLOC_", "LD_", "OPENBLAS_", "OMP_")
"""The interpreter and the libraries read these variables once. A process that needs others than this one
cannot begin with them loaded.
"""


class Process:
    """A forked process. Its methods are those of ``subprocess.Popen``."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended: int = ended
        """The read end of a pipe, which gets the exit status."""

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            try:
                self.returncode = _heard(self._ended)
            finally:
                os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _tell(end: int, number: int) -> None:
    os.write(end, number.to_bytes(4, "little", signed=True))


def _heard(end: int) -> int:
    told = os.read(end, 4)
    assert told, "the process that forks has ended"
    return int.from_bytes(told, "little", signed=True)


def can_start(environment: Mapping[str, str]) -> bool:
    """Return whether a process with this environment can begin with the libraries loaded."""
    names = {name for name in environment.keys() | os.environ.keys() if name.startswith(_READ_AT_START)}
    return all(environment.get(name) == os.environ.get(name) for name in names)


def start(arguments: Sequence[str], *, environment: Mapping[str, str], stderr: int) -> Process:
    """Start Python with ``arguments``, which begin with "-m" or "-c"."""
    mask = os.umask(0o077)
    os.umask(mask)
    ended, end = os.pipe()
    order = {
        "arguments": list(arguments),
        "environment": dict(environment),
        "directory": str(Path.cwd()),
        "umask": mask,
    }
    try:
        socket.send_fds(_forker(), [json.dumps(order).encode()], [0, 1, stderr, end])
    finally:
        os.close(end)
    return Process(_heard(ended), ended)


@cache
def _forker() -> socket.socket:
    """Start the process that forks, and return the socket on which it takes orders. It ends with this
    process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        # Numpy must start no threads, because a process with threads must not fork.
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# ------------------------------------------------------------------ in the process that forks


def _fork_for(orders: socket.socket) -> list[str] | None:
    """Fork a process for each order. Return its arguments in each of them, and None here at the end."""
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not orders:
                selector.unregister(key.fileobj)
                _report(key.fd, *key.data)
                continue
            text, given, *_ = socket.recv_fds(orders, _MOST_BYTES, 4)
            if not text:
                return None
            pid = os.fork()
            if not pid:
                # Closed here, where the numbers of their descriptors still belong to them.
                selector.close()
                orders.close()
                return _become(json.loads(text), given[:3])
            _tell(given[3], pid)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, given[3]))
            for one in given[:3]:
                os.close(one)


def _report(pidfd: int, pid: int, end: int) -> None:
    """Report the exit status of a process that has ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):  # no test waits for it
        _tell(end, status)
    os.close(end)
    os.close(pidfd)


def _become(order: dict[str, Any], streams: list[int]) -> list[str]:
    """Make this process one that was started by ``order``, and return its arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    os.chdir(order["directory"])
    os.umask(order["umask"])
    return list(order["arguments"])


def _main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = os.devnull  # instead of this directory, which has modules with names of libraries
    for library in _LIBRARIES:
        import_module(library)
    arguments = _fork_for(orders)
    if arguments is None:
        return
    option, program, *rest = arguments
    # As the interpreter does it: of a module it begins at the working directory.
    sys.path[0] = "" if option == "-c" else str(Path.cwd())
    if option == "-c":
        sys.argv = ["-c", *rest]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.argv = [program, *rest]
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
