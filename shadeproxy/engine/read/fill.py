"""Pages on their way from the origin: joining a flight, reading ahead, and the fill itself.

Laws: memory is taken from the ledger before it is allocated. No deadlock between slots and memory: fills that
wait for an origin slot hold at most half of the budget, and a fill waits for memory only while it holds a
slot. A page that was stored is read from its tier, and its memory is given back at once. Reading ahead, and a
fill whose readers have all been served, take only memory that no reader waits for.
"""

import weakref
from collections.abc import Callable
from functools import partial

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE, ReadBounds
from shadeproxy.core.errors import ObjectChanged, Unidentified
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import page_span
from shadeproxy.core.types import Intent, ObjectMeta, ObjectRef, Page, Span, Upstream
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.read.flight import Flight, SingleFlight
from shadeproxy.engine.read.timeouts import OverdueFlights
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.base import Origin, OriginRead
from shadeproxy.telemetry.stats import Stats

_READAHEAD_SHARE = 0.5


class DetachedBuffers:
    """Counter of the memory of stored pages, given back to the ledger, that slow readers still hold.

    The ledger does not count these buffers, so that a slow reader takes nothing from others. A thousand would
    keep a thousand pages, so above ``limit_bytes`` (``many``) readers get copies of their pieces.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._buffers: list[tuple[weakref.ref[object], int]] = []

    def add(self, buffer: memoryview) -> None:
        """Count ``buffer``, which from now on only readers of its pieces hold."""
        self._buffers.append((weakref.ref(buffer.obj), buffer.nbytes))
        self._bytes += buffer.nbytes

    @property
    def many(self) -> bool:
        """True if readers hold more than the limit. Looks for freed buffers only above the limit."""
        if self._bytes > self._limit_bytes:
            self._buffers = [one for one in self._buffers if one[0]() is not None]
            self._bytes = sum(size for _, size in self._buffers)
        return self._bytes > self._limit_bytes


class PageFiller:
    """Joins readers to flights, and fills these. ``outdated(ref)`` is called to drop an old version."""

    def __init__(
        self,
        origin: Origin,
        cache: PageCache,
        *,
        versions: Versions,
        ledger: Ledger,
        stats: Stats,
        clock: Clock,
        page_size: int,
        outdated: Callable[[ObjectRef], None],
        bounds: ReadBounds,
        before_deciding: Callable[[], None],
    ) -> None:
        """``before_deciding``: called before pages are ranked, to flush the access log."""
        self._origin = origin
        self._cache = cache
        self._versions = versions
        self._ledger = ledger
        self._stats = stats
        self._clock = clock
        self._page_size = page_size
        self._outdated = outdated
        self._before_deciding = before_deciding
        self.observer = cache.observer
        overdue = OverdueFlights(lambda: self.flights, clock=clock, bounds=bounds)
        self.flights = SingleFlight(self._retire, self._goes_on, overdue.watch)
        self._detached = DetachedBuffers(ledger.capacity_bytes // 2)

    @property
    def under_pressure(self) -> bool:
        """True if pieces must be copied: detached buffers of slow readers keep too much memory."""
        return self._detached.many

    def join(
        self,
        ref: ObjectRef,
        number: int,
        *,
        upstream: Upstream,
        intent: Intent,
        meta: ObjectMeta | None,
        part: Span | None = None,
        explained: bool = False,
    ) -> tuple[Flight, bool]:
        """Join the flight of a page, or at least of the span ``part`` within it, as a waiter. Start the
        fill when there is none. Return the flight, and whether it was running.

        ``explained``: an order or scores explain the read.
        """
        part_only = intent is Intent.DEMAND and self._missed(ref, number, meta, part, explained=explained)
        flight, coalesced = self.flights.join(
            ref,
            number,
            upstream,
            partial(self._fill, meta),
            intent,
            wanted=None if meta is None else meta.etag,
            part=part,
            part_only=part_only,
        )
        if intent is Intent.DEMAND:
            if coalesced:
                self._stats.record_coalesced()
            self._demand(flight)
        elif not coalesced:
            self._stats.record_prefetch("issued")
        return flight, coalesced

    def join_readahead(
        self,
        ref: ObjectRef,
        number: int,
        *,
        upstream: Upstream,
        meta: ObjectMeta,
        part: Span | None,
        explained: bool,
    ) -> Flight | None:
        """Join or start the flight of a page that will be wanted soon; None when memory is short.

        A reader that waits for memory for one page must not hold memory for the next ones.
        """
        length = page_span(number, self._page_size, meta.size).length
        readahead_bytes = self._ledger.capacity_bytes * _READAHEAD_SHARE
        running = self.flights.find_serving(ref, number, meta.etag, part) is not None
        if not running:
            if self._ledger.waiting or self._ledger.taken_bytes + length > readahead_bytes:
                return None
            # Take memory before noting the miss: that flushes the access log, and demotions need memory too.
            taken = self._ledger.try_take(length)
            assert taken, "nobody waits and there is room"
        part_only = self._missed(ref, number, meta, part, explained=explained)
        flight, _ = self.flights.join(
            ref, number, upstream, partial(self._fill, meta), wanted=meta.etag, part=part, part_only=part_only
        )
        if not running:
            flight.budget_bytes = length if flight.part is None else flight.part.length
            self._ledger.give(length - flight.budget_bytes)
        self._demand(flight)
        return flight

    def _missed(
        self, ref: ObjectRef, number: int, meta: ObjectMeta | None, part: Span | None, *, explained: bool
    ) -> bool:
        """Note a demand read of a missing page. Return whether to fetch only ``part`` of it."""
        self._cache.miss(ref, number, explained=explained)
        self.observer.note_wanted(ref, number)
        # Another part of a page on its way is wanted: several readers want the page.
        if part is None or meta is None or self.flights.busy(ref, number):
            return False
        page_bytes = page_span(number, self._page_size, meta.size).length
        self._before_deciding()
        return self._cache.fetches_part_only(ref, number, page_bytes=page_bytes, part_bytes=part.length)

    def leave(self, flight: Flight, *, served: bool = False) -> None:
        """See ``SingleFlight.leave``."""
        self.flights.leave(flight, served=served)

    def _demand(self, flight: Flight) -> None:
        """Turn a prefetch that a reader wants into a demand read, with its priority."""
        if flight.intent is Intent.PREFETCH:
            flight.intent = Intent.DEMAND
            self._stats.record_prefetch("used")
            self.observer.note_late()

    def _goes_on(self, flight: Flight) -> bool:
        """Return whether to finish a page without waiters, whose readers were all served a range."""
        ledger = self._ledger
        return (
            flight.publishable
            and flight.part is None
            and not ledger.waiting
            and ledger.taken_bytes <= ledger.capacity_bytes * _READAHEAD_SHARE
        )

    async def _fill(self, known: ObjectMeta | None, flight: Flight) -> None:
        # The fill is not bound to the first reader's deadline, as other readers may need it.
        DEADLINE.set(None)
        try:
            await self._bring(flight, known)
        except ObjectChanged:
            if flight.publishable and self._is_believed(flight.ref, known):
                # The known version is old: the next read starts without it.
                self._outdated(flight.ref)
            raise
        finally:
            if flight.meta is None:
                # Nothing was filled, and a reader still on the page before may take the error much later.
                self._retire(flight)

    def _is_believed(self, ref: ObjectRef, known: ObjectMeta | None) -> bool:
        """Return whether a read that began now would use ``known``; else only its reader is behind."""
        now = self._versions.known_now(ref)
        return now is None or known is None or now.etag == known.etag

    async def _bring(self, flight: Flight, known: ObjectMeta | None) -> None:
        ref, number = flight.ref, flight.number
        flight.publishable = not self._versions.being_written(ref)
        epoch = self._versions.auth_epoch(ref)
        if known is not None:
            await self._take_early(flight, self._within(flight, known.size).length)
        # The first page of an unknown or small object is requested without a range, which works for empty
        # objects too and brings whole-object checksums; of a bigger object the rest is not read.
        whole = flight.part is None and number == 0 and (known is None or known.size <= self._page_size)
        span = None if whole else self._within(flight)
        async with self._origin.open(
            ref,
            span=span,
            if_match=None if known is None else known.etag,
            upstream=flight.upstream,
            intent=flight.intent,
        ) as read:
            self._versions.allow(flight.upstream, ref, epoch)
            if read.pass_on is not None:
                await self._pass_on(flight, read, known)
                return
            self._notice(flight, read.meta)
            # A Content-Range proves the object's length; a Content-Length is a claim until all bytes came.
            meta = read.meta if whole else self._learn(flight, read.meta)
            length = self._within(flight, meta.size).length
            await self._take(flight, length)
            flight.open(meta, length, doubtful=read.doubtful and length == read.span.length)
            if length:
                await read.read_into(flight.buffer, flight.advance)
            if whole:
                if length < meta.size:
                    # A length beyond the page is only claimed: a byte of the rest makes it credible.
                    await read.read_into(memoryview(bytearray(1)), lambda _count: None)
                # Another version that was learnt meanwhile is newer.
                flight.publishable &= not self._versions.holds_other(ref, meta)
                self._learn(flight, meta)
        if flight.part is not None:
            self._stats.record_bypass()
        elif flight.publishable and length:
            await self._store(flight, Page(ref, meta.etag, number), meta)

    async def _pass_on(self, flight: Flight, read: OriginRead, known: ObjectMeta | None) -> None:
        """Pass on an answer that cannot be stored. A short one goes to all readers that wait for it,
        another to one reader that knew nothing of the object.
        """
        size = read.meta.size
        self._versions.unidentified(flight.ref)
        flight.publishable = False
        if flight.intent is not Intent.DEMAND:
            raise Unidentified(flight.ref)
        if size > self._page_size or read.span != Span(0, size):
            if known is not None:
                raise Unidentified(flight.ref)  # its readers began with another answer
            # The read now goes at the pace of a client, and needs no memory.
            self._retire(flight)
            await flight.hand_over(read)
            return
        await self._take(flight, size)
        flight.open(read.meta, size, doubtful=read.doubtful)
        if size:
            await read.read_into(flight.buffer, flight.advance)

    def _within(self, flight: Flight, size_bytes: int | None = None) -> Span:
        """Return the span that a flight fetches of an object of ``size_bytes``; None: not cut to a size."""
        first = flight.number * self._page_size
        part = Span(0, self._page_size) if flight.part is None else flight.part
        stop = first + part.stop
        start = first + part.start
        # Nothing of a page that a shorter version lacks.
        return Span(start, stop if size_bytes is None else max(start, min(stop, size_bytes)))

    async def _store(self, flight: Flight, page: Page, meta: ObjectMeta) -> None:
        self._before_deciding()
        stored = await self._cache.insert(
            page, meta, flight.buffer, self._clock.now_s(), lambda: flight.publishable
        )
        flight.stored = stored
        if stored and flight.intent is Intent.PREFETCH:
            self._cache.mark_unread(page)
        view = self._cache.view_now(page) if stored and flight.waiters else None
        if view is not None:
            # Slow readers continue from the tier, so that the memory is free for others.
            self._detached.add(flight.buffer)
            flight.buffer = view
            self._retire(flight)

    async def _take_early(self, flight: Flight, length: int) -> None:
        """Take memory for the page before the request, if there is plenty: then no connection waits for it.

        The other half is for fills that hold a slot. Without that limit all memory could wait for slots,
        whose holders, which did not know the length of their page before, wait for memory.
        """
        if flight.intent is not Intent.DEMAND:
            await self._take(flight, length)  # never waits, and is refused before the origin is asked
            return
        plenty = self._ledger.taken_bytes + length <= self._ledger.capacity_bytes * _READAHEAD_SHARE
        if not flight.budget_bytes and plenty and self._ledger.try_take(length):
            flight.budget_bytes = length

    async def _take(self, flight: Flight, length: int) -> None:
        """Take memory for the page, less what was taken before; give back what was taken for a longer one."""
        missing = length - flight.budget_bytes
        if missing > 0:
            await self._ledger.take(missing, flight.intent)
        else:
            self._ledger.give(-missing)
        flight.budget_bytes = length

    def _notice(self, flight: Flight, meta: ObjectMeta) -> None:
        """Drop other versions, cached or flying, if this flight brings a newer one."""
        if flight.publishable and self._versions.holds_other(flight.ref, meta):
            self._outdated(flight.ref)
            flight.publishable = True

    def _learn(self, flight: Flight, meta: ObjectMeta) -> ObjectMeta:
        """Record the metadata that came with a page. Return the richer of old and new."""
        return self._versions.learn(flight.ref, meta) if flight.publishable else meta

    def _retire(self, flight: Flight) -> None:
        self._ledger.give(flight.budget_bytes)
        flight.budget_bytes = 0
