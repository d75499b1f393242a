"""Writes the reason when a truncated file of the cache kills the process by SIGBUS (mmap(2)).

A read of a mapping beyond the end of its file ends the process by a signal, and no code that runs then can
give the reader its bytes. So one line says what happened and what may have caused it. The next start reads
the lost bytes from the origin.

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
"""Keeps a reference to the handler. The kernel would call the handler even after it was garbage-collected."""


def explain_bus_errors() -> None:
    """Make a bus error write its cause to stderr before it ends the process."""
    faulthandler.enable()
    # Do not use signal.signal: its handlers run between two instructions of the interpreter, and after SIGBUS
    # there is no next instruction.
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
        # A deleted file keeps its bytes for processes that have it open.
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
