"""Makes the system calls on segments. A call that fails raises OSError with the call's errno.

Python lacks two of these calls, so this module binds them itself: punching holes, and asking which pages are
in the page cache. The calls that change or read a segment form one object, so that a test can replace it by a
faulty one.
"""

import ctypes
import os
import threading
from pathlib import Path
from typing import Protocol

PROBE_NAME = "probe"
"""Name of the file with which a start tests the medium."""
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MOST_PAGES = 4096
"""Largest number of pages for one call of mincore."""

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
# PyDLL keeps the interpreter's lock: the call usually takes 1 to 3 us, and releasing the lock would cost as
# much again.
_mincore = ctypes.PyDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def punch_hole(fd: int, start: int, length: int) -> None:
    """Return the blocks of ``[start, start + length)`` to the file system; they then read as zeros
    (fallocate(2)).
    """
    if _fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, start, length) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"fallocate(PUNCH_HOLE): {os.strerror(errno)}")


class Calls(Protocol):
    """The system calls that change or read a segment (pread(2), pwrite(2), fallocate(2), fdatasync(2)). Each
    raises OSError.
    """

    def pread(self, descriptor: int, length: int, offset: int, /) -> bytes:
        """Return ``length`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int, /) -> int:
        """Write data at ``offset``. Return the number of bytes written, at least one."""
        ...

    def punch_hole(self, descriptor: int, start: int, length: int, /) -> None:
        """Return the blocks of ``[start, start + length)`` to the file system; they then read as zeros."""
        ...

    def flush(self, descriptor: int, /) -> None:
        """Wait until every write so far is on the medium."""
        ...


class SystemCalls:
    """Implements ``Calls`` by the kernel's own calls. Tests and fault runs replace it by calls that fail."""

    # This is the function of ``os`` itself, because a method around it would cost time. Each write of a
    # record makes two of these calls.
    pwrite = staticmethod(os.pwrite)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

    def punch_hole(self, descriptor: int, start: int, length: int) -> None:
        punch_hole(descriptor, start, length)

    def flush(self, descriptor: int) -> None:
        os.fdatasync(descriptor)


SYSTEM: Calls = SystemCalls()


def is_tmpfs(path: Path) -> bool:
    """Return whether a directory lies on tmpfs, where no device can fail. Raises OSError."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0] in {"tmpfs", "ramfs"}
    return False


class _Vector(threading.local):
    """The output buffer of mincore, one byte a page. Each thread has its own buffer, because two threads may
    ask at once.
    """

    def __init__(self) -> None:
        self.bytes = bytearray(_MOST_PAGES)
        self.address = ctypes.addressof((ctypes.c_char * _MOST_PAGES).from_buffer(self.bytes))


_vector = _Vector()


def is_resident(mapping_address: int, start: int, length: int) -> bool:
    """Return whether all pages of ``[start, start + length)`` of a mapping are in memory (mincore(2))."""
    first, stop = start // _PAGE_BYTES * _PAGE_BYTES, start + length
    vector = _vector
    while first < stop:
        span = min(stop - first, _MOST_PAGES * _PAGE_BYTES)
        if _mincore(mapping_address + first, span, vector.address) != 0:
            errno = ctypes.get_errno()
            raise OSError(errno, f"mincore: {os.strerror(errno)}")
        pages = -(-span // _PAGE_BYTES)
        # Only the lowest bit of each byte is defined, and today's kernels set no other bit. If a kernel ever
        # does, pages count as not resident, which is safe.
        if vector.bytes.count(1, 0, pages) != pages:
            return False
        first += span
    return True
