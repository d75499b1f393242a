"""One object that is opened for reading, in one version, and the bytes of any span of it.

Laws: every page of an answer has the ETag of the reading's metadata; otherwise ObjectChanged is raised. Every
joined flight is left, whatever happens. A read is counted once, when its bytes are requested.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from shadeproxy.core.deadline import DEADLINE, Deadline
from shadeproxy.core.errors import (
    BodyDamaged,
    DeadlineExceeded,
    ObjectChanged,
    OriginAnswer,
    OriginError,
    Overloaded,
    ShadeProxyError,
    TierError,
)
from shadeproxy.core.ranges import pages_of, part_start
from shadeproxy.core.tracing import RELAYED
from shadeproxy.core.types import Intent, ObjectMeta, Page, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.freshness.unidentified import PassedBody
from shadeproxy.engine.read.body import Body
from shadeproxy.engine.read.fill import PageFiller
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.needed import claim_passed, is_others, part_asked, part_of, span_needed
from shadeproxy.engine.read.pending_loads import PendingLoads
from shadeproxy.engine.storage.disk_page import PageBody, StoredPart
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.base import CallbackOrigin, OriginRead

_IN_A_TURN = 256  # Pages that are looked up before other tasks may run; they take 2 ms.
_FIRST_READAHEAD_PAGES, _MOST_READAHEAD_PAGES = 2, 16
"""The most pages that are read ahead: 64 MiB of 4-MiB pages, which a link of 10 Gbit/s carries in 50 ms."""

_Loaded = tuple[Page, PageBody]
"""The type of a record in a tier, and its body."""

Count = Callable[[ReadRequest, Source, int], None]
"""The type of a function that counts one demand GET, by its request, its source and the bytes of its body."""


class EngineReading:
    """The reading of one request. Implements ``Reading`` of engine/base.py."""

    def __init__(
        self, request: ReadRequest, *, cache: PageCache, fills: PageFiller, count: Count, page_size: int
    ) -> None:
        self.request, self._cache, self._fills = request, cache, fills
        self._count_read, self._page_size = count, page_size
        self._meta: ObjectMeta | None = None
        self._span: Span | None = None  # The wanted span of the object, once it is known.
        self.source = Source.RAM
        """The source of the answer, see ``Reading.source``."""
        self.joined: dict[int, Flight] = {}
        """The flights that this reading has joined and not left, by page number."""
        self._readahead: set[int] = set()  # Pages joined before they were wanted.
        self._late: dict[int, Deadline | None] = {}
        """Pages that a slow tier has, but that are read from the origin, with a deadline for the origin's
        first byte. The deadline leaves half of the time to the tier, if the origin fails. The use of these
        pages is noted.
        """
        self.loads: PendingLoads | None = None
        """The loads of pages of ``_late`` that go on; None if there were none."""
        self._readahead_pages = _FIRST_READAHEAD_PAGES
        self._loaded: tuple[int, _Loaded] | None = None
        self.explained = False
        """True if an order, scores or an earlier try explain the read. Page histories do not count an
        explained read.
        """
        self.deadline = DEADLINE.get() if request.intent is Intent.DEMAND else None
        """The deadline for the next byte."""
        self._passed: OriginRead | None = None
        self.detached = fills.detached
        """While ``detached.many``, pieces are copied, because slow readers hold too much memory."""
        self.begun = False
        """True if ``Engine.begin`` has begun the read without waiting. The read is then noted already."""
        self._observed = self._counted = False
        self._reads: CallbackOrigin | None = None
        self.relayed = RELAYED.get()
        """True if another node of a cluster sent the request. If that node gives up, the fill goes on, so
        that a page of a slow origin is cached in the end.
        """

    @property
    def meta(self) -> ObjectMeta:
        assert self._meta is not None, "opened before use"
        return self._meta

    def begin(self, number: int, meta: ObjectMeta | None, reads: CallbackOrigin | None = None) -> Flight:
        """Join or start the flight of the only page that is wanted, without waiting. Return the flight.

        ``meta``: the known metadata, or None. ``reads``: the reads by callbacks that fetch the page.
        """
        self.begun = True
        self._reads, self._meta = reads, meta
        self._span = None if meta is None else span_needed(self.request, meta)
        flight, coalesced = self._fills.join(
            self.request.ref,
            number,
            upstream=self.request.upstream,
            intent=self.request.intent,
            meta=meta,
            part=self._part(number),
            explained=self.explained,
            answer_stop=None if meta else self._fills.answer_stop(self.request),
            reads=reads,
            job=self.request.job,
        )
        self.joined[number] = flight
        self.source = Source.COALESCED if coalesced else Source.ORIGIN
        return flight

    def note(self, note_read: Callable[[ReadRequest, int], bool], first: int) -> bool:
        """Note the read, which begins at byte ``first``, unless it was noted before. Return ``explained``."""
        if not self.begun and not self._observed:
            self._observed = True
            self.explained |= note_read(self.request, first)
        return self.explained

    def adopt(self, flight: Flight, deadline: Deadline | None) -> None:
        """Continue a plain read (plain_reads.py), whose client waits for the first page by ``flight``."""
        self.begun = self.explained = True
        self.deadline, self.source = deadline, Source.ORIGIN
        self.joined[flight.number] = flight

    async def open_unknown(self, number: int) -> None:
        """Learn the metadata from the flight of the first wanted page."""
        self._start(number)
        self._meta = (await self._flight(number)).meta

    def pass_on(self, number: int) -> bool:
        """Pass on the origin's answer, which names no version. Return False if it lacks wanted bytes."""
        self._passed = read = claim_passed(self.joined.get(number), self.request)
        if read is not None:
            self._meta, self.source = read.meta, Source.BYPASS
        return read is not None

    async def open_known(self, meta: ObjectMeta, span: Span) -> None:
        """Find the source of ``span``. Start the flight of the first page of ``span`` that is missing."""
        self._meta, self._span = meta, span
        if not self.joined:
            self.source = Source.RAM
        numbers = pages_of(span, self._page_size)
        for number in numbers:
            if not (number + 1) % _IN_A_TURN:
                await asyncio.sleep(0)
            if number in self.joined:
                await self._flight(number)  # The flight that ``begin`` started.
                return
            slot = self._cache.find(self._record(number))
            source = None if slot is None else self._cache.source(slot)
            # Load the first page before the answer begins. If the page proves damaged, the answer's head can
            # still name the origin.
            if source is None or (number == numbers.start and not await self._load_first(number)):
                self._start(number, numbers.stop)
                await self._flight_or_page(number)
                return
            if source is Source.DISK:
                self.source = source

    def body(self, span: Span) -> AsyncIterator[memoryview]:
        """Yield the bytes of ``span``, see ``Reading.body``."""
        if span != self._span:
            self._span, self._loaded = span, None  # A stored part may have too few bytes.
        if self._passed is not None:
            return PassedBody(self._passed, span, self._count_passed)
        return Body(self, span, self._page_size)

    async def page(self, number: int, stop: int) -> PageBody | Flight:
        """Return a page of the answer: its bytes, or the flight that fetches them. Call ``done`` afterwards
        to leave the flight.

        ``stop``: end of the answer's page numbers. Missing pages before ``stop`` are read ahead.
        """
        flight = self.joined.get(number)
        page = await self._resident(number) if flight is None else None
        if page is not None:
            return page
        if flight is not None and number in self._readahead and not flight.ended:
            # The reader was faster than reading ahead, so read more pages ahead.
            self._readahead_pages = min(2 * self._readahead_pages, _MOST_READAHEAD_PAGES)
        self._readahead.discard(number)
        self._read_ahead(number, stop)
        return await self._flight_or_page(number)

    def done(self, number: int, *, served: bool = False) -> None:
        """Leave the flight of a page, if there is one, and give up its load; idempotent. ``served``: all of
        the page was read.
        """
        if self.loads is not None:
            self.loads.stop(number)
        self._leave(number, served=served)

    def _leave(self, number: int, *, served: bool = False) -> None:
        # If the reading was left before its body was closed, there is no flight any more.
        flight = self.joined.pop(number, None)
        if flight is not None:
            self._fills.flights.leave(flight, served=served)

    def reset(self) -> None:
        """Forget the opened version, because the origin has another one. When the caller then tries again,
        page histories do not count a second read.
        """
        for number in list(self.joined):
            self._leave(number)
        if self.loads is not None:
            self.loads.stop_all()
        self._late.clear()
        self.explained = True
        self._meta = self._span = self._loaded = None

    def _start(self, number: int, stop: int = 0) -> None:
        """Join the flight of the first wanted page, unless ``begin`` has joined it, and those of later pages
        if they come with it. ``stop``: end of the answer's page numbers, if known.
        """
        if number in self.joined:
            return
        known, pages = (self._meta, self._span), range(number, stop)
        shared = self._fills.answer_stop(self.request, *known, pages, self._finds, explained=self.explained)
        flight, coalesced = self._join(number, stop=shared)
        if stop and shared is not None and flight.answer_stop == shared and flight.budget_bytes:
            self._read_ahead(number, stop)
        self.source = Source.COALESCED if coalesced else Source.ORIGIN

    async def _flight(self, number: int, *, first: bool = True) -> Flight:
        """Return the flight of a page, once it is opened. Join a second flight if the first one failed for a
        reason that concerns only the reader that started it: its rights, an older version that it asked for,
        or a prefetch that gave up early. Also join a second flight if the body proved damaged before any byte
        of it was passed on.
        """
        flight = self.joined.get(number)
        again = flight is not None and flight.part is not None and not flight.covers(self._part(number))
        if again:
            self._leave(number)
        if flight is None or again:
            flight, coalesced = self._join(number, again=again or not first)
        else:
            coalesced = True
        # A client notices a damaged whole body, because its end is not sent. A client cannot notice a damaged
        # part, or a false error for a range that the object has. So a part is sent only when it is proven.
        part_only = self.request.range is not None
        try:
            meta = await flight.opened(self.deadline_of(number), proven=part_only)
            if self._meta is not None and (meta.etag, meta.size) != (self._meta.etag, self._meta.size):
                raise ObjectChanged(f"{self.request.ref} changed while it was read")
        except ShadeProxyError as error:
            damaged = first and isinstance(error, BodyDamaged) and flight.doubtful
            joined = coalesced and (first or isinstance(error, OriginAnswer))  # Refusals may repeat.
            others = joined and is_others(flight, error, self.request, self._meta, self.deadline)
            if not damaged and not others:
                raise
            self._leave(number)
            return await self._flight(number, first=False)
        return flight

    async def _flight_or_page(self, number: int) -> Flight | PageBody:
        """Return the flight of a page, once it is opened. If the origin failed and a slow tier has the page,
        return its bytes instead.
        """
        try:
            return await self._flight(number)
        except (OriginError, Overloaded) as error:
            if (loaded := await self._load_late(number, error)) is None:
                raise
            self.source, self._loaded = Source.DISK, (number, loaded)
            return loaded[1]

    def deadline_of(self, number: int) -> Deadline | None:
        """Return the deadline for the first byte of a page from the origin."""
        return self._late.get(number, self.deadline)

    async def late_page(self, number: int, error: ShadeProxyError) -> PageBody | None:
        """Leave the flight of a page, which failed with ``error``. If the page came by a flight only because
        its tier was slow, read it from that tier now. Return None if no tier has the page in the opened
        version.
        """
        return None if (loaded := await self._load_late(number, error)) is None else loaded[1]

    async def _load_late(self, number: int, error: ShadeProxyError) -> _Loaded | None:
        self._leave(number)
        if number not in self._late or isinstance(error, ObjectChanged):
            return None
        return await self._load(number, late=True)

    async def _load_first(self, number: int) -> bool:
        if (loaded := await self._load(number)) is not None:
            self._loaded = number, loaded
        return loaded is not None

    async def _resident(self, number: int) -> PageBody | None:
        """Note the demand read of a page, and return its body from its tier; None if no tier has it."""
        before, self._loaded = self._loaded, None
        loaded = None if before is None or before[0] != number else before[1]
        if loaded is None or not (isinstance(loaded[1], memoryview) or loaded[1].is_resident):
            loaded = await self._load(number)
        if loaded is None:
            return None
        record, page = loaded
        if self.request.intent is Intent.DEMAND and number not in self._late:
            view = page if isinstance(page, memoryview) else page.view
            self._cache.use(record, view, explained=self.explained)
        return page

    async def _load(self, number: int, *, late: bool = False) -> _Loaded | None:
        """Return the record with the wanted bytes of a page, and its body from its tier. Return None if no
        tier has it, or the tier hangs. Unless ``late``, return None also if the tier is too slow.
        """
        page, deadline = self._record(number), self.deadline
        if (slot := self._cache.find(page)) is None:
            return None
        if late or self.request.intent is not Intent.DEMAND or not self._cache.is_behind(slot):
            # The origin gets the second half of the time, unless it has failed already.
            limit = deadline if late or deadline is None else deadline.half()
            self.loads = self.loads or PendingLoads(self._cache)
            try:
                body = await self.loads.view(number, page, slot, limit)
                start = part_start(page.number)
                if start is None:
                    return page, body
                return page, StoredPart(body, start - number * self._page_size)
            except TierError:
                return None  # The cache has counted this, and dropped the page: it is now a miss.
            except DeadlineExceeded:
                if number in self._late:
                    return None
        else:
            deadline = None if deadline is None else deadline.half()
        self._late[number] = deadline
        self._cache.use(page, None, explained=self.explained)
        return None

    def _read_ahead(self, number: int, stop: int) -> None:
        for coming in range(number + 1, min(number + 1 + self._readahead_pages, stop)):
            if coming in self.joined or self._finds(coming):
                continue
            flight = self._fills.join_readahead(
                self.request.ref,
                coming,
                upstream=self.request.upstream,
                meta=self.meta,
                part=self._part(coming),
                explained=self.explained,
                job=self.request.job,
            )
            if flight is None:
                return
            self.joined[coming] = flight
            self._readahead.add(coming)

    def _join(self, number: int, *, again: bool = False, stop: int | None = None) -> tuple[Flight, bool]:
        """Join the flight of a page. ``again``: the read was noted before, so do not note it twice."""
        request = self.request
        flight, coalesced = self._fills.join(
            request.ref,
            number,
            upstream=request.upstream,
            intent=request.intent,
            meta=self._meta,
            part=None if again and self._meta is None else self._part(number),
            explained=self.explained or again,
            late=number in self._late,
            answer_stop=stop,
            reads=self._reads,
            job=request.job,
        )
        self.joined[number] = flight
        return flight, coalesced

    def _finds(self, number: int) -> bool:
        return self._cache.find(self._record(number)) is not None

    def _record(self, number: int) -> Page:
        """Return the resident record with the wanted bytes of a page; see ``PageCache.record_with``."""
        part, first = self._part(number), number * self._page_size
        wanted = None if part is None else Span(first + part.start, first + part.stop)
        return self._cache.record_with(Page(self.request.ref, self.meta.etag, number), wanted)

    def _part(self, number: int) -> Span | None:
        """Return the wanted span within a page. None: the whole page, or a span that is not known yet."""
        if self._meta is None:
            return part_asked(self.request, number, self._page_size)
        return None if self._span is None else part_of(self._span, number, self._page_size, self._meta.size)

    def _count_passed(self, size_bytes: int) -> None:
        if self.request.intent is Intent.DEMAND:
            self._count_read(self.request, self.source, size_bytes)

    def count(self, meta: ObjectMeta, span: Span) -> None:
        """Count the demand read of ``span``, in the version of ``meta``, once."""
        self._meta = meta
        if self._counted or self.request.intent is not Intent.DEMAND:
            return
        self._counted = True
        self._count_read(self.request, self.source, span.length)
        if span.length < meta.size > self._page_size:
            self._fills.observer.note_part(self.request.ref, meta, span)
