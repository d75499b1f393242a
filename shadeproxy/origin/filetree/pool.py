"""Runs all file calls of one origin in a limited number of threads, and translates OSError."""

import asyncio
import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from shadeproxy.core.errors import OriginAnswer, OriginError, OriginUnavailable
from shadeproxy.origin.s3ops.store import no_such_key

T = TypeVar("T")

MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENXIO}
"""Errors that say that a path leads to nothing."""
_REFUSED = {errno.EACCES: "permission denied", errno.EPERM: "permission denied", errno.EROFS: "read-only"}


class Closeable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closeable)


class FilePool:
    """Threads that run file calls, named "file-origin"."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="file-origin")
        self._closed = False

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a thread, and return its result. ``call`` must translate its own OSErrors."""
        return await self._start(call)

    async def acquire(self, call: Callable[[], C]) -> C:
        """Run a call that opens an object, and return the object. If the caller is cancelled meanwhile, close
        it.
        """
        future = self._start(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._close_result)
            raise

    def dispose(self, resource: Closeable) -> None:
        """Close ``resource`` in a thread, after its running calls. Do not wait until it is closed."""
        if self._closed:
            resource.close()
        else:
            self._threads.submit(resource.close)

    async def aclose(self) -> None:
        """Wait for the running calls, and end the threads."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._threads.shutdown)

    def _start(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        if self._closed:
            raise OriginUnavailable("the file origin is closed")
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _close_result(self, future: "asyncio.Future[C]") -> None:
        if not future.cancelled() and future.exception() is None:
            self.dispose(future.result())


@contextmanager
def translated(what: object) -> Iterator[None]:
    """Translate OSError: a missing file to a 404, a refusal to a 403, others (EIO, ESTALE) to
    OriginUnavailable.
    """
    try:
        yield
    except OSError as error:
        raise translate(error, what) from error


def translate(error: OSError, what: object) -> OriginError:
    if error.errno in MISSING:
        return no_such_key()
    if error.errno in _REFUSED:
        return OriginAnswer(403, "AccessDenied", f"The file system refuses access: {_REFUSED[error.errno]}.")
    return OriginUnavailable(f"{what}: the file system answered: {error.strerror}")
