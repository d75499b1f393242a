"""Say why the process dies when a file of the cache is truncated under it (SIGBUS, mmap(2)).

The kernel answers a read of a mapping beyond the end of its file with a signal that ends the process, and no
code that runs then can give the reader its bytes. So the line says what happened and who can have done it.
The next start reads from the origin what is lost.

Law: nothing happens here but writing that line. The handler gives way to the one before it, which shows where
every thread was (faulthandler), and ends the process.
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
"""A handler that the collector took would be called all the same."""


def explain_bus_errors() -> None:
    """From now on a bus error writes its cause to stderr before it ends the process."""
    faulthandler.enable()
    # Not signal.signal: its handlers run between two instructions of the interpreter, which never come.
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
        f" user id {os.geteuid()} can write it: look for what cleans or copies over files there. The proxy"
        " ends (SIGBUS); started again, it reads from the origin what is lost\n"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # Deleted files keep their bytes for who has them open.
        return sys.maxsize


def _mapped_segments() -> dict[Path, int]:
    """Path and mapped length of every segment in this process (proc(5), maps)."""
    found: dict[Path, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0].endswith(SUFFIX):
            start, stop = (int(end, 16) for end in span.split("-"))
            found[Path(path[0])] = found.get(Path(path[0]), 0) + stop - start
    return found
