"""The engine's interface to the listeners.

The flow of a GET: ``async with engine.open(request) as reading`` begins once the metadata is known, from the
cache or from the head of the origin's answer, whose body is still arriving. The listener chooses status and
span by ``reading.meta``. Then ``reading.body(span)`` yields the bytes. Leaving the context releases
everything, however much was read.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from enum import Enum, IntEnum, auto
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.conditions import Conditions
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import (
    SHARED,
    Intent,
    JobContext,
    ObjectMeta,
    ObjectRef,
    Source,
    Span,
    Upstream,
)
from shadeproxy.engine.access_records import AccessRecord, Uses
from shadeproxy.engine.ownership import Here
from shadeproxy.hints.datasets import Bits, Dataset, Ids
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, OriginRead
from shadeproxy.tiers.base import Location, Place, SendableBlocks, SendableFile
from shadeproxy.tiers.tier import Tier

NO_CONDITIONS = Conditions()


class Grant(IntEnum):
    """The right to an object that the origin granted to a client. A greater value includes the smaller
    ones.
    """

    HEAD = 1
    GET = 2


class ReadRequest(NamedTuple):
    """A request for bytes of one object.

    ``range``: the range that the client sent (None: the whole object); the engine fetches its first page
    first. ``conditions``: with conditions, metadata comes from a HEAD and no page is fetched for a 304 or
    412, because the body may not be wanted. ``force_check``: ask the origin whether the cached version is
    current (``Cache-Control: no-cache``). ``upstream``: the client's credentials and rights at the origin.
    ``grant``: the right that the client needs; HEAD when the client asks for no byte of the body.
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
    """The type of ``UNKNOWN``. Type checkers can so tell ``UNKNOWN`` from None."""

    UNKNOWN = auto()


UNKNOWN: Literal[NothingKnown.UNKNOWN] = NothingKnown.UNKNOWN
"""Result of ``ReadsNow.find_now`` for an unknown object."""


class Hit(NamedTuple):
    """Resident bytes of an answer: read-only pieces in order, valid while referenced."""

    source: Source
    pieces: tuple[memoryview, ...]


NO_HIT = Hit(Source.RAM, ())
"""The hit of an answer without a body, which needs metadata alone."""


class PageHandle:
    """A resident page that was found and validated once. Comparing one number shows whether it is still
    valid.

    ``slot`` and ``stamp``: the handle is valid as long as ``Residents.stamps[slot]`` is ``stamp``. While it
    is valid, ``window[start:stop]`` is the page's body; copy the body, or pin it through ``tier``, before any
    other code runs. ``fresh_until_s``: Unix time from which the freshness rule asks for a check. ``first``:
    the page's first byte within the object. ``can_wait``: touching the body may wait for a device, so ask
    ``tier.is_hot`` first. ``sendable``: the blocks that may leave by sendfile. ``marked_sent``: all these
    blocks are marked as sent. ``place``: the page's place for other processes on this host, if it was asked
    for. ``access_record``: the row that the last read through this handle added to the access log
    (read/access_log.py).
    """

    __slots__ = (
        "access_record",
        "can_wait",
        "first",
        "fresh_until_s",
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
        self.sendable: SendableBlocks | None = None
        self.marked_sent = False
        self.place: Place | None = None
        self.access_record: AccessRecord | None = None

    def bounds(self, span: Span) -> tuple[int, int]:
        """Return where the page's bytes of the object's ``span`` start and stop in the window."""
        offset = self.start - self.first
        return max(span.start + offset, self.start), min(span.stop + offset, self.stop)

    @property
    def whole(self) -> bool:
        """True if the object has no other page."""
        return self.stop - self.start == self.meta.size

    def holds(self, span: Span) -> bool:
        """Return whether ``span`` of the object lies within the page."""
        return self.first <= span.start and span.stop <= self.first + self.stop - self.start


class SendfileSlice(NamedTuple):
    """The bytes ``[start, stop)`` of a page handle's file, for sending by sendfile. They equal those of its
    window.

    Only bytes ``[first, last)`` may leave by sendfile, and only at once. Send other bytes, and bytes that
    must wait, from the view of ``pin``. ``file``: None if no byte may leave by sendfile.
    """

    handle: PageHandle
    file: SendableFile | None
    start: int
    first: int
    last: int
    stop: int

    def pin(self) -> memoryview:
        """Return the bytes, pinned. Raises TierError."""
        handle = self.handle
        return handle.tier.pin(handle.location)[self.start - handle.start : self.stop - handle.start]


class Located(NamedTuple):
    """The place of cached bytes of an object, for another process on this host.

    That process copies ``length`` bytes at ``offset`` of ``path``, then reads ``len(header)`` bytes at
    ``header_offset``. The copy is right only if these bytes equal ``header``.
    """

    source: Source
    path: Path
    header_offset: int
    header: bytes
    offset: int
    length: int


class FoundSamples(NamedTuple):
    """The samples that a lookup of k ids found. ``here``: bool[k], true for each id that was found. The other
    columns have one element for each found id, in the order of the ids. ``file``: index into ``files``;
    ``source``: index into SOURCES; ``header``: V64. Offsets and lengths are in bytes. ``uses``: rows for the
    access log, without their kinds.
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
    """One object that was opened for reading. All bytes that it gives are of one version."""

    @property
    def meta(self) -> ObjectMeta:
        """Metadata. Its ``size`` is UNKNOWN_BYTES if the origin sent none; then read the body to its end."""
        ...

    @property
    def source(self) -> Source:
        """Source of the answer: the value of ``x-shade-cache``."""
        ...

    def body(self, span: Span) -> AsyncIterator[memoryview]:
        """Yield the bytes of ``span``, in order, in read-only pieces that stay valid while referenced.

        Raises OriginError when the rest of the bytes is missing (cut short, or the object changed). The bytes
        yielded so far are right, but the answer must be aborted, not finished. An empty span yields nothing.
        """
        ...


class ReadsNow(Protocol):
    """Reads that are answered without waiting. The engine implements them, and worker processes
    (worker_reads.py) do.
    """

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        """Return metadata that may answer without asking the origin. None: call ``open`` or ``stat``."""
        ...

    def find_now(self, request: ReadRequest) -> ObjectMeta | NothingKnown | None:
        """Return the result of ``usable_now``. Return UNKNOWN instead if nothing is known of the object and
        this client may learn its metadata by a GET.
        """
        ...

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        """Return the tier that the answer to a HEAD names: the tier of the object's first page, or RAM if
        that page is not resident.
        """
        ...

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        """Return the bytes of ``span`` without waiting, counted as one demand read. ``meta``: the last result
        of ``usable_now``.

        Return None, and count nothing, if a page is not resident, if it cannot be touched without waiting, or
        if the span has too many pages. Then call ``open``.
        """
        ...

    def find_handle(self, ref: ObjectRef, first: int, now_s: float) -> PageHandle | None:
        """Return a page handle for the page that holds byte ``first``; it serves every client.

        Return None if the page is not resident, or if the origin must be asked for each client's rights.
        """
        ...

    def take(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        """Return the bytes of a page handle, counted as one demand read of ``job``; None if the handle is no
        longer valid.

        ``now_s``: Unix time. ``span``: the wanted span of the object; None: the whole page. The bytes of a
        page of at most 16 KiB are not pinned: copy them before any other code runs.
        """
        ...

    def take_slices(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> tuple[SendfileSlice, ...] | None:
        """Return sendfile slices instead of the bytes that ``take`` returns. Return None also if a page is
        short or cannot be sent by sendfile.

        ``span`` begins in the page, and may end in one of the next few pages. There is one slice for each
        page.
        """
        ...

    def place(self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span) -> Place | None:
        """Return where the page's record lies, instead of the bytes that ``take`` returns."""
        ...

    def cacheable(self, ref: ObjectRef) -> bool:
        """Return whether the rules and the origin's answers let ``ref`` be cached. If not, its reads are
        forwarded.
        """
        ...


class ReadPath(ReadsNow, Protocol):
    """The engine's interface to listeners."""

    def open(self, request: ReadRequest) -> AbstractAsyncContextManager[Reading]:
        """Open for reading.

        Raises OriginAnswer (404, 403, ...), OriginUnavailable, Overloaded, ShuttingDown; RangeNotSatisfiable
        when the origin says so before metadata is known; Unidentified when the object is not ``cacheable``:
        then forward the read.
        """
        ...

    async def stat(self, request: ReadRequest) -> tuple[ObjectMeta, Source]:
        """Return metadata for a HeadObject, from the cache if the rule allows that. Raises as ``open``."""
        ...

    def ready(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> bool:
        """Return whether ``hit`` would answer now. Pins, records and counts nothing."""
        ...

    def locate(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """Return the places of the bytes, in order. ``hit`` would return the bytes themselves."""
        ...

    def find_samples(
        self, dataset: Dataset, ids: Ids, job: JobContext | None, now_s: float
    ) -> FoundSamples | None:
        """Return the places of samples of a dataset, at a hundredth of what one call of ``place`` for each
        would cost. ``ids``: i64[k].

        A sample is found only if it was given to ``remember_sample`` and its page handle is still valid.
        None: no sample is found.
        """
        ...

    def remember_sample(self, dataset: Dataset, sample_id: int, handle: PageHandle) -> None:
        """Remember the place of a sample that lies in one page, just after ``place`` returned it."""
        ...

    def bypass(self, request: ReadRequest, span: Span | None) -> AbstractAsyncContextManager[OriginRead]:
        """Read an object that is not ``cacheable`` from the origin, as ``Origin.open`` does. The cache is
        neither asked nor filled, and the read is not counted.
        """
        ...

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send any request except a cached read to the origin. This drops nothing from the cache: wrap a
        write in ``writing``.
        """
        ...

    def writing(self, refs: Iterable[ObjectRef]) -> AbstractAsyncContextManager[Here]:
        """Wrap a write to ``refs``. The block gets a value; pass it on as ``ForwardRequest.here``. It names
        the objects that this process writes. In a cluster, other proxies may have to write some of them, or
        all.

        The cached pages and metadata of the objects are dropped before the write starts, and again when the
        block is left, however it is left. Reads in between are not stored. Leave the block before the client
        sees success. An empty key means the bucket itself (its rights, its existence): all cached pages of
        the bucket are checked with the origin before they are served again.

        Raises NotOwnerNow before the block, and WriteUnconfirmed when the block is left.
        """
        ...
