"""What the listeners see of the engine, and nothing else.

The flow of a GET: ``async with engine.open(request) as reading`` returns once the metadata is known (from
the cache, or from the headers of the origin's answer whose body is still arriving); the listener decides
status and span from ``reading.meta``; then ``reading.body(span)`` yields the bytes. Leaving the context
releases everything, whatever was read.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shadeproxy.core.conditions import Conditions, Verdict
from shadeproxy.core.errors import RangeNotSatisfiable
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
from shadeproxy.engine.knowledge.datasets import Dataset, Ids
from shadeproxy.engine.uses import Noted
from shadeproxy.engine.verdicts import Grant
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, OriginRead
from shadeproxy.tiers.base import Lender, Lent, Location, Place, Tier

if TYPE_CHECKING:  # it builds on this module
    from shadeproxy.engine.sample_places import FoundSamples

NO_CONDITIONS = Conditions()


class ReadRequest(NamedTuple):
    """A request for bytes of one object.

    ``range`` is what the client asked (None: the whole object); the engine uses it to fetch the right
    page first. ``conditions``: with them metadata is learned by HEAD rather than by a body that may not
    be wanted, and no page is fetched for an answer that will be 304 or 412. ``force_check``: ask the
    origin whether the cached version is current (``Cache-Control: no-cache``). ``upstream``: whose rights
    at the origin count. ``grant``: what it takes to be answered, HEAD where no byte of the body is asked for.
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


class Hit(NamedTuple):
    """Bytes that are resident: read-only pieces in order, valid while referenced."""

    source: Source
    pieces: tuple[memoryview, ...]


NO_HIT = Hit(Source.RAM, ())
"""An answer without a body, from what is known of an object."""


class Resident:
    """A ticket for one resident page: found once, answered again at the cost of a comparison.

    ``fresh_until_s``: Unix time from which on its rule wants more than the cache to answer. ``slot`` and
    ``stamp``: good as long as ``Residents.stamps[slot]`` is ``stamp``; then ``window[start:stop]`` is the
    page's body, to be copied, or pinned through ``tier``, before anything else runs. ``first``: the byte of
    the object that the page begins with. ``can_wait``: touching it may wait for a device, so ask
    ``tier.is_hot`` first. ``lender``: the blocks of it that may be sent. ``place``: where a process on this
    host finds it, once somebody asked. ``noted``: how it was noted last (notes.py). ``lent``: whether all
    that may be sent is marked as lent.
    """

    __slots__ = (
        "can_wait", "first", "fresh_until_s", "lender", "lent", "location", "meta", "noted", "object_hash",
        "place", "ref", "slot", "source", "stamp", "start", "stop", "tier", "window",
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
        self.lender: Lender | None = None
        self.lent = False
        self.place: Place | None = None
        self.noted: Noted | None = None

    @property
    def whole(self) -> bool:
        """Whether the page is all of its object."""
        return self.stop - self.start == self.meta.size

    def holds(self, span: Span) -> bool:
        """Whether ``span`` of the object lies within the page."""
        return self.first <= span.start and span.stop <= self.first + self.stop - self.start


class Loan(NamedTuple):
    """Bytes ``[start, stop)`` of a ticket's file, which are also those of its window.

    Of them ``[first, last)`` may be sent by sendfile, now; what is to leave later, or by another way, must be
    of the view that ``pin`` makes. ``file``: None where nothing may.
    """

    ticket: Resident
    file: Lent | None
    start: int
    first: int
    last: int
    stop: int

    def pin(self) -> memoryview:
        """The bytes, pinned. Raises TierError."""
        ticket = self.ticket
        return ticket.tier.pin(ticket.location)[self.start - ticket.start : self.stop - ticket.start]


class Located(NamedTuple):
    """Where a process on this host finds a piece of an object.

    It copies ``length`` bytes at ``offset`` of ``path``, then reads ``len(header)`` bytes at
    ``header_offset``: the copy is right if these equal ``header``, and only then.
    """

    source: Source
    path: Path
    header_offset: int
    header: bytes
    offset: int
    length: int


class Reading(Protocol):
    """An opened object of one version."""

    @property
    def meta(self) -> ObjectMeta:
        """Its ``size`` is UNKNOWN_BYTES where the origin does not tell; then the body is read whole."""
        ...

    @property
    def source(self) -> Source:
        """Where the answer comes from: the value of ``x-shade-cache``."""
        ...

    def body(self, span: Span) -> AsyncIterator[memoryview]:
        """The bytes of ``span``, in order, in read-only pieces that stay valid while referenced.

        Raises OriginError when the rest cannot be had (cut short, changed): what was yielded so far is
        right, and the answer must be aborted, not finished. An empty span yields nothing.
        """
        ...


class ReadsNow(Protocol):
    """What is answered without waiting: the engine, or a process beside it (reader.py)."""

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        """Metadata that may answer without asking anybody; None: ``open`` or ``stat`` must be asked."""
        ...

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        """The tier that a HEAD names: of the first page, RAM when none is resident."""
        ...

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        """The bytes of ``span`` without waiting, counted as one demand read; ``meta`` is what
        ``usable_now`` just answered. None, and nothing counted: a page is not resident, cannot be touched
        without waiting, or the span has too many pages: ``open`` must be asked.
        """
        ...

    def ticket(self, ref: ObjectRef, first: int, now_s: float) -> Resident | None:
        """A ticket, for every client, for the page that holds byte ``first``; None: there is none, because
        the page is not there now, or because the origin decides who may read the object.
        """
        ...

    def take(
        self, ticket: Resident, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        """The bytes of a ticket, counted as one demand read of ``job``; None when it is no longer good at
        ``now_s`` (Unix time). ``span``: of the object, within the page; None: all of the page.

        Of a page of at most 16 KiB they must be copied before anything else runs; else they are pinned.
        """
        ...

    def lend(
        self, ticket: Resident, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> Loan | None:
        """As ``take``, for sendfile; None also where the page is short or its medium cannot lend."""
        ...

    def lend_across(
        self, ticket: Resident, job: JobContext | None, now_s: float, span: Span
    ) -> tuple[Loan, ...] | None:
        """As ``lend``, where ``span`` begins in the ticket's page and ends in one of the next few."""
        ...

    def place(self, ticket: Resident, job: JobContext | None, now_s: float, span: Span) -> Place | None:
        """As ``take``, but where the page's record is."""
        ...

    def cacheable(self, ref: ObjectRef) -> bool:
        """Return whether the rules and the origin's answers let ``ref`` be cached; else forward its reads."""
        ...


class ReadPath(ReadsNow, Protocol):
    """The engine, as listeners use it."""

    def open(self, request: ReadRequest) -> AbstractAsyncContextManager[Reading]:
        """Open for reading. Raises OriginAnswer (404, 403, ...), OriginUnavailable, Overloaded,
        ShuttingDown, RangeNotSatisfiable (when the origin says so before metadata is known), Unidentified:
        forward the read, for its object is not ``cacheable``.
        """
        ...

    async def stat(self, request: ReadRequest) -> tuple[ObjectMeta, Source]:
        """Metadata only (HeadObject), from the cache where the freshness rule allows. Raises as ``open``."""
        ...

    def ready(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> bool:
        """Whether ``hit`` would answer now; nothing is pinned, noted or counted."""
        ...

    def locate(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """As ``hit``, but where the bytes are, in order, instead of the bytes."""
        ...

    def find_samples(
        self, dataset: Dataset, ids: Ids, job: JobContext | None, now_s: float
    ) -> "FoundSamples | None":
        """As ``place``, for many samples of a data set (i64[k]) at a hundredth of the cost: those of which
        ``remember_sample`` was told and whose tickets are good still. None: nothing is remembered.
        """
        ...

    def remember_sample(self, dataset: Dataset, sample_id: int, ticket: Resident) -> None:
        """``place`` has just told where all of the sample is."""
        ...

    def pass_by(self, request: ReadRequest, span: Span | None) -> AbstractAsyncContextManager[OriginRead]:
        """Read what the rules do not let be cached (see ``cacheable``): as ``Origin.open``. Not counted."""
        ...

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Carry out at the origin what is not a cached read. Does not invalidate: see ``writing``."""
        ...

    def writing(self, refs: Iterable[ObjectRef]) -> AbstractAsyncContextManager[None]:
        """Wrap a write to ``refs``: cached pages and metadata are gone before the write starts, nothing
        read meanwhile is kept, and they are gone again when the block is left, however it is left, so
        leave it before the client sees success. An empty key stands for the bucket itself (its rights,
        its existence): what is cached of it is checked against the origin before it is served again.
        """
        ...
