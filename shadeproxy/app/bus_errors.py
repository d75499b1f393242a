"""Writes the cause to stderr when the process is killed by SIGBUS, because a mapped file of the cache was
truncated (mmap(2)).

A read of mapped memory beyond the end of its file ends the process by this signal. A handler cannot give the
reader the bytes. So one line says which file was truncated, and what may have done it. The next start of the
proxy reads the lost bytes from the origin.

Law: the handler only writes that line. Then it passes the signal on to the previous handler, which shows the
stack of every thread (faulthandler) and ends the process.
"""

import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any

from shadeproxy.tiers.segment import SUFFIX

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_keeps: list[Any] = []
"""References to the handlers that the kernel may call. Without a reference a handler would be
garbage-collected, and the kernel would call freed memory.
"""


def explain_bus_errors() -> None:
    """Make a bus error write its cause to stderr before it ends the process."""
    faulthandler.enable()
    # Do not use signal.signal: its handlers run only between two instructions of the interpreter. After
    # SIGBUS the same machine instruction fails again and again, so such a handler would never run.
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype = ctypes.c_void_p
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)

    def explain(number: int) -> None:
        set_handler(number, before)
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, _cause().encode(errors="replace"))

    handler = _HANDLER(explain)
    _keeps.append(handler)
    before = set_handler(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))


def _cause() -> str:
    found = [
        f"{path} has {size:,} of {mapped:,} bytes"
        for path, mapped in _mapped_segments().items()
        if (size := _size(path)) < mapped
    ]
    if not found:
        return (
            "fatal: bus error, and no file of the cache is shorter than it was: look for errors of memory or"
            " disk in the kernel's log\n"
        )
    return (
        f"fatal: a file of the cache was truncated while the proxy used it: {'; '.join(found)}. Only root and"
        f" user id {os.geteuid()} can write it: look for programs that clean or copy over files there."
        " The proxy ends (SIGBUS); after a restart it reads the lost pages from the origin again\n"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # The file was deleted. Its bytes stay for processes that have it open, so it does not count as
        # truncated.
        return sys.maxsize


def _mapped_segments() -> dict[Path, int]:
    """Return path and mapped length of every segment that this process has mapped (proc(5), maps)."""
    found: dict[Path, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0].endswith(SUFFIX):
            start, stop = (int(end, 16) for end in span.split("-"))
            found[Path(path[0])] = found.get(Path(path[0]), 0) + stop - start
    return found
