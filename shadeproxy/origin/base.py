"""The port to storage: what every origin, wrapper and fake guarantees.

Rule 1: an origin raises only OriginError, NotSupported, InvalidRequest or Overloaded; a foreign exception
is translated where it enters. Rule 2: ``open`` either yields exactly ``span.length`` bytes or raises; it
never ends early in silence. (Of an answer without a length it yields what comes until it ends well.)
Rule 3: leaving a context manager early closes the connection behind it.
Rule 4: behaviour is added by wrapping another Origin (limit, retry, faulty), never by flags.
tests/origin/test_conformance*.py hold these sentences as tests; every implementation runs them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict

from shadeproxy.core.errors import BodyCutShort
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.types import SHARED, Headers, Intent, ListPage, ObjectMeta, ObjectRef, Span, Upstream

Arrived = Callable[[int], None]
"""Told how many more bytes lie in the buffer, in order from its front. Must not raise."""

Receive = Callable[[memoryview, Arrived], Awaitable[None]]
"""Fill a buffer that is no longer than what is to come, or raise as ``chunks`` does."""


class PassOn:
    """Marks an answer that does not identify its object (``ObjectMeta.identified``). Its bytes belong to one
    reader, in one pass; they are neither kept nor put together with others.
    """

    __slots__ = ("claim",)

    def __init__(self) -> None:
        self.claim: Callable[[], bool] = lambda: True
        """Called once by a reader that will take the body at a client's pace; False: not this one, because
        too many do."""


@dataclass(slots=True)  # frozen, it takes five times as long to make, and each wrapper makes one
class OriginRead:
    """An open body: ``chunks`` yields the bytes of ``span`` in order, in pieces of any size.

    ``meta.size`` is the length of the whole object, also when only a range was asked.
    ``meta.headers`` of a ranged answer lacks whole-object checksums.
    ``doubtful``: only the end of the body will show whether it, and what was said of its object, is right.
    ``pass_on``: given where the answer does not identify its object. Its ``meta.size`` may be UNKNOWN_BYTES;
    then ``span`` ends at ENDLESS, and ``chunks`` with the body.
    ``receive``: given where the bytes can come straight into a buffer; use it or ``chunks``, not both.
    ``surplus``: bytes of the last piece that a buffer had no room for.
    """

    meta: ObjectMeta
    span: Span
    chunks: AsyncIterator[bytes]
    receive: Receive | None = None
    doubtful: bool = False
    pass_on: PassOn | None = None
    surplus: bytes = b""

    def read_into(self, buffer: memoryview, arrived: Arrived) -> Awaitable[None]:
        """Fill ``buffer`` with the next bytes of ``span``, telling ``arrived`` of each arrival.

        Raises OriginError as ``chunks`` does, and BodyCutShort when the buffer is longer than ``span``.
        """
        if len(buffer) > self.span.length:
            raise BodyCutShort(f"the origin has {self.span.length} bytes where {len(buffer)} were expected")
        receive = self.receive or self._copy_into
        return receive(buffer, arrived)

    async def _copy_into(self, buffer: memoryview, arrived: Arrived) -> None:
        filled = 0
        chunk: bytes | None = self.surplus
        while filled < len(buffer):
            chunk = chunk or await anext(self.chunks, None)
            if chunk is None:
                raise BodyCutShort(f"the origin ended a body {len(buffer) - filled} bytes early")
            count = min(len(chunk), len(buffer) - filled)
            buffer[filled : filled + count] = chunk[:count]
            filled += count
            self.surplus = chunk = chunk[count:]
            arrived(count)


class Trailers(NamedTuple):
    """Checksums of a body that are known when it has ended: lower-case ``x-amz-checksum-*`` names, and
    ``values``, complete from then on. The caller has checked them before the body ends well.
    """

    names: tuple[str, ...]
    values: Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """An S3 request to be carried out at the origin as it stands, apart from its signature.

    ``raw_path`` is percent-encoded path style ("/bucket/key", as the client encoded the key; "/" for the
    service), ``raw_query`` without "?" and without signature parameters. ``headers`` are end-to-end
    fields without Host, Authorization, Content-Length, Transfer-Encoding, Expect and Connection.
    ``body`` None means no body. ``payload_hash``: hex SHA-256 that the client promised (the caller
    checks it as well), or UNSIGNED-PAYLOAD. ``trailers``: checksums to store with the body, where that can
    be; an origin that cannot leaves them out. ``request_id``: ours, for errors that the origin words here.
    """

    method: str
    ref: ObjectRef
    raw_path: str
    raw_query: str = ""
    headers: Headers = ()
    body: AsyncIterator[bytes] | None = None
    content_length: int | None = None
    payload_hash: str = UNSIGNED_PAYLOAD
    upstream: Upstream = SHARED
    trailers: Trailers | None = None
    request_id: str = ""

    @property
    def works_long(self) -> bool:
        """Return whether the origin may take long over a short answer and send blanks meanwhile:
        CompleteMultipartUpload, CopyObject, UploadPartCopy, queries.
        """
        if self.method == "POST":
            return "delete" not in (part.partition("=")[0] for part in self.raw_query.split("&"))
        return any(name.lower() == "x-amz-copy-source" for name, _ in self.headers)


@dataclass(frozen=True, slots=True)
class ForwardResponse:
    """The origin's answer, untouched: every end-to-end header in order, body streamed."""

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]


class OpenOptions(TypedDict, total=False):
    """The keywords of ``Origin.open``, for wrappers to pass on (PEP 692)."""

    span: Span | None
    if_match: str | None
    upstream: Upstream
    intent: Intent


class ListOptions(TypedDict, total=False):
    """The keywords of ``Origin.list_objects``, for wrappers to pass on."""

    start_after: str
    max_keys: int
    upstream: Upstream


class Origin(Protocol):
    """Remote object storage, as the engine sees it."""

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        """Metadata of the current version. Raises OriginAnswer (404, 403 ...), OriginUnavailable, and
        Unidentified where the origin's answer does not identify it.
        """
        ...

    def open(
        self,
        ref: ObjectRef,
        *,
        span: Span | None = None,
        if_match: str | None = None,
        upstream: Upstream = SHARED,
        intent: Intent = Intent.DEMAND,
    ) -> AbstractAsyncContextManager[OriginRead]:
        """Read ``span`` (None: the whole object) of the current version.

        ``span.stop`` beyond the end is clamped; a start at or beyond the end raises OriginAnswer 416.
        With ``if_match`` and another current ETag: ObjectChanged. BodyCutShort may be raised by
        ``chunks`` at any point. ``intent`` orders who goes first where a limit applies.
        """
        ...

    async def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        start_after: str = "",
        max_keys: int = 1000,
        upstream: Upstream = SHARED,
    ) -> ListPage:
        """Entries whose key starts with ``prefix`` and is greater than ``start_after`` (UTF-8 order)."""
        ...

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Carry out any other operation. Error *answers* are responses here, not exceptions.

        Raises OriginUnavailable when there is no answer, NotSupported when this origin cannot do it.
        What may change something is sent at most once.
        """
        ...

    async def probe(self) -> str:
        """One cheap authenticated request; a sentence for ``shadeproxy check``. Raises as ``head``."""
        ...

    async def aclose(self) -> None:
        """Close connections; idempotent."""
        ...
