"""Starts the workers of a copied proxy as copies of its coordinator, which has imported their modules.

A copied worker has the coordinator's memory settings of glibc. Its command line in /proc is cut to the length
of the command line of the original (copied.py).
"""

import asyncio
import ctypes
import faulthandler
import gc
import itertools
import os
import secrets
import signal
import sys
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

from shadeproxy.api.s3 import compiled
from shadeproxy.app.workers import CRADLE
from shadeproxy.core import tracing

_BEGIN, _END = 45, 46
"""Those fields of /proc/self/stat, counted from the field behind the name, that have the addresses of the
command line.
"""


class CopiedWorker:
    """A copied worker, with the methods of ``asyncio.subprocess.Process`` that the product needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit status. It may be called once only."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        _, status = os.waitpid(self.pid, 0)  # noqa: ASYNC222 (it has ended)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def copy_workers() -> None:
    """Start all later workers of this process as copies of this process."""
    number_requests_anew()
    start = asyncio.create_subprocess_exec

    async def start_copy(*command: str, **how: Any) -> Any:
        if CRADLE not in command:
            return await start(*command, **how)
        if (pid := os.fork()) == 0:
            _be_worker(list(command), how["pass_fds"], how["env"])
        return CopiedWorker(pid)

    asyncio.create_subprocess_exec = start_copy  # type: ignore[assignment]


def number_requests_anew() -> None:
    """Begin the numbers of requests at a random number, as the import of their modules does."""
    tracing.NUMBERS = compiled.NUMBERS = itertools.count(secrets.randbits(60))


def _be_worker(command: list[str], inherited: tuple[int, ...], environment: dict[str, str]) -> None:
    """Run a worker's program in this new process, and end the process.

    The frames of the coordinator stay on the stack, so no object that they hold is finalised here.
    """
    status = 1
    try:
        _drop_what_no_new_process_has({*inherited, 1, 2})
        number_requests_anew()
        os.environ.clear()
        os.environ.update(environment)
        _show(command[0], "-c", "shadeproxy.app.worker")
        _, _, program, *arguments = command
        sys.argv = ["-c", *arguments]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 (nothing is above)
        traceback.print_exc()
    finally:
        os._exit(status)


def _drop_what_no_new_process_has(kept: set[int]) -> None:
    """Drop the signal handlers, event loop, garbage and descriptors that were copied from the coordinator."""
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        with suppress(OSError):  # libc keeps two signals for itself.
            signal.signal(number, signal.SIG_DFL)
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)
    gc.callbacks.clear()
    gc.freeze()
    for link in list(Path("/proc/self/fd").iterdir()):
        if int(link.name) not in kept:
            with suppress(OSError):  # The directory's own descriptor is closed.
                os.close(int(link.name))
    os.open(os.devnull, os.O_RDONLY)


def _show(*command: str) -> None:
    """Write a command line to the memory from which /proc reads that of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_BEGIN]), int(fields[_END])
    text = b"".join(word.encode() + b"\0" for word in command)[: end - begin]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))
