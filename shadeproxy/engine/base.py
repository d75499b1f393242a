"""The engine's interface to the listeners.

A GET takes these steps. ``async with engine.open(request) as reading`` enters its block once the object's
metadata is known, from the cache or from the head of the origin's answer. The body may still be arriving
then. The listener derives the status and the span of its answer from ``reading.meta``. Then
``reading.body(span)`` yields the bytes. Leaving the block releases the pins and flights of the read, however
many bytes were read.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum, IntEnum, auto
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.conditions import Conditions
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import SHARED, Intent, JobContext, ObjectMeta, ObjectRef, Source, Span, Upstream
from shadeproxy.engine.access_records import AccessRecord, Uses
from shadeproxy.engine.ownership import Here
from shadeproxy.hints.datasets import Bits, Dataset, Ids
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, OriginRead
from shadeproxy.tiers.base import Location, Place, SendableBlocks, SendableFile
from shadeproxy.tiers.tier import Tier

NO_CONDITIONS = Conditions()
LoadAgain = Callable[["PageHandle"], Awaitable[None]]


class Grant(IntEnum):
    """The right that the origin granted a client for an object. A greater value includes the smaller ones."""

    HEAD = 1
    GET = 2


class ReadRequest(NamedTuple):
    """A request for bytes of one object.

    ``range``: the range that the client sent; None: the whole object. The engine fetches the first page of
    the range first. ``conditions``: if one may end in 304, the engine gets the metadata by a HEAD, because a
    304 needs no page. ``force_check``: ask the origin whether the cached version is current
    (``Cache-Control: no-cache``). ``upstream``: the client's credentials and rights at the origin. ``grant``:
    the right that the client needs; HEAD if the client asks for no byte of the body.
    """

    ref: ObjectRef
    range: RangeSpec | None = None
    upstream: Upstream = SHARED
    intent: Intent = Intent.DEMAND
    job: JobContext | None = None
    conditions: Conditions = NO_CONDITIONS
    force_check: bool = False
    grant: Grant = Grant.GET


class NothingKnown(Enum):
    """The type of ``UNKNOWN``. With a type of its own, type checkers can tell ``UNKNOWN`` from None."""

    UNKNOWN = auto()


UNKNOWN: Literal[NothingKnown.UNKNOWN] = NothingKnown.UNKNOWN
"""The result of ``ReadsNow.find_now`` for an object of which the cache knows nothing."""


class Hit(NamedTuple):
    """The bytes of an answer, all from resident pages. ``pieces``: read-only views in order, valid while
    referenced.
    """

    source: Source
    pieces: tuple[memoryview, ...]


NO_HIT = Hit(Source.RAM, ())
"""The hit for an answer without a body, which needs only metadata."""


class PageHandle:
    """A resident page, or stored part of a page, that a reader has found and validated. Comparing one number
    shows whether the handle is still valid.

    ``slot`` and ``stamp``: the handle is valid as long as ``Residents.stamps[slot]`` is ``stamp``. While it
    is valid, ``window[start:stop]`` is the page's body. Copy it, or pin it through ``tier``, before any other
    code runs. ``fresh_until_s``: Unix time from which the freshness rule asks for a check. ``first``: the
    first byte, within the object. ``can_wait``: True if touching the body may wait for a device; then ask
    ``tier.is_hot`` first. ``load_again``: loads and checks such a page again while it is pinned; raises
    TierError. ``sendable``: the blocks that may leave by sendfile; None: the page is not sent in slices.
    ``marked_sent``: True if all these blocks are marked as sent. ``place``: the page's place for other
    processes on this host, if a caller asked for it. ``access_record``: the row that the last read through
    this handle added to the access log (read/access_log.py). ``body_hash``: the hash that the whole body must
    have before bytes are sent; None: no check is needed (``Tier.hash_to_check``).
    """

    __slots__ = (
        "access_record",
        "body_hash",
        "can_wait",
        "first",
        "fresh_until_s",
        "load_again",
        "location",
        "marked_sent",
        "meta",
        "object_hash",
        "place",
        "ref",
        "sendable",
        "slot",
        "source",
        "stamp",
        "start",
        "stop",
        "tier",
        "window",
    )  # fmt: skip

    def __init__(
        self,
        ref: ObjectRef,
        meta: ObjectMeta,
        fresh_until_s: float,
        *,
        first: int,
        slot: int,
        stamp: int,
        object_hash: int,
        location: Location,
        tier: Tier,
        source: Source,
        can_wait: bool,
        window: memoryview,
        start: int,
        stop: int,
    ) -> None:
        self.ref = ref
        self.meta = meta
        self.fresh_until_s = fresh_until_s
        self.first = first
        self.slot = slot
        self.stamp = stamp
        self.object_hash = object_hash
        self.location = location
        self.tier = tier
        self.source = source
        self.can_wait = can_wait
        self.window = window
        self.start = start
        self.stop = stop
        self.load_again: LoadAgain | None = None
        self.sendable: SendableBlocks | None = None
        self.marked_sent = False
        self.place: Place | None = None
        self.access_record: AccessRecord | None = None
        self.body_hash: int | None = None

    def bounds(self, span: Span) -> tuple[int, int]:
        """Return start and stop, in the window, of those bytes of the page that lie in ``span``, a span of
        the object.
        """
        offset = self.start - self.first
        return max(span.start + offset, self.start), min(span.stop + offset, self.stop)

    @property
    def whole(self) -> bool:
        """True if the object has no other page."""
        return self.stop - self.start == self.meta.size

    @property
    def end(self) -> int:
        """The byte of the object after the last one of the page or part."""
        return self.first + self.stop - self.start

    def holds(self, span: Span) -> bool:
        """Return whether ``span`` of the object lies within the page or part."""
        return self.first <= span.start and span.stop <= self.first + self.stop - self.start


class SendfileSlice(NamedTuple):
    """The bytes ``[start, stop)`` of a page handle's file, for sending by sendfile. They are also the bytes
    ``[start, stop)`` of the handle's window.

    Only bytes ``[first, last)`` may leave by sendfile, and only at once. All other bytes, and bytes that must
    wait, are sent from the view that ``pin`` returns. ``file``: None if no byte may leave by sendfile.
    """

    handle: PageHandle
    file: SendableFile | None
    start: int
    first: int
    last: int
    stop: int

    def pin(self) -> memoryview:
        """Pin the page in the turn in which its handle was validated. Return the bytes ``[start, stop)``."""
        start, handle = self.handle.start, self.handle
        body = handle.tier.pin_window(handle.location, start, handle.stop)
        return body[self.start - start : self.stop - start]


class Located(NamedTuple):
    """The place of cached bytes of an object, for another process on this host.

    The other process copies ``length`` bytes at ``offset`` of ``path``, and then reads ``len(header)`` bytes
    at ``header_offset``. If these bytes equal ``header``, the copy is right. If not, another page has taken
    the place.
    """

    source: Source
    path: Path
    header_offset: int
    header: bytes
    offset: int
    length: int


class FoundSamples(NamedTuple):
    """The samples that a lookup of k ids has found. ``here``: bool[k], True for each id that was found. The
    other columns have one element for each found id, in the order of the ids. ``file``: index into ``files``.
    ``source``: index into SOURCES. ``header``: V64. Offsets and lengths are in bytes. ``uses``: for each
    found sample a row of the access log, in which the field ``kind`` is not set yet.
    """

    here: Bits
    files: list[Path]
    file: NDArray[np.uint16]
    header_offset: Ids
    header: NDArray[np.void]
    offset: Ids
    length: Ids
    source: NDArray[np.uint8]
    uses: Uses


class Reading(Protocol):
    """One object that was opened for reading. All bytes that the reading gives are of one version."""

    @property
    def meta(self) -> ObjectMeta:
        """Metadata of the object. If the origin sent no size, ``size`` is UNKNOWN_BYTES; then read the body
        to its end.
        """
        ...

    @property
    def source(self) -> Source:
        """Source of the answer: the value of ``x-shade-cache``."""
        ...

    def body(self, span: Span) -> AsyncIterator[memoryview]:
        """Yield the bytes of ``span``, in order, in read-only pieces that stay valid while referenced. An
        empty span yields nothing.

        Raises OriginError if the rest of the bytes cannot come, because the body was cut short or the object
        changed. All bytes yielded before are right. Then abort the answer, because a normal end would make it
        look complete.
        """
        ...


class ReadsNow(Protocol):
    """Reads that are answered without waiting. The engine implements this interface, and so does
    ``WorkerReads`` in worker processes (worker_reads.py).
    """

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        """Return metadata that may answer without asking the origin. None: call ``open`` or ``stat``."""
        ...

    def find_now(self, request: ReadRequest) -> ObjectMeta | NothingKnown | None:
        """Return the result of ``usable_now``; but UNKNOWN if the cache knows nothing of the object, and this
        client may learn the object's metadata by a GET.
        """
        ...

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        """Return the tier that the answer to a HEAD names: the tier of the object's first page, or RAM if
        that page is not resident.
        """
        ...

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        """Return the bytes of ``span`` without waiting, and count one demand read. ``meta``: the last result
        of ``usable_now``.

        Return None, and count nothing, if a page is not resident, if a page cannot be touched without
        waiting, or if the span has too many pages. Then call ``open``.
        """
        ...

    def find_handle(self, ref: ObjectRef, first: int, now_s: float) -> PageHandle | None:
        """Return a handle of the page that holds byte ``first`` of the object. If the page is not resident,
        return a handle of the stored part that begins with this byte. The handle may serve every client.

        A part may end anywhere, so ask ``PageHandle.holds`` before a span is taken. Return None if nothing is
        resident, or if the origin must be asked for each client's rights.
        """
        ...

    def take(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        """Return the bytes of a page handle, and count one demand read of ``job``. Return None if the handle
        is no longer valid.

        ``now_s``: Unix time. ``span``: a span of the object that the handle holds; None: the whole page. If a
        page has at most 16 KiB, its bytes are not pinned: copy them before any other code runs.
        """
        ...

    def take_slices(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> tuple[SendfileSlice, ...] | None:
        """Return the bytes that ``take`` would return as sendfile slices, one for each page, and count the
        read. Return None as ``take`` does, and also if a page is short or cannot be sent by sendfile.

        ``span`` begins in the page of ``handle``, and may end in one of the next few pages.
        """
        ...

    def place(self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span) -> Place | None:
        """Return where the page's record lies, without its bytes, and count the read."""
        ...

    def cacheable(self, ref: ObjectRef) -> bool:
        """Return whether ``ref`` may be cached, by the rules and by the origin's answers so far. Reads of an
        object that may not be cached are forwarded.
        """
        ...


class ReadPath(ReadsNow, Protocol):
    """The engine's interface to listeners: reads, forwarded requests and writes."""

    def open(self, request: ReadRequest) -> AbstractAsyncContextManager[Reading]:
        """Open an object for reading.

        Raises OriginAnswer (404, 403, ...), OriginUnavailable, Overloaded or ShuttingDown. Raises
        RangeNotSatisfiable if the origin says so before the metadata is known. Raises Unidentified if the
        object is not ``cacheable``; then forward the read.
        """
        ...

    async def stat(self, request: ReadRequest) -> tuple[ObjectMeta, Source]:
        """Return metadata for a HeadObject, from the cache if the freshness rule allows this. Raises as
        ``open``.
        """
        ...

    def ready(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> bool:
        """Return whether ``hit`` would answer now. Pins, records and counts nothing."""
        ...

    def locate(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """Return the places of the bytes that ``hit`` would return, in order, and count one demand read."""
        ...

    def find_samples(
        self, dataset: Dataset, ids: Ids, job: JobContext | None, now_s: float
    ) -> FoundSamples | None:
        """Return the places of samples of a dataset. ``ids``: i64[k]. One call takes a hundredth of the time
        of k calls of ``place``.

        A sample is found only if it was given to ``remember_sample`` and its page handle is still valid.
        Return None if no sample is found.
        """
        ...

    def remember_sample(self, dataset: Dataset, sample_id: int, handle: PageHandle) -> None:
        """Remember the place of a sample within one page. Call this just after ``place`` returned it."""
        ...

    def bypass(self, request: ReadRequest, span: Span | None) -> AbstractAsyncContextManager[OriginRead]:
        """Read an object that is not ``cacheable`` from the origin, as ``Origin.open`` does. The cache is
        neither asked nor filled, and the read is not counted.
        """
        ...

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send any request except a cached read to the origin. This call drops nothing from the cache: wrap a
        write in ``writing``, which drops the old pages.
        """
        ...

    def writing(self, refs: Iterable[ObjectRef]) -> AbstractAsyncContextManager[Here]:
        """Wrap a write to ``refs``. The block gets the objects that this process writes; pass them on as
        ``ForwardRequest.here``. In a cluster, other proxies may have to write some of the objects, or all.

        The cached pages and metadata of the objects are dropped before the write starts. They are dropped
        again when the block is left, however it is left. Reads in between are not stored. Leave the block
        before the client sees success. An empty key means the bucket itself (its rights, its existence): each
        cached page of the bucket is then checked with the origin before it is served again.

        Raises NotOwnerNow before the block, and WriteUnconfirmed when the block is left.
        """
        ...
