"""Frees the memory of ended engines and tests."""

import ctypes
import gc
import sys
from typing import Any

_M_MMAP_THRESHOLD = -3
"""The number of this parameter of ``mallopt`` in glibc."""


def keep_no_large_blocks() -> None:
    """Let glibc take each block of at least 1 MiB from the system, and give it back when it is freed.

    Without this function, glibc raises this limit up to 32 MiB when such a block is freed. The columns of an
    engine, some of 16 MiB, would then come from memory that was used before. Each new engine would clear them
    all, although a test touches a few pages only. A process that made 200 engines had 4.3 GB, and half of its
    CPU was spent on clearing.
    """
    set_parameter = _function_of_glibc("mallopt")
    if set_parameter is not None:
        set_parameter(_M_MMAP_THRESHOLD, 1 << 20)


def release_memory() -> None:
    """Collect garbage, exclude all objects that are left from later rounds of the garbage collector, and give
    freed memory back to the system.

    Modules and collected tests are 800,000 objects. A full round of the collector waits until a quarter as
    many new objects exist. Without this function, engines of ended tests (megabytes of columns in a few
    hundred objects each) would stay until the process had gigabytes. Besides, each collection that a fixture
    asks for would take half a second.

    glibc keeps freed memory that lies below memory in use. A process of `make test` once had 4.9 GB for that
    reason, and 0.9 GB were in use.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # This round sees few objects, so the next full round comes soon.
    trim = _function_of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _function_of_glibc(name: str) -> Any:
    """Return a function of the C library. Return None where the C library has no such function, as musl."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
