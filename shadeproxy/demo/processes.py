"""Child processes that never outlive the demo. Each child has a session of its own, and is ended together
with all its descendants.

Law: every process is started in a ``with`` block, and is gone when that block has ended, even after an error.
If a process fails, the error quotes the end of the process's log.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from shadeproxy.core.errors import ShadeProxyError

_STOP_S = 10.0
_TAIL_LINES = 15
_IGNORED_S = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """A running process whose stderr goes to ``log``."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    def failure(self) -> ShadeProxyError:
        """Return an error that says how the process ended, and quotes the end of its log."""
        status = self.process.wait()
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        tail = "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
        return ShadeProxyError(f"{self.name} ended with status {status}; the end of its log:\n{tail}")


@contextmanager
def running(
    name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str], piped: bool = False
) -> Iterator[Child]:
    """Start ``command``. At the end of the block, stop the process and its descendants: by SIGTERM, and after
    10 s by SIGKILL. After an interrupt SIGKILL is sent at once, because the results of the processes are not
    needed then.

    ``piped``: stdin and stdout are pipes. Without it there is no stdin, and both stdout and stderr go to
    ``log``.
    """
    process = None
    try:
        # Hold signals back here. A signal between the start of the process and the assignment to the variable
        # would leave the process running.
        with log.open("wb") as file, held():
            process = subprocess.Popen(  # noqa: S603 (the command runs our own interpreter and modules)
                command,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                env=dict(env),
                # The process has a group of its own. So Ctrl-C reaches only the demo, and the demo then ends
                # all processes.
                start_new_session=True,
            )
        try:
            yield Child(name, process, log)
        except Exception:
            _ask_to_end(process)
            raise
        _ask_to_end(process)
    finally:
        with held():
            if process is not None:
                _kill(process)


@contextmanager
def scratch_directory(prefix: str, place: Path | None) -> Iterator[Path]:
    """Make a directory below ``place``, or below the system's temporary directory for None. Remove it with
    all its files at the end of the block.
    """
    directory = TemporaryDirectory(prefix=prefix, dir=place)
    try:
        yield Path(directory.name)
    finally:
        with held():
            directory.cleanup()


class _Interrupts:
    """Turns signals into KeyboardInterrupt. ``holders``: number of running blocks that must not be
    interrupted. A signal waits until there are none.

    A signal that follows an interrupt at once is ignored: it could interrupt a ``finally`` block before its
    first statement. A later one interrupts again, because Python drops exceptions in some places.
    """

    def __init__(self) -> None:
        self.holders = 0
        self.pending = False
        self.begin()

    def begin(self) -> None:
        self._raised_s = -_IGNORED_S

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.holders:
            self.pending = True
        else:
            self._interrupt()

    def release(self) -> None:
        self.holders -= 1
        if self.pending and not self.holders:
            self._interrupt()

    def _interrupt(self) -> None:
        self.pending, now_s = False, time.monotonic()
        if now_s - self._raised_s >= _IGNORED_S:
            self._raised_s = now_s
            raise KeyboardInterrupt


_interrupts = _Interrupts()


@contextmanager
def held() -> Iterator[None]:
    """Hold back the signals of ``termination_as_interrupt`` until the end of the block, which must be
    short.
    """
    _interrupts.holders += 1
    try:
        yield
    finally:
        _interrupts.release()


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at SIGTERM and SIGHUP, as Python does at Ctrl-C, so that no child
    process is left running. A signal that was ignored before the block stays ignored.
    """
    _interrupts.begin()
    numbers = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupts.handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Kill the whole group: workers of a DataLoader notice only after seconds that their parent process is
    # gone.
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
