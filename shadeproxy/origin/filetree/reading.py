"""One open file at one version. A read returns bytes of this version or raises; it never mixes versions.

If a file is replaced by a rename, the old inode stays open, so the old version is read to its end. If a file
is rewritten in place, fstat shows the change. So fstat checks the version after each piece was read, before
the piece is handed out.
"""

import os
import stat
import threading
from collections.abc import AsyncGenerator

from shadeproxy.core.errors import BodyCutShort, ObjectChanged
from shadeproxy.core.types import ObjectMeta, ObjectRef, Span
from shadeproxy.origin.filetree.attributes import etag_of, meta_of_file
from shadeproxy.origin.filetree.pool import FilePool, translated
from shadeproxy.origin.s3ops.store import no_such_key

CHUNK_BYTES = 1 << 20


class OpenFile:
    """An open file and its version. All methods block. ``close`` waits, by a lock, until no read is under
    way.
    """

    def __init__(self, path: str, ref: ObjectRef) -> None:
        self._ref = ref
        self._lock = threading.Lock()
        self._fd = -1
        with translated(ref):
            # O_NONBLOCK, because opening a named pipe must not wait for its writer.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self.meta = self._describe()
            except BaseException:
                self.close()
                raise

    def _describe(self) -> ObjectMeta:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise no_such_key()
        return meta_of_file(self._fd, self._ref.key, found)

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop). Raises BodyCutShort, ObjectChanged, OriginUnavailable."""
        with self._lock, translated(self._ref):
            chunk = os.pread(self._fd, stop - start, start)
            found = os.fstat(self._fd)
        if found.st_size < stop:
            raise BodyCutShort(f"{self._ref} was cut to {found.st_size} bytes while it was read")
        if etag_of(found) != self.meta.etag:
            raise ObjectChanged(f"{self._ref} was rewritten while it was read")
        if len(chunk) < stop - start:
            return chunk + self.read(start + len(chunk), stop) if chunk else self._nothing()
        return chunk

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _nothing(self) -> bytes:
        raise BodyCutShort(f"{self._ref} ended early while it was read")


async def read_chunks(pool: FilePool, file: OpenFile, span: Span) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of ``span`` in pieces of up to CHUNK_BYTES. Each piece is read in a thread of
    the pool.
    """
    for start in range(span.start, span.stop, CHUNK_BYTES):
        stop = min(start + CHUNK_BYTES, span.stop)
        yield await pool.run(lambda start=start, stop=stop: file.read(start, stop))  # type: ignore[misc]
