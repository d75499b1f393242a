"""Makes the host of a virtual machine provide memory before a row is measured that needs new memory.

When a guest touches memory for the first time, it waits for a page fault of the host. It does so again for
memory that its kernel has reported as free (balloon, free page reporting). In the machine of
docs/measurements.md, new memory for a page of 100 KB then costs 320 us instead of 50, and the process that
touches it pays. That is a cost of the machine, not of the server.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MIB = 1024**2
_PROCESSES_BYTES = 512 * _MIB
"""Memory that the proxy, the origin and the client of a row use, besides the data that the row stores."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@contextmanager
def warm_memory(stored_bytes: int) -> Iterator[int]:
    """Touch the memory for a row that stores ``stored_bytes`` in files, and keep a part of it while the block
    is open. Yield the number of bytes touched.

    Every page is touched once. Then all pages but one in each MiB are given back. The pages that remain keep
    the kernel from forming blocks of 2 MiB, which it would report to the host as free. At most half of the
    available memory is touched; 0 bytes if the system is not Linux or too little memory is left.
    """
    size_bytes = _bounded(stored_bytes + _PROCESSES_BYTES)
    if not size_bytes:
        yield 0
        return
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):  # A kernel without huge pages refuses this advice.
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[::_PAGE_BYTES] = bytes(size_bytes // _PAGE_BYTES)
        for start in range(0, size_bytes, _MIB):
            memory.madvise(mmap.MADV_DONTNEED, start + _PAGE_BYTES, _MIB - _PAGE_BYTES)
        yield size_bytes


def _bounded(wanted_bytes: int) -> int:
    """Return ``wanted_bytes``, rounded down to whole MiB. The result is at most half of the available
    memory.
    """
    return min(wanted_bytes, _available_bytes() // 2) // _MIB * _MIB


def _available_bytes() -> int:
    """Return the bytes of memory that the machine has available and that this control group allows; 0 if
    unknown.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        available_bytes = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return 0
    with suppress(OSError, ValueError):  # The file is missing, or says "max".
        return min(available_bytes, int(_CGROUP_LIMIT.read_text()))
    return available_bytes
