"""The port to storage: what every origin, wrapper and fake guarantees.

Rule 1: an origin raises only OriginError, NotSupported, InvalidRequest or Overloaded. A foreign exception is
translated where it enters. Rule 2: a read from ``open`` yields exactly ``span.length`` bytes or raises; it
never ends early without an error. (An answer without a length yields all bytes until a proper end.) Rule 3:
leaving a context manager early closes its connection. Rule 4: behaviour is added by wrapping another Origin
(limit, retry, faulty), never by flags. tests/origin/test_conformance*.py test these rules on every
implementation.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypedDict

from shadeproxy.core.delegated_body import BodyWriter
from shadeproxy.core.errors import BodyCutShort, OriginError
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.types import (
    SHARED,
    Headers,
    Intent,
    JobContext,
    ListPage,
    ObjectMeta,
    ObjectRef,
    Source,
    Span,
    Upstream,
)

Arrived = Callable[[int], None]
"""The type of a function that is called with the number of new bytes in a buffer, which fills from its front.
It must not raise.
"""

Receive = Callable[[memoryview, Arrived], Awaitable[None]]
"""The type of a function that fills a buffer, no longer than the rest of the span. It raises
like ``chunks``.
"""


class PassOn:
    """Marks an answer that does not identify its object (``ObjectMeta.identified``). One reader takes its
    bytes, in one pass; they are neither cached nor joined with other bytes.
    """

    __slots__ = ("admit",)

    def __init__(self, admit: Callable[[], bool] = lambda: True) -> None:
        self.admit = admit
        """Call this once before taking the body at a client's pace. False: the reader must not, because too
        many readers do so already.
        """


# Not frozen: each wrapper makes one, and a frozen dataclass takes five times as long to make.
@dataclass(slots=True)
class OriginRead:
    """An open body: ``chunks`` yields the bytes of ``span`` in order, in pieces of any size.

    ``meta.size`` is the length of the whole object, also when only a range was requested. ``meta.headers`` of
    a ranged answer lacks whole-object checksums. ``doubtful``: only the end of the body proves that the body
    and its metadata are right. ``pass_on``: set if the answer does not identify its object. Then
    ``meta.size`` may be UNKNOWN_BYTES, ``span`` ends at ENDLESS, and ``chunks`` end with the body.
    ``receive``: set if the bytes can go straight into a buffer; use it or ``chunks``, not both. ``surplus``:
    bytes of the last piece that did not fit into a buffer. ``relayed``: another proxy of the cluster gives
    the body, and counts the read.
    """

    meta: ObjectMeta
    span: Span
    chunks: AsyncIterator[bytes]
    receive: Receive | None = None
    doubtful: bool = False
    pass_on: PassOn | None = None
    surplus: bytes = b""
    relayed: bool = False

    def read_into(self, buffer: memoryview, arrived: Arrived) -> Awaitable[None]:
        """Fill ``buffer`` with the next bytes of ``span``, and call ``arrived`` for each arrival.

        Raises OriginError like ``chunks``, and BodyCutShort when the buffer is longer than the rest of
        ``span``.
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
    """Checksums that are known when the body has ended. The names are lower-case ``x-amz-checksum-*``;
    ``values`` are complete after the body. The caller checks them before it lets the body end well.
    """

    names: tuple[str, ...]
    values: Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """An S3 request for the origin, unchanged apart from its signature.

    ``raw_path`` is percent-encoded path style ("/bucket/key", as the client encoded the key; "/" for the
    service), ``raw_query`` without "?" and without signature parameters. ``headers`` are end-to-end fields
    without Host, Authorization, Content-Length, Transfer-Encoding, Expect and Connection. ``body`` None means
    no body. ``payload_hash``: hex SHA-256 that the client promised (the caller checks it as well), or
    UNSIGNED-PAYLOAD. ``trailers``: checksums to store with the body; an origin that cannot store them leaves
    them out. ``request_id``: the proxy's id, for error documents that this process writes. ``job``: the job
    that the client named; only another proxy of a cluster gets it.

    ``reads_current``: True for a GET or HEAD of the plain current object. In a cluster, the proxy that caches
    the object may answer it from its cache.

    ``here``: the objects that this process may write at the origin. None: all of them, as without a cluster.
    Other proxies of the cluster must write the other objects; if the set is empty, they write all of them.
    Only a DeleteObjects can be divided among proxies.
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
    here: frozenset[ObjectRef] | None = None
    job: JobContext | None = None
    reads_current: bool = False

    @property
    def elsewhere(self) -> bool:
        """True if the whole request is a write that another proxy must carry out."""
        return self.here is not None and not self.here

    @property
    def works_long(self) -> bool:
        """True if the origin may work long before a short answer, and send blanks meanwhile:
        CompleteMultipartUpload, CopyObject, UploadPartCopy, queries.
        """
        if self.method == "POST":
            return "delete" not in (part.partition("=")[0] for part in self.raw_query.split("&"))
        return any(name.lower() == "x-amz-copy-source" for name, _ in self.headers)


async def once(piece: bytes) -> AsyncIterator[bytes]:
    """Yield a body that is one piece."""
    yield piece


class Relayed(NamedTuple):
    """Tells which way a read took whose object another proxy of the cluster caches. ``node``: the proxy that
    answered; "" if it did not, and the origin answered. ``source``: where its bytes came from.
    """

    node: str
    source: Source


@dataclass(frozen=True, slots=True)
class ForwardResponse:
    """The origin's answer, unchanged: every end-to-end header in order, body streamed. ``relayed``: set for
    an answer that came from, or should have come from, another proxy of the cluster.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    relayed: Relayed | None = None


class HandedOver:
    """A read that callbacks began (callback_reads.py) and that a caller of ``Origin.open`` continues.

    ``error``: the failure that ended the read; None: the read stopped for another reason. ``received_bytes``:
    number of bytes of the body. ``started_s``: time at which the read began, by ``CountedOrigin.now_s``.
    ``check``: checksum of the bytes received, if the rest of the body must be verified too (``Check`` of
    verified.py). The wrappers take over the slot of the read, and the exchange whose answer is unread.
    """

    def __init__(
        self,
        *,
        started_s: float,
        error: OriginError | None = None,
        received_bytes: int = 0,
        slot: str | None = None,
        exchange: object | None = None,
        check: object | None = None,
        close: Callable[["HandedOver"], None] = lambda _handed: None,
    ) -> None:
        """``slot``: the client to which a read slot is charged. ``close``: releases a slot and an exchange
        that were not taken.
        """
        self.started_s = started_s
        self.error = error
        self.received_bytes = received_bytes
        self.check = check
        self._slot = slot
        self._exchange = exchange
        self._close = close

    def take_slot(self) -> str | None:
        """Return the slot, the first time; None afterwards."""
        slot, self._slot = self._slot, None
        return slot

    def take_exchange(self) -> object | None:
        """Return the exchange, the first time; None afterwards."""
        exchange, self._exchange = self._exchange, None
        return exchange

    def take_error(self) -> OriginError | None:
        """Return the error, the first time; None afterwards."""
        error, self.error = self.error, None
        return error

    def close(self) -> None:
        """Release a slot and an exchange that were not taken; idempotent."""
        self._close(self)


class Wanted(NamedTuple):
    """The arguments of ``Origin.open`` for one GET."""

    ref: ObjectRef
    span: Span | None
    if_match: str | None
    upstream: Upstream


class Sink(Protocol):
    """Receives the bytes of one read by callbacks. No call may raise."""

    def opened(
        self,
        meta: ObjectMeta,
        length: int,
        *,
        doubtful: bool = False,
        held: bool = False,
        memory: memoryview | None = None,
    ) -> memoryview | None:
        """Return memory for ``length`` bytes, or None to let a coroutine continue. ``doubtful``: see
        ``OriginRead``. ``held``: show readers nothing, not even the metadata, before ``arrived`` says that
        all bytes have come, because another attempt may bring other bytes. ``memory``: if given, the bytes
        arrive in this memory, so return it.
        """
        ...

    def arrived(self, count: int) -> None:
        """Note that ``count`` more bytes are in the memory."""
        ...

    def complete(self, writer: BodyWriter | None = None) -> None:
        """Note that all bytes came, and no more than announced. ``writer``: another process that has the
        bytes too, and can write them to a tier.
        """
        ...

    def failed(self, error: OriginError) -> None:
        """Note that the bytes are wrong, and that another attempt would not help."""
        ...

    def hand_over(self, handed: HandedOver) -> None:
        """Let a coroutine continue the read."""
        ...


class StartedRead(Protocol):
    """A read by callbacks that is under way."""

    def abort(self) -> None:
        """End the read without another call of its sink; idempotent."""
        ...


class CallbackOrigin(Protocol):
    """An origin that reads by callbacks."""

    lends_memory: bool
    """True if the reads bring memory along (``memory`` of ``Sink.opened``), which is charged elsewhere."""

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> StartedRead | None:
        """Begin a read. Return None, and do nothing, if that would have to wait."""
        ...


class OpenOptions(TypedDict, total=False):
    """The keywords of ``Origin.open``, for wrappers to pass on (PEP 692)."""

    span: Span | None
    if_match: str | None
    upstream: Upstream
    intent: Intent
    handed: HandedOver | None


class ListOptions(TypedDict, total=False):
    """The keywords of ``Origin.list_objects``, for wrappers to pass on."""

    start_after: str
    max_keys: int
    upstream: Upstream


class Origin(Protocol):
    """Remote object storage, as the engine uses it."""

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        """Return the metadata of the current version. Raises OriginAnswer (404, 403 ...), OriginUnavailable,
        and Unidentified if the origin's answer does not identify the version.
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
        handed: HandedOver | None = None,
    ) -> AbstractAsyncContextManager[OriginRead]:
        """Read ``span`` (None: the whole object) of the current version.

        ``span.stop`` beyond the end is clamped; a start at or beyond the end raises OriginAnswer 416. Raises
        ObjectChanged if ``if_match`` is not the current ETag. ``chunks`` may raise BodyCutShort at any point.
        ``intent`` sets the priority if there is a limit. ``handed``: a read of the same bytes that callbacks
        began and this call continues.
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
        """Return entries whose key starts with ``prefix`` and sorts after ``start_after`` (UTF-8 order)."""
        ...

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send any other operation to the origin. Error *answers* are returned here, not raised.

        Raises OriginUnavailable when there is no answer, NotSupported when this origin cannot do it. A
        request that may change something is sent at most once.
        """
        ...

    async def probe(self) -> str:
        """Send one cheap authenticated request. Return a text for ``shadeproxy check``. Raises
        like ``head``.
        """
        ...

    async def aclose(self) -> None:
        """Close connections; idempotent."""
        ...
