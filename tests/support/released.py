"""Frees the memory of ended tests."""

import ctypes
import gc
import sys


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
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none.
        if trim is not None:
            trim(0)
