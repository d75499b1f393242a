"""Memory of a virtual machine, taken back from the host before a row that takes new memory is measured.

A guest that touches memory for the first time, or again after its kernel reported it as free (balloon, free
page reporting), waits for the host's page fault: in the machine of docs/measurements.md a page of 100 KB then
costs 320 us instead of 50, at the expense of the process that takes it. That is the machine's cost, not the
server's.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MIB = 1024**2
_PROCESSES_BYTES = 512 * _MIB
"""Memory of the proxy, the origin and the client of a row, beside the data they store."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@contextmanager
def warm_memory(stored_bytes: int) -> Iterator[int]:
    """Touch the memory for a row that stores as much in files, and keep it while the block is open; yield the
    bytes touched.

    Every page is touched once, and all but one page in each MiB are given back at once. The remaining pages
    keep the kernel from making blocks of 2 MiB, which are what it reports to the host as free. Never more
    than half of the available memory; 0 where the system is no Linux or too little memory is left.
    """
    size_bytes = _bounded(stored_bytes + _PROCESSES_BYTES)
    if not size_bytes:
        yield 0
        return
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):  # a kernel without huge pages knows no such advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[::_PAGE_BYTES] = bytes(size_bytes // _PAGE_BYTES)
        for start in range(0, size_bytes, _MIB):
            memory.madvise(mmap.MADV_DONTNEED, start + _PAGE_BYTES, _MIB - _PAGE_BYTES)
        yield size_bytes


def _bounded(wanted_bytes: int) -> int:
    """Return whole MiB, at most half of the available memory."""
    return min(wanted_bytes, _available_bytes() // 2) // _MIB * _MIB


def _available_bytes() -> int:
    """Return the memory that the machine has and this control group allows; 0: unknown."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        available_bytes = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return 0
    with suppress(OSError, ValueError):  # no such file, or "max"
        return min(available_bytes, int(_CGROUP_LIMIT.read_text()))
    return available_bytes
