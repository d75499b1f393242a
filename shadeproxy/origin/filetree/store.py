"""``FileStore``: the Store protocol over a directory tree. Every call runs in a thread of the pool."""

# Keys are strings: pathlib would normalise them, and would take longer than the system call.
# ruff: noqa: PTH102, PTH104, PTH106, PTH116

import os
import shutil
import stat
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shadeproxy.core.errors import ConfigError, OriginAnswer
from shadeproxy.core.types import ListPage, ObjectMeta, ObjectRef, Span
from shadeproxy.origin.filetree import marker, writing
from shadeproxy.origin.filetree.attributes import meta_of_file
from shadeproxy.origin.filetree.paths import HIDDEN, Tree
from shadeproxy.origin.filetree.pool import FilePool, translate, translated
from shadeproxy.origin.filetree.reading import OpenFile, read_chunks
from shadeproxy.origin.filetree.scanning import Scanner
from shadeproxy.origin.s3ops.store import UPLOADS, BucketEntry, Stored, no_such_key


class FileStore:
    """A store whose buckets are the sub-directories of ``root`` with names that do not begin with a dot."""

    def __init__(self, root: str, *, threads: int) -> None:
        self._tree = Tree(root)
        self._pool = FilePool(threads)
        self._scanner = Scanner()
        self._publishing = threading.Lock()
        self._swept: set[str] = set()

    async def buckets(self) -> Sequence[BucketEntry]:
        return await self._pool.run(self._buckets)

    async def create_bucket(self, name: str) -> None:
        await self._pool.run(lambda: self._create_bucket(name))

    async def delete_bucket(self, name: str) -> None:
        await self._pool.run(lambda: self._delete_bucket(name))

    async def stat(self, ref: ObjectRef) -> ObjectMeta:
        return await self._pool.run(lambda: self._stat(ref))

    @asynccontextmanager
    async def read(self, ref: ObjectRef) -> AsyncIterator[Stored]:
        if ref.key.endswith("/"):
            yield Stored(await self.stat(ref), _no_chunks)
            return
        file = await self._pool.acquire(lambda: self._open(ref))
        try:
            yield Stored(file.meta, lambda span: read_chunks(self._pool, file, span))
        finally:
            self._pool.dispose(file)

    @asynccontextmanager
    async def draft(self, ref: ObjectRef) -> AsyncIterator[writing.FileDraft]:
        target = writing.Target(self._tree, ref, self._publishing)
        await self._pool.run(lambda: self._prepare(ref.bucket))
        try:
            yield writing.FileDraft(self._pool, target)
        finally:
            self._pool.dispose(target)

    async def remove(self, ref: ObjectRef) -> None:
        await self._pool.run(lambda: self._remove(ref))

    async def scan(self, bucket: str, prefix: str, start_after: str, max_keys: int) -> ListPage:
        return await self._pool.run(lambda: self._scan(bucket, prefix, start_after, max_keys))

    async def aclose(self) -> None:
        await self._pool.aclose()

    def _buckets(self) -> list[BucketEntry]:
        try:
            with os.scandir(self._tree.root) as listed:
                found = [entry for entry in listed if not entry.name.startswith(".") and entry.is_dir()]
                return sorted(
                    (BucketEntry(entry.name, entry.stat().st_mtime) for entry in found),
                    key=lambda bucket: bucket.name,
                )
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(
                f"origin.path = {self._tree.root!r} is not a directory: create it, or set origin.path to the"
                " directory whose sub-directories are the buckets"
            ) from None
        except PermissionError:
            raise ConfigError(
                f"origin.path = {self._tree.root!r} cannot be read: give this user the right to list it"
            ) from None
        except OSError as error:
            raise translate(error, self._tree.root) from error

    def _create_bucket(self, name: str) -> None:
        with translated(name):
            try:
                os.mkdir(self._tree.bucket_path(name))
            except FileExistsError:
                raise OriginAnswer(409, "BucketAlreadyOwnedByYou", "You own this bucket already.") from None

    def _delete_bucket(self, name: str) -> None:
        path = self._tree.bucket(name)
        not_empty = OriginAnswer(409, "BucketNotEmpty", "The bucket you tried to delete is not empty.")
        gone = f"{self._tree.root}/{HIDDEN}-{uuid.uuid4().hex}"
        with translated(name):
            # No object and no upload may begin to exist between the look and the renaming.
            with self._publishing:
                if any(self._scanner.scan(path, prefix, "", 1).entries for prefix in ("", UPLOADS)):
                    raise not_empty
                os.rename(path, gone)
            shutil.rmtree(f"{gone}/{HIDDEN}", ignore_errors=True)
            try:
                for folder, _, _ in os.walk(gone, topdown=False):
                    os.rmdir(folder)
            except OSError:
                os.rename(gone, path)
                raise not_empty from None

    def _stat(self, ref: ObjectRef) -> ObjectMeta:
        self._tree.bucket(ref.bucket)
        place = self._tree.existing(ref)
        with translated(ref):
            if place.is_marker:
                return marker.describe_marker(place.path)
            found = os.stat(place.path)
            if not stat.S_ISREG(found.st_mode):
                raise no_such_key()
            return meta_of_file(place.path, ref.key, found)

    def _open(self, ref: ObjectRef) -> OpenFile:
        try:
            return OpenFile(self._tree.existing(ref).path, ref)
        except OriginAnswer as answer:
            if answer.code == "NoSuchKey":
                self._tree.bucket(ref.bucket)
            raise

    def _prepare(self, bucket: str) -> None:
        path = self._tree.bucket(bucket)
        if bucket not in self._swept:
            self._swept.add(bucket)
            writing.sweep_abandoned(path)

    def _remove(self, ref: ObjectRef) -> None:
        bucket = self._tree.bucket(ref.bucket)
        place = self._tree.find(ref)
        if place is not None:
            with translated(ref):
                writing.remove(place, bucket)

    def _scan(self, bucket: str, prefix: str, start_after: str, max_keys: int) -> ListPage:
        with translated(f"s3://{bucket}/{prefix}"):
            return self._scanner.scan(self._tree.bucket(bucket), prefix, start_after, max_keys)


async def _no_chunks(span: Span) -> AsyncGenerator[bytes, None]:
    """Yield no bytes, because the body of a directory marker is empty."""
    assert span.length == 0
    none: tuple[bytes, ...] = ()
    for chunk in none:
        yield chunk
