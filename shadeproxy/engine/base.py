"""The engine's interface to the listeners.

The flow of a GET: ``async with engine.open(request) as reading`` returns once the metadata is known (from the
cache, or from the headers of the origin's answer whose body is still arriving); the listener chooses status
and span by ``reading.meta``; then ``reading.body(span)`` yields the bytes. Leaving the context releases
everything, however much was read.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.conditions import Conditions, Verdict
from shadeproxy.core.errors import RangeNotSatisfiable
from shadeproxy.core.ranges import RangeSpec, pages_of
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
from shadeproxy.hints.datasets import Bits, Dataset, Ids
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, OriginRead
from shadeproxy.tiers.base import Location, Place, SendableBlocks, SendableFile
from shadeproxy.tiers.tier import Tier

NO_CONDITIONS = Conditions()


class Grant(IntEnum):
    """A right that the origin granted; a greater one includes the lesser."""

    HEAD = 1
    GET = 2


class ReadRequest(NamedTuple):
    """A request for bytes of one object.

    ``range``: as the client sent it (None: the whole object); the engine fetches its page first.
    ``conditions``: with them metadata comes from a HEAD, as the body may not be wanted, and no page is
    fetched for a 304 or 412. ``force_check``: ask the origin whether the cached version is current
    (``Cache-Control: no-cache``). ``upstream``: the client's credentials and rights at the origin. ``grant``:
    the right that the client needs; HEAD where no byte of the body is asked for.
    """

    ref: ObjectRef
    range: RangeSpec | None = None
    upstream: Upstream = SHARED
    intent: Intent = Intent.DEMAND
    job: JobContext | None = None
    conditions: Conditions = NO_CONDITIONS
    force_check: bool = False
    grant: Grant = Grant.GET


def span_needed(request: ReadRequest, meta: ObjectMeta) -> Span:
    """Return the span that the answer will carry, as far as the engine can see; empty for 304, 412, 416."""
    if request.conditions.evaluate(meta) is not Verdict.PROCEED:
        return Span(0, 0)
    if request.range is None or not request.conditions.range_applies(meta):
        return Span(0, meta.size)
    try:
        return request.range.resolve(meta.size)
    except RangeNotSatisfiable:
        return Span(0, 0)


def first_needed(request: ReadRequest) -> int | None:
    """Return the first byte that the answer will carry, whatever the metadata; None if they decide."""
    wanted = request.range
    if request.conditions or (wanted is not None and wanted.first is None):
        return None  # the start of a suffix range depends on the object's size
    return 0 if wanted is None or wanted.first is None else wanted.first


def only_page(request: ReadRequest, meta: ObjectMeta | None, first: int, page_size: int) -> int | None:
    """Return the number of the page that ``request`` needs, from byte ``first`` on; None if several are
    needed, or a check of the version. Without ``meta`` the object may still prove to have several.
    """
    if request.force_check:
        return None
    if meta is None:
        return first // page_size
    numbers = pages_of(span_needed(request, meta), page_size)
    return numbers.start if len(numbers) == 1 else None


class Hit(NamedTuple):
    """Bytes that are resident: read-only pieces in order, valid while referenced."""

    source: Source
    pieces: tuple[memoryview, ...]


NO_HIT = Hit(Source.RAM, ())
"""An answer without a body, from metadata alone."""


class PageHandle:
    """Page handle: a validated resident page, checked again by comparing one stamp.

    ``fresh_until_s``: Unix time from which the freshness rule asks for a check. ``slot`` and ``stamp``: the
    handle is valid as long as ``Residents.stamps[slot]`` is ``stamp``. Then ``window[start:stop]`` is the
    page's body; copy it, or pin it through ``tier``, before anything else runs. ``first``: the page's first
    byte within the object. ``can_wait``: touching the body may wait for a device, so ask ``tier.is_hot``
    first. ``sendable``: the blocks that may leave by sendfile. ``marked_sent``: all are marked as sent.
    ``place``: the page's place for other processes on this host, once asked for. ``access_record``: its last
    row for the access log (read/access_log.py).
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
        """Return start and stop, in the window, of the part of the object's ``span`` that the page holds."""
        offset = self.start - self.first
        return max(span.start + offset, self.start), min(span.stop + offset, self.stop)

    @property
    def whole(self) -> bool:
        """True if the page is all of its object."""
        return self.stop - self.start == self.meta.size

    def holds(self, span: Span) -> bool:
        """Return whether ``span`` of the object lies within the page."""
        return self.first <= span.start and span.stop <= self.first + self.stop - self.start


class SendfileSlice(NamedTuple):
    """Sendfile slice: bytes ``[start, stop)`` of a page handle's file, the same as those of its window.

    ``[first, last)`` may leave by sendfile, at once. Send other bytes, or later ones, from the view of
    ``pin``. ``file``: None where no byte may leave by sendfile.
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
    """The place of a piece of an object, for another process on this host.

    That process copies ``length`` bytes at ``offset`` of ``path``, then reads ``len(header)`` bytes at
    ``header_offset``. The copy is right only if these equal ``header``.
    """

    source: Source
    path: Path
    header_offset: int
    header: bytes
    offset: int
    length: int


class FoundSamples(NamedTuple):
    """The found samples. ``here``: bool[k], which of the requested ids were found; other columns have only
    these, in order. ``file``: index into ``files``; ``source``: into SOURCES; ``header``: V64. Offsets and
    lengths in bytes. ``uses``: rows for the access log, without their kinds.
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
    """An opened object of one version."""

    @property
    def meta(self) -> ObjectMeta:
        """Metadata; its ``size`` is UNKNOWN_BYTES if the origin sent none: then read the body whole."""
        ...

    @property
    def source(self) -> Source:
        """Source of the answer: the value of ``x-shade-cache``."""
        ...

    def body(self, span: Span) -> AsyncIterator[memoryview]:
        """Yield the bytes of ``span``, in order, in read-only pieces that stay valid while referenced.

        Raises OriginError when the rest is missing (cut short, changed). The bytes yielded so far are right,
        but the answer must be aborted, not finished. An empty span yields nothing.
        """
        ...


class ReadsNow(Protocol):
    """Reads without waiting: by the engine, or by a worker process (worker_reads.py)."""

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        """Return metadata that may answer without asking the origin; None: call ``open`` or ``stat``."""
        ...

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        """Return the tier for the answer to a HEAD: that of the first page, RAM when none is resident."""
        ...

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        """Return the bytes of ``span`` without waiting, counted as one demand read; ``meta`` is the last
        answer of ``usable_now``. Return None, and count nothing, if a page is not resident or cannot be
        touched without waiting, or the span has too many pages: then call ``open``.
        """
        ...

    def find_handle(self, ref: ObjectRef, first: int, now_s: float) -> PageHandle | None:
        """Return a page handle, for every client, for the page that holds byte ``first``. None: the page
        is not resident, or the origin decides for each client on the object.
        """
        ...

    def take(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        """Return the handle's bytes, counted as one demand read of ``job``; None when it is no longer valid.

        ``now_s``: Unix time. ``span``: of the object; None: all of the page. The bytes of a page of at most
        16 KiB are not pinned: copy them before anything else runs.
        """
        ...

    def take_slices(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> tuple[SendfileSlice, ...] | None:
        """Do as ``take``, but for sendfile; None also if a page is short or cannot be sent.

        ``span`` begins in the page, and may end in one of the next few: there is one slice for each page.
        """
        ...

    def place(self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span) -> Place | None:
        """Do as ``take``, but return the place of the page's record."""
        ...

    def cacheable(self, ref: ObjectRef) -> bool:
        """Return whether the rules and the origin's answers let ``ref`` be cached; else forward its reads."""
        ...


class ReadPath(ReadsNow, Protocol):
    """The engine's interface to listeners."""

    def open(self, request: ReadRequest) -> AbstractAsyncContextManager[Reading]:
        """Open for reading. Raises OriginAnswer (404, 403, ...), OriginUnavailable, Overloaded,
        ShuttingDown, RangeNotSatisfiable (when the origin says so before metadata is known), Unidentified:
        forward the read, for its object is not ``cacheable``.
        """
        ...

    async def stat(self, request: ReadRequest) -> tuple[ObjectMeta, Source]:
        """Return metadata (HeadObject), from the cache if the rule allows. Raises as ``open``."""
        ...

    def ready(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> bool:
        """Return whether ``hit`` would answer now, without pinning, recording or counting anything."""
        ...

    def locate(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """Do as ``hit``, but return the places of the bytes, in order."""
        ...

    def find_samples(
        self, dataset: Dataset, ids: Ids, job: JobContext | None, now_s: float
    ) -> FoundSamples | None:
        """Return places of samples of a dataset (i64[k]), at a hundredth of the cost of ``place``: those
        given to ``remember_sample``, with handles still valid. None: there are none.
        """
        ...

    def remember_sample(self, dataset: Dataset, sample_id: int, handle: PageHandle) -> None:
        """Remember the place of a whole sample, as ``place`` has just returned it."""
        ...

    def bypass(self, request: ReadRequest, span: Span | None) -> AbstractAsyncContextManager[OriginRead]:
        """Bypass the cache (see ``cacheable``): read from the origin as ``Origin.open`` does. Not counted."""
        ...

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send a request that is no cached read to the origin. Does not invalidate: see ``writing``."""
        ...

    def writing(self, refs: Iterable[ObjectRef]) -> AbstractAsyncContextManager[None]:
        """Wrap a write to ``refs``. Their cached pages and metadata are dropped before the write starts
        and again when the block is left, however it is left; reads in between are not stored. Leave the
        block before the client sees success. An empty key stands for the bucket itself (its rights, its
        existence): its cached pages are checked against the origin before they are served again.
        """
        ...
