"""Segment files of the cache, opened by this process to read them without the proxy.

Bodies are read with ``preadv`` and never through a mapping. Measured per 100 KB from tmpfs into a batch
buffer (CPU, 2-core EPYC): preadv 14 us, a slice of a mapping whose pages this process has touched before 9,
of one whose pages it has not touched 20; after an eviction they are new again. To save those 5 us, a mapping
would cost three things: touching a hole of a tmpfs file allocates a page that the proxy does not count; a
full tmpfs or a bad disk is SIGBUS, which kills the worker, where a system call is an error; and each worker
would pay page tables for the whole cache. A check before the touch does not exclude the first two: a record
may die in between. Copies that the kernel makes out of a mapping (process_vm_readv) cost the same as preadv:
the kernel's copy is slow, not the way to the page.

Law: a descriptor is only a guess of the file at the path; each reader proves it by the record's header.
"""

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Self

_MOST_FILES = 256
_SWEEP_S = 1.0
# O_NONBLOCK, and the check after opening: a path that names a pipe or a device must not block a worker.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)


class Segments:
    """Open segment files by path, the most recently used ones. Thread-safe.

    Read inside ``with``: no file is closed while a reader is inside. So a descriptor's number cannot come to
    mean another file during a read.
    """

    def __init__(self, *, most_files: int = _MOST_FILES, clock: Callable[[], float] = time.monotonic) -> None:
        self._files: OrderedDict[str, int] = OrderedDict()
        self._most_files = most_files
        self._clock = clock
        self._swept_at = clock()
        self._readers = 0
        self._closing: list[int] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        with self._lock:
            self._readers += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._readers -= 1
            if self._clock() - self._swept_at >= _SWEEP_S:
                self._sweep()
            if not self._readers:
                unused, self._closing = self._closing, []
                for descriptor in unused:
                    os.close(descriptor)

    def open(self, path: str) -> int | None:
        """Return a descriptor of the file at ``path``; None if it cannot be opened or is no regular file."""
        with self._lock:
            known = self._files.get(path)
            if known is not None:
                self._files.move_to_end(path)
                return known
            descriptor = _open(path)
            if descriptor is None:
                return None
            self._files[path] = descriptor
            if len(self._files) > self._most_files:
                self._closing.append(self._files.popitem(last=False)[1])
            return descriptor

    def renewed(self, path: str, descriptor: int) -> int | None:
        """Return another descriptor if ``path`` now names another file, for example after a restart."""
        with self._lock:
            if self._files.get(path) == descriptor and not _is_same(path, descriptor):
                self._closing.append(self._files.pop(path))
        current = self.open(path)
        return None if current == descriptor else current

    def close(self) -> None:
        """Close everything. Call it when no thread reads. In a forked child no thread reads, although the
        copied count may say so.
        """
        files, self._files = self._files, OrderedDict()
        closing, self._closing = self._closing, []
        for descriptor in [*files.values(), *closing]:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Close deleted files, whose memory is not freed while they are open."""
        self._swept_at = self._clock()
        for path, descriptor in list(self._files.items()):
            if not os.fstat(descriptor).st_nlink:
                self._closing.append(self._files.pop(path))


def _open(path: str) -> int | None:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _is_same(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(descriptor))
    except OSError:
        return False
