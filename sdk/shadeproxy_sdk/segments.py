"""Opens the segment files of the cache, so that this process can read samples without the proxy.

Bodies are read with ``preadv``, never through a memory mapping. To copy 100 KB from tmpfs into a batch
buffer, preadv takes 14 us (2-core EPYC). A slice of a mapping takes 9 us if this process has touched the
mapping's pages before, and 20 us if it has not, or if an eviction came between. So a mapping would save 5 us
at best, and would have three costs. Touching a hole of a tmpfs file allocates a page that the proxy does not
count. A full tmpfs or a bad disk raises SIGBUS, which kills the worker, where a system call returns an error.
Each worker needs page tables for the whole cache. A check before touching the pages would not prevent the
first two costs, because the record may be evicted after the check. The kernel can also copy out of a mapping
(process_vm_readv), but that takes as long as preadv, because the kernel's copy is slow.

Law: a new file may get the path of an old segment, so an open descriptor may be of a file that the proxy no
longer uses. Each reader therefore checks the record's header after its copy.
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
# If a path names a pipe or a device, O_NONBLOCK and the check after opening keep this process from hanging.
# Windows has none of the three flags.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW"))


class Segments:
    """The segment files that were used most recently, kept open, by path. Thread-safe.

    Read inside ``with``, because no file is closed while a reader is inside. Otherwise a descriptor's number
    could come to mean another file during a read.
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
        """Return another descriptor if ``path`` now names another file than ``descriptor``, for example after
        a restart of the proxy; otherwise None.
        """
        with self._lock:
            if self._files.get(path) == descriptor and not _is_same(path, descriptor):
                self._closing.append(self._files.pop(path))
        current = self.open(path)
        return None if current == descriptor else current

    def close(self) -> None:
        """Close all files. No thread may be reading. In a forked child no thread is, even if the count of
        readers is above zero, because that count was copied from the parent.
        """
        files, self._files = self._files, OrderedDict()
        closing, self._closing = self._closing, []
        for descriptor in [*files.values(), *closing]:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Close files that were deleted: their memory is freed only when no process has them open."""
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
