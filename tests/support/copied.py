"""Starts Python programs as copies of one process, the original, which has imported their modules.

A new interpreter needs more than half a second of CPU for these imports, which is most of what a proxy uses
in a test. A copy needs a few milliseconds.

A copy is a separate process, and it ends as an interpreter does. It has the environment, the working
directory, the file mode mask and the standard streams of the test that starts it. Its limits of resources and
its command line in /proc are those of the original.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

PROXY = (
    "shadeproxy.app.serve", "shadeproxy.app.worker", "shadeproxy.cli.main", "tests.support.copied_workers",
    "tests.support.prepared",
)  # fmt: skip
"""The modules of a proxy and its workers, and the module that prepares the start of a proxy."""
TRAINING = ("torch", "torch._dynamo", "shadeproxy_sdk", "shadeproxy.demo.train")
"""The modules of a training program. The first optimizer of a process imports torch._dynamo, which takes as
long as the import of torch itself.
"""
COPY = "a copy"
"""Stands in a command in place of the path of an interpreter, and means: run the program in a copy."""
_ROOT = Path(__file__).parents[2]
_LARGEST = 1 << 20
_READ_AT_START = ("PYTHON", "MALLOC_", "LD_", "LANG", "LC_")
"""Beginnings of the names of those variables that an interpreter reads before it runs any Python code."""
_STREAMS = 3


class Copy:
    """A copied process, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(self, original: "Original", pid: int) -> None:
        self._original = original
        self._descriptor = os.pidfd_open(pid)
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.returncode if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit status. Raises TimeoutExpired."""
        if not self._has_ended(None if timeout is None else timeout * 1000):
            assert timeout is not None
            raise TimeoutExpired(f"the copy {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, limit_ms: float | None) -> bool:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if not ended.poll(limit_ms):
                return False
            # Until this call the ended process keeps its number, so that no other process can get it.
            self.returncode = self._original.status_of(self.pid)
            os.close(self._descriptor)
        return True


class Original:
    """The process that is copied, which has imported ``modules``.

    It ends when this object is closed, or when the process of the tests ends.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._environment = _read_at_start(os.environ)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(command, cwd=_ROOT, pass_fds=[theirs.fileno()])

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Return whether a copy with this environment behaves as a new interpreter would."""
        return _read_at_start(environment) == self._environment

    def start(
        self,
        arguments: list[str],
        *,
        stdin: int = 0,
        stdout: int = 1,
        stderr: int,
        environment: Mapping[str, str],
        own_session: bool = False,
    ) -> Copy:
        """Start a copy, which runs the program that an interpreter with these arguments would run.

        The arguments are ``-m module``, ``-c text`` or the path of a script, and then those of the program.
        """
        assert self.can_start(environment), "only a new interpreter would use them"
        mask = os.umask(0)
        os.umask(mask)
        order = {
            "arguments": arguments,
            "environment": dict(environment),
            "directory": str(Path.cwd()),
            "mask": mask,
            "own_session": own_session,
        }
        return Copy(self, self._ask(order, stdin, stdout, stderr))

    def status_of(self, pid: int) -> int:
        """Return the exit status of a copy that has ended. The original can return it only once."""
        return os.waitstatus_to_exitcode(self._ask({"ended": pid}))

    def close(self) -> None:
        self._control.close()
        self._process.wait()

    def _ask(self, order: dict[str, Any], *descriptors: int) -> int:
        with self._lock:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
            return int(self._control.recv(_LARGEST))


@cache
def original(modules: tuple[str, ...] = PROXY) -> Original:
    """Return the process that has imported these modules, and whose copies run the commands of tests. The
    first call starts this process, and later calls return the same one.
    """
    made = Original(modules)
    atexit.register(made.close)
    return made


def run_command(
    *arguments: str, environment: dict[str, str] | None = None, timeout_s: float = 60
) -> CompletedProcess[str]:
    """Run ``shadeproxy`` with these arguments in a copy, and return its result.

    ``environment``: variables in addition to those of the test. Raises TimeoutExpired, after killing the
    copy.
    """
    with TemporaryFile() as out, TemporaryFile() as error:
        copy = original().start(
            ["-m", "shadeproxy", *arguments],
            stdout=out.fileno(),
            stderr=error.fileno(),
            environment=os.environ | (environment or {}),
        )
        try:
            status = copy.wait(timeout_s)
        finally:
            copy.kill()
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode())
        return CompletedProcess(arguments, status, *texts)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def _make_copies(control: socket.socket) -> dict[str, Any]:
    """Make the copies that are ordered over the socket. Exit when its other end is closed.

    The function returns in each copy only, with the order for it.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _LARGEST, _STREAMS)
        if not message:
            sys.exit()
        order: dict[str, Any] = json.loads(message)
        if "ended" in order:
            _, answer = os.waitpid(order["ended"], 0)
        elif (answer := _fork(own_session=order["own_session"])) == 0:
            for stream, descriptor in enumerate(descriptors):
                os.dup2(descriptor, stream)
        for descriptor in descriptors:
            os.close(descriptor)
        if answer == 0 and "ended" not in order:
            return order
        control.send(str(answer).encode())


def _fork(*, own_session: bool) -> int:
    """Fork. Return in the original when the copy has its own session, because signals to the copy's process
    group reach it only then.
    """
    ready, theirs = os.pipe()
    pid = os.fork()
    if pid == 0 and own_session:
        os.setsid()
    os.close(theirs)
    if pid:
        os.read(ready, 1)
    os.close(ready)
    return pid


def _run(order: dict[str, Any]) -> None:
    """Run the program that an order names in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(order["mask"])
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if (workers := sys.modules.get("tests.support.copied_workers")) is not None:
        workers.copy_workers()
    kind, *rest = order["arguments"]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = [kind, *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [kind, *rest]
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and their end ends this process.
    _, channel, *modules = sys.argv
    for name in modules:
        import_module(name)
    gc.collect()
    gc.freeze()  # A collection in a copy would write to, and so copy, the memory of all these objects.
    with socket.socket(fileno=int(channel)) as control:
        order = _make_copies(control)
    try:
        _run(order)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    else:
        status = 0
    _end(status)


def _end(status: int) -> NoReturn:
    """End this process as an interpreter does, but leave the objects of the original as they are.

    To finalise them would cost as much CPU as the start of a proxy. The program's own garbage is collected.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        sys.exit(status)  # An interpreter reports this too, and changes the status.
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _main()
