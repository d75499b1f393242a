"""Writes objects: first to a temporary file in the bucket's hidden directory, which is then renamed into
place.

Readers never see a half-written object. There is no fsync: after a power cut a new object may be missing or
empty, as any file that was copied into the directory may be. The modification time is set from the nanosecond
clock before the rename. So two versions written within one tick of the file system differ in their ETag.
"""

# Keys are strings: pathlib would normalise them, and would take longer than the system call.
# ruff: noqa: PTH102, PTH103, PTH105, PTH106, PTH108, PTH116, PTH120

import errno
import os
import stat
import threading
import time
import uuid
from contextlib import suppress

from shadeproxy.core.errors import InvalidRequest, OriginAnswer
from shadeproxy.core.types import Headers, ObjectMeta, ObjectRef
from shadeproxy.origin.filetree import marker
from shadeproxy.origin.filetree.attributes import meta_of_file, worth_keeping, write_headers
from shadeproxy.origin.filetree.paths import HIDDEN, Place, Tree
from shadeproxy.origin.filetree.pool import MISSING, FilePool, translated
from shadeproxy.origin.s3ops.store import ANY_VERSION, WriteCondition

_BUFFER_BYTES = 256 * 1024
_ABANDONED_S = 24 * 3600.0


class FileDraft:
    """A Draft over a temporary file. It holds a small object in memory, so that one call in a thread writes
    it.
    """

    def __init__(self, pool: FilePool, target: "Target") -> None:
        self._pool = pool
        self._target = target
        self._buffer = bytearray()

    async def write(self, chunk: bytes) -> None:
        self._buffer += chunk
        if len(self._buffer) >= _BUFFER_BYTES:
            buffered, self._buffer = self._buffer, bytearray()
            await self._pool.run(lambda: self._target.append(buffered))

    async def publish(self, headers: Headers, condition: WriteCondition = ANY_VERSION) -> ObjectMeta:
        return await self._pool.run(lambda: self._target.publish(self._buffer, headers, condition))


class Target:
    """The blocking part of a draft. ``publishing``: a lock that all drafts of the store share. A thread holds
    it while it checks a condition and renames the file.
    """

    def __init__(self, tree: Tree, ref: ObjectRef, publishing: threading.Lock) -> None:
        self._tree = tree
        self._ref = ref
        self._publishing = publishing
        self._lock = threading.Lock()
        self._place = tree.writable(ref)
        self._temporary: str | None = None
        self._fd = -1

    def append(self, data: bytearray) -> None:
        with self._lock, translated(self._ref):
            self._write(data)

    def publish(self, rest: bytearray, headers: Headers, condition: WriteCondition) -> ObjectMeta:
        with self._lock, translated(self._ref):
            if self._place.is_marker:
                if rest or self._fd >= 0:
                    raise InvalidRequest(
                        'A key that ends with "/" is a directory here and cannot have a body',
                        hint="Drop the slash at the end of the key, or send no body.",
                    )
                with self._publishing:
                    self._tree.bucket(self._ref.bucket)
                    return self._mark(headers, condition)
            self._write(rest)
            kept = worth_keeping(headers, self._ref.key)
            if kept:
                write_headers(self._fd, kept)
            now_ns = time.time_ns()
            os.utime(self._fd, ns=(now_ns, now_ns))
            with self._publishing:
                self._tree.bucket(self._ref.bucket)  # It may have been deleted since the draft began.
                condition.check(self._current())
                self._rename()
            return meta_of_file(self._fd, self._ref.key, os.fstat(self._fd))

    def close(self) -> None:
        """Close the temporary file, and remove it unless it was published."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            if self._temporary is not None:
                os.unlink(self._temporary)
                self._temporary = None

    def _write(self, data: bytearray) -> None:
        if self._fd < 0:
            self._open()
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _open(self) -> None:
        folder = self._tree.bucket(self._ref.bucket)
        for name in (HIDDEN, "drafts"):  # One by one: the bucket itself may be deleted meanwhile.
            folder = f"{folder}/{name}"
            with suppress(FileExistsError):
                os.mkdir(folder)
        path = f"{folder}/{uuid.uuid4().hex}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._temporary = path

    def _current(self) -> ObjectMeta | None:
        try:
            found = os.stat(self._place.path)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return None
            raise _refusal(error) from error
        if stat.S_ISDIR(found.st_mode):  # Renaming would replace a symbolic link to a directory.
            raise _refusal(IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
        if not stat.S_ISREG(found.st_mode):
            return None
        return meta_of_file(self._place.path, self._ref.key, found)

    def _mark(self, headers: Headers, condition: WriteCondition) -> ObjectMeta:
        try:
            return marker.create(self._place.path, headers, condition)
        except OSError as error:
            raise _refusal(error) from error

    def _rename(self) -> None:
        assert self._temporary is not None
        # A concurrent delete may remove the new directory while it is still empty. Then make the directory
        # again.
        for _ in range(8):
            try:
                os.makedirs(os.path.dirname(self._place.path), exist_ok=True)
                os.replace(self._temporary, self._place.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _refusal(error) from error
            self._temporary = None
            return
        raise OriginAnswer(409, "OperationAborted", "The directory of the key is being removed; try again.")


def _refusal(error: OSError) -> Exception:
    if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}:
        return InvalidRequest(
            "A directory origin cannot hold both an object and objects below it",
            hint="Choose a key that is neither a prefix of existing keys nor below an existing object.",
        )
    if error.errno == errno.ENAMETOOLONG:
        return OriginAnswer(400, "KeyTooLongError", "A segment of the key is too long for the file system.")
    return error


def sweep_abandoned(bucket_path: str) -> None:
    """Remove temporary files that killed processes left more than a day ago (blocking)."""
    try:
        entries = list(os.scandir(f"{bucket_path}/{HIDDEN}/drafts"))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.stat().st_mtime < time.time() - _ABANDONED_S:
                os.unlink(entry.path)
        except FileNotFoundError:
            continue


def remove(place: Place, bucket_path: str) -> None:
    """Remove an object, and then the directories above it that are now empty and are no markers (blocking).
    If the object does not exist, do nothing.
    """
    try:
        if place.is_marker:
            marker.remove(place.path)
        elif stat.S_ISREG(os.stat(place.path).st_mode):
            os.unlink(place.path)
        else:  # A symbolic link to a directory leads to the objects below it.
            return
    except OSError as error:
        if error.errno in MISSING:
            return
        raise
    parent = place.path if place.is_marker else os.path.dirname(place.path)
    while len(parent) > len(bucket_path) and not marker.exists(parent):
        try:
            os.rmdir(parent)
        except OSError:
            return
        parent = os.path.dirname(parent)
