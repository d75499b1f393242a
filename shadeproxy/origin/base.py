"""The port to the origin, with the rules that every origin, every wrapper and every fake obeys.

Rule 1: an origin raises only OriginError, NotSupported, InvalidRequest or Overloaded. Other exceptions are
translated where they enter. Rule 2: a read from ``open`` yields exactly ``span.length`` bytes or raises; it
never ends early without an error. (An answer without a length yields all bytes, until the body ends
correctly.) Rule 3: leaving a context manager early closes its connection. Rule 4: behaviour is added by
wrapping another Origin (as limit.py and retry.py do), never by flags. tests/origin/test_conformance*.py test
these rules on every implementation.
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
"""The type of a function that is called each time that more bytes have arrived in a buffer, which fills from
its front. The argument is the number of new bytes. The function must not raise.
"""

Receive = Callable[[memoryview, Arrived], Awaitable[None]]
"""The type of a function that fills a buffer with the next bytes of a span. The buffer may not be longer than
the rest of the span. The function raises the same errors as ``OriginRead.chunks``.
"""


class PassOn:
    """Marks an answer that does not identify its object (``ObjectMeta.identified``). One reader takes its
    bytes, once. They are neither cached nor joined with bytes of other answers.
    """

    __slots__ = ("admit",)

    def __init__(self, admit: Callable[[], bool] = lambda: True) -> None:
        self.admit = admit
        """The reader calls this once, before it takes the body only as fast as a client does. If the result
        is False, the reader must not do so, because too many readers do it already.
        """


# Not frozen, because each wrapper makes one, and a frozen dataclass takes five times as long to make.
@dataclass(slots=True)
class OriginRead:
    """An open body: ``chunks`` yields the bytes of ``span`` in order, in pieces of any size.

    ``meta.size`` is the length of the whole object, also if only a range was requested. ``meta.headers`` of a
    range lacks checksums of the whole object. ``doubtful``: only the end of the body proves that the body and
    its metadata are right. ``pass_on``: set if the answer does not identify its object. Then ``meta.size``
    may be UNKNOWN_BYTES, ``span`` ends at ENDLESS, and ``chunks`` ends with the body. ``receive``: set if the
    bytes can go straight into a buffer; use either ``receive`` or ``chunks``. ``surplus``: bytes of the last
    piece that did not fit into a buffer. ``relayed``: True if another proxy of the cluster sends the body,
    and counts the read.
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
        """Fill ``buffer`` with the next bytes of ``span``. Call ``arrived`` each time that bytes arrive.

        Raises OriginError as ``chunks``, and BodyCutShort if the buffer is longer than the rest of ``span``.
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
    """Checksums that are known only when the body has ended. ``names``: lower-case, ``x-amz-checksum-*``.
    ``values``: returns the checksums after the body. The caller checks them before it lets the body end
    without an error.
    """

    names: tuple[str, ...]
    values: Callable[[], Mapping[str, str]]


_SOON = frozenset({"delete", "uploads"})
"""Query parameters of quick POST operations: DeleteObjects, CreateMultipartUpload."""


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """An S3 request for the origin, unchanged except for its signature.

    ``raw_path``: percent-encoded path style, "/bucket/key" as the client encoded the key, or "/" for the
    service. ``raw_query``: the query without "?" and without signature parameters. ``headers``: end-to-end
    fields except Host, Authorization, Content-Length, Transfer-Encoding, Expect and Connection. ``body``:
    None means no body. ``payload_hash``: the SHA-256 as hex that the client promised (the caller checks it
    too), or UNSIGNED-PAYLOAD. ``trailers``: checksums to store with the body; an origin that cannot store
    them leaves them out. ``request_id``: the proxy's id, for error documents that this process writes.
    ``job``: the job that the client named; only another proxy of a cluster gets it.

    ``reads_current``: True for a GET or HEAD of the plain current object. In a cluster, the proxy that caches
    the object may answer such a request from its cache.

    ``here``: those objects of the request that this process may write at the origin; None: all of them, as
    without a cluster. Other proxies of the cluster must write the rest. With an empty set, another proxy must
    carry out the whole request. Only a DeleteObjects can be divided among proxies.
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
        """True if another proxy must carry out the whole request, which is a write."""
        return self.here is not None and not self.here

    @property
    def works_long(self) -> bool:
        """True if the origin may work for long before it sends a short answer, and may send blanks meanwhile:
        CompleteMultipartUpload, CopyObject, UploadPartCopy, queries.
        """
        if self.method == "POST":
            return not _SOON.intersection(part.partition("=")[0] for part in self.raw_query.split("&"))
        return any(name.lower() == "x-amz-copy-source" for name, _ in self.headers)


async def once(piece: bytes) -> AsyncIterator[bytes]:
    """Yield ``piece`` as a whole body."""
    yield piece


class Relayed(NamedTuple):
    """The source of an answer to a read whose object another proxy of the cluster caches. ``node``: the proxy
    that answered; "" if the origin answered instead. ``source``: where the bytes came from.
    """

    node: str
    source: Source


@dataclass(frozen=True, slots=True)
class ForwardResponse:
    """The origin's answer, unchanged: every end-to-end field in its order, and the body as a stream.
    ``relayed``: set if the answer came, or should have come, from another proxy of the cluster.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    relayed: Relayed | None = None


class HandedOver:
    """A read that callbacks or an earlier attempt began, and that a caller of ``Origin.open`` continues.

    ``error``: the failure that ended the read by callbacks; None if it stopped for another reason.
    ``received_bytes``: bytes of the body that the read received. ``started_s``: the start of the read, on the
    clock of ``CountedOrigin.now_s``. ``check``: the checksum of the bytes received, if the rest of the body
    must be verified too (``Check`` of verified.py). The wrappers of the origin take over the read's slot, and
    the exchange, if there is one whose answer is still unread.
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
        keeps_slot: bool = False,
        close: Callable[["HandedOver"], None] = lambda _handed: None,
    ) -> None:
        """``slot``: the client to which the read slot is charged. ``keeps_slot``: an attempt that ends leaves
        its slot to the next one. ``close``: releases slot and exchange if no wrapper took them.
        """
        self.started_s, self.error = started_s, error
        self.received_bytes = received_bytes
        self.check, self.keeps_slot = check, keeps_slot
        self._slot = slot
        self._exchange = exchange
        self._close = close

    def take_slot(self) -> str | None:
        """Return the slot at the first call; None at later ones."""
        slot, self._slot = self._slot, None
        return slot

    def end(self, slot: str, give: Callable[[str], None]) -> None:
        """End an attempt: release its slot by ``give``, or keep it (``keeps_slot``)."""
        if self.keeps_slot:
            self._slot = slot
            self._close = lambda handed: None if (kept := handed.take_slot()) is None else give(kept)
        else:
            give(slot)

    def take_exchange(self) -> object | None:
        """Return the exchange at the first call; None at later ones."""
        exchange, self._exchange = self._exchange, None
        return exchange

    def take_error(self) -> OriginError | None:
        """Return the error at the first call; None at later ones."""
        error, self.error = self.error, None
        return error

    def close(self) -> None:
        """Release the slot and the exchange unless they were taken; idempotent."""
        self._close(self)


class Wanted(NamedTuple):
    """The arguments of ``Origin.open`` for one GET."""

    ref: ObjectRef
    span: Span | None
    if_match: str | None
    upstream: Upstream


class Sink(Protocol):
    """Receives the bytes of one read by callbacks. No method may raise."""

    def opened(
        self,
        meta: ObjectMeta,
        length: int,
        *,
        doubtful: bool = False,
        held: bool = False,
        memory: memoryview | None = None,
    ) -> memoryview | None:
        """Return memory for ``length`` bytes, or None if a coroutine must continue the read. ``doubtful``:
        see ``OriginRead``. ``held``: show readers nothing, not even the metadata, before ``arrived`` says
        that all bytes have arrived, because another attempt may bring other bytes. ``memory``: if given, the
        bytes arrive in this memory, and it must be returned.
        """
        ...

    def arrived(self, count: int) -> None:
        """Note that ``count`` more bytes are in the memory."""
        ...

    def complete(self, writer: BodyWriter | None = None) -> None:
        """Note that all bytes have arrived, and no more than were announced. ``writer``: another process that
        has the bytes too, and can write them to a tier.
        """
        ...

    def failed(self, error: OriginError) -> None:
        """Note that the bytes are wrong, and that a further attempt would not help."""
        ...

    def hand_over(self, handed: HandedOver) -> None:
        """Let a coroutine continue the read, by ``Origin.open`` with ``handed``."""
        ...


class StartedRead(Protocol):
    """A read by callbacks that is under way."""

    def abort(self) -> None:
        """End the read. No method of its sink is called any more. Idempotent."""
        ...


class CallbackOrigin(Protocol):
    """An origin that reads by callbacks."""

    lends_memory: bool
    """True if the reads bring memory along (``memory`` of ``Sink.opened``). The ledger does not count it."""

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> StartedRead | None:
        """Begin a read. Return None, with nothing done, if it would have to wait before it can begin."""
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
    """Remote object storage, with the methods that the engine calls."""

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        """Return the metadata of the current version. Raises OriginAnswer (404, 403 ...), OriginUnavailable,
        and Unidentified if the answer does not identify the version.
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
        """Read ``span`` of the current version; None means the whole object.

        A ``span.stop`` beyond the end is clamped. A start at or beyond the end raises OriginAnswer 416.
        ``Span(-n, 0)`` asks for the last ``n`` bytes, or for all of a shorter object. The span of the result
        counts from the object's start. Raises ObjectChanged if ``if_match`` is not the current ETag.
        ``chunks`` may raise BodyCutShort at any point. ``intent``: the priority of the read if reads are
        limited. ``handed``: a read of the same bytes that was begun before, and that this call continues.
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
        """Return objects whose key begins with ``prefix`` and comes after ``start_after``, in the UTF-8 order
        of the keys.
        """
        ...

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send any other operation to the origin. Error *answers* are returned, not raised.

        Raises OriginUnavailable if there is no answer, NotSupported if this origin cannot carry out the
        operation. A request that may change something is sent at most once.
        """
        ...

    async def probe(self) -> str:
        """Send one cheap authenticated request, and return a text for ``shadeproxy check``. Raises as
        ``head``.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections; idempotent."""
        ...
