"""The protocol of a plain object store: named blobs in buckets, without anything of S3.

The *store* makes ``publish`` atomic: a reader sees the old version or the new one, never parts of both. A
version that was opened stays readable, or reading it raises. If a bucket or key is missing, the store raises
OriginAnswer 404. The *caller* (origin.py, the operations) checks names, preconditions of reads, and spans.
Keys that begin with RESERVED hold the caller's own state (uploads). A listing shows them only if its prefix
begins with RESERVED too.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from shadeproxy.core.conditions import FAILED_TEXT
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import Headers, ListPage, ObjectMeta, ObjectRef, Span

RESERVED = ".shadeproxy/"
UPLOADS = RESERVED + "uploads/"
DEFAULT_CONTENT_TYPE = "binary/octet-stream"


@dataclass(frozen=True, slots=True)
class BucketEntry:
    """A bucket. ``created_s``: Unix time of its creation."""

    name: str
    created_s: float


@dataclass(frozen=True, slots=True)
class Stored:
    """One opened version. ``chunks(span)`` yields exactly this span of it, or raises OriginError."""

    meta: ObjectMeta
    chunks: Callable[[Span], AsyncGenerator[bytes, None]]


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """A condition of a write: that the current version has the ETag ``if_match``, or that there is none
    (``if_absent``).
    """

    if_match: str | None = None
    if_absent: bool = False

    def check(self, current: ObjectMeta | None) -> None:
        """Raise OriginAnswer 412 PreconditionFailed, or 404 if the key is missing and there is an
        If-Match.
        """
        if self.if_match is not None:
            if current is None:
                raise no_such_key()
            if self.if_match != "*" and self.if_match.strip('"') != current.etag.strip('"'):
                raise precondition_failed()
        if self.if_absent and current is not None:
            raise precondition_failed()


ANY_VERSION = WriteCondition()


class Draft(Protocol):
    """An object that is being written. Readers do not see it before ``publish``."""

    async def write(self, chunk: bytes) -> None:
        """Append ``chunk`` to the body."""
        ...

    async def publish(self, headers: Headers, condition: WriteCondition = ANY_VERSION) -> ObjectMeta:
        """Make this object the current version. Raises OriginAnswer 412 if ``condition`` fails, and
        NotSupported if the store cannot keep ``headers``.
        """
        ...


class Store(Protocol):
    """A plain object store: reads and writes named blobs in buckets."""

    async def buckets(self) -> Sequence[BucketEntry]: ...

    async def create_bucket(self, name: str) -> None:
        """Create a bucket. Raises OriginAnswer 409 if it exists."""
        ...

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket. Raises OriginAnswer 409 if it is not empty."""
        ...

    async def stat(self, ref: ObjectRef) -> ObjectMeta: ...

    def read(self, ref: ObjectRef) -> AbstractAsyncContextManager[Stored]: ...

    def draft(self, ref: ObjectRef) -> AbstractAsyncContextManager[Draft]:
        """Begin a new version. If the block ends without ``publish``, the version is discarded."""
        ...

    async def remove(self, ref: ObjectRef) -> None:
        """Remove the current version. A missing key is no error; a missing bucket is one."""
        ...

    async def scan(self, bucket: str, prefix: str, start_after: str, max_keys: int) -> ListPage: ...

    async def aclose(self) -> None: ...


def no_such_key() -> OriginAnswer:
    return OriginAnswer(404, "NoSuchKey", "The specified key does not exist.")


def no_such_bucket() -> OriginAnswer:
    return OriginAnswer(404, "NoSuchBucket", "The specified bucket does not exist.")


def precondition_failed() -> OriginAnswer:
    return OriginAnswer(412, "PreconditionFailed", FAILED_TEXT)
