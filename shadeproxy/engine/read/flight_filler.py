"""Fills flights from the origin: by a task, or by the callbacks of callback_fill.py.

Laws: memory is taken from the ledger before it is allocated. No deadlock between slots and memory: fills that
wait for an origin slot hold at most half of the budget, and a fill waits for memory only while it holds a
slot. Both kinds of fills take the same steps, over the same ledger, versions and cache.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE
from shadeproxy.core.errors import BodyCutShort, ObjectChanged, Overloaded, Unidentified
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import Intent, ObjectMeta, ObjectRef, Page, Span
from shadeproxy.engine.freshness.verdicts import AuthEpoch
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.read.detached import DetachedBuffers
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.origin.base import HandedOver, OpenOptions, Origin, OriginRead, Wanted
from shadeproxy.telemetry.stats import Stats

READAHEAD_SHARE = 0.5


class FlightFiller:
    """Fills flights of ``flights``."""

    def __init__(
        self,
        origin: Origin,
        cache: PageCache,
        *,
        flights: SingleFlight,
        retire: Callable[[Flight], None],
        detached: DetachedBuffers,
        versions: Versions,
        ledger: Ledger,
        stats: Stats,
        clock: Clock,
        page_size: int,
        outdated: Callable[[ObjectRef], None],
        before_deciding: Callable[[], None],
    ) -> None:
        """``retire``: gives the memory of a flight back. ``outdated``: called to drop an old version.

        ``before_deciding``: called before pages are ranked, to flush the access log.
        """
        self._origin = origin
        self._cache = cache
        self.flights = flights
        self._retire = retire
        self._detached = detached
        self._versions = versions
        self._ledger = ledger
        self._stats = stats
        self._clock = clock
        self._page_size = page_size
        self._outdated = outdated
        self._before_deciding = before_deciding
        self._arrived: list[tuple[Flight, ObjectMeta]] = []

    async def fill(
        self,
        known: ObjectMeta | None,
        flight: Flight,
        handed: HandedOver | None = None,
        epoch: AuthEpoch | None = None,
    ) -> None:
        """Fill a flight, or the rest of one that was begun by callbacks: ``handed`` is what they held,
        ``epoch`` the auth epoch before the origin was asked.
        """
        # The fill is not bound to the first reader's deadline, as other readers may need it.
        DEADLINE.set(None)
        try:
            if flight.meta is None:
                await self._bring(flight, known, handed, epoch)
            else:
                await self._bring_rest(flight, flight.meta, handed)
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

    def wanted(self, flight: Flight, known: ObjectMeta | None) -> Wanted:
        """Return the GET that fills a flight.

        The first page of an unknown or small object is requested without a range, which works for empty
        objects too and brings whole-object checksums; of a bigger object the rest is not read.
        """
        whole = (
            flight.part is None and flight.number == 0 and (known is None or known.size <= self._page_size)
        )
        return Wanted(
            flight.ref,
            None if whole else self.within(flight),
            None if known is None else known.etag,
            flight.upstream,
        )

    async def _bring(
        self,
        flight: Flight,
        known: ObjectMeta | None,
        handed: HandedOver | None,
        epoch: AuthEpoch | None,
    ) -> None:
        ref, number = flight.ref, flight.number
        if handed is None:
            epoch = self.begin(flight)
        if known is not None and not self.take_early(flight, self.within(flight, known.size).length):
            raise Overloaded("prefetch budget exhausted")
        wanted = self.wanted(flight, known)
        whole = wanted.span is None
        async with self._open(flight, wanted, handed) as read:
            self._versions.allow(flight.upstream, ref, epoch)
            if read.pass_on is not None:
                await self._pass_on(flight, read, known)
                return
            self.notice(flight, read.meta)
            # A Content-Range proves the object's length; a Content-Length is a claim until all bytes came.
            meta = read.meta if whole else self.learn(flight, read.meta)
            length = self.within(flight, meta.size).length
            await self._take(flight, length)
            flight.open(meta, length, doubtful=read.doubtful and length == read.span.length)
            if length:
                await read.read_into(flight.buffer, flight.advance)
            if whole:
                if length < meta.size:
                    # A length beyond the page is only claimed: a byte of the rest makes it credible.
                    await read.read_into(memoryview(bytearray(1)), lambda _count: None)
                self.prove(flight, meta)
        if flight.part is not None:
            self._stats.record_bypass()
        elif flight.publishable and length:
            await self._store(flight, Page(ref, meta.etag, number), meta)

    async def _bring_rest(self, flight: Flight, meta: ObjectMeta, handed: HandedOver | None) -> None:
        """Fill the rest of a flight that was opened by callbacks."""
        whole = self.wanted(flight, meta).span is None
        span = self.within(flight, meta.size)
        rest: Span | None = Span(span.start + flight.filled, span.stop)
        if handed is not None and handed.is_held:
            rest = None  # the checksum comes with a whole body only
        async with self._open(flight, Wanted(flight.ref, rest, meta.etag, flight.upstream), handed) as read:
            if read.pass_on is not None:
                raise BodyCutShort(f"the rest of {flight.ref} came without its version")
            await read.read_into(flight.buffer[flight.filled :], flight.advance)
        if whole:
            self.prove(flight, meta)
        if flight.part is not None:
            self._stats.record_bypass()
        elif flight.publishable:
            await self._store(flight, Page(flight.ref, meta.etag, flight.number), meta)

    def _open(
        self, flight: Flight, wanted: Wanted, handed: HandedOver | None
    ) -> AbstractAsyncContextManager[OriginRead]:
        options = OpenOptions(
            span=wanted.span, if_match=wanted.if_match, upstream=wanted.upstream, intent=flight.intent
        )
        if handed is not None:
            options["handed"] = handed
        return self._origin.open(wanted.ref, **options)

    # ------------------------------------------------------------------ steps of every fill

    def begin(self, flight: Flight) -> AuthEpoch | None:
        """Note that the origin is about to be asked; return the auth epoch."""
        flight.publishable = not self._versions.being_written(flight.ref)
        return self._versions.auth_epoch(flight.ref)

    def open(
        self, flight: Flight, meta: ObjectMeta, epoch: AuthEpoch | None, *, whole: bool, doubtful: bool
    ) -> bool:
        """Open a flight at once; return False if it must wait for memory."""
        self._versions.allow(flight.upstream, flight.ref, epoch)
        self.notice(flight, meta)
        if not whole:
            meta = self.learn(flight, meta)
        length = self.within(flight, meta.size).length
        missing = length - flight.budget_bytes
        if missing > 0 and not self._ledger.take_now(missing, flight.intent):
            return False
        if missing < 0:
            self._ledger.give(-missing)
        flight.budget_bytes = length
        flight.open(meta, length, doubtful=doubtful)
        return True

    def prove(self, flight: Flight, meta: ObjectMeta) -> None:
        """Note that all bytes of an object came, which proves its length."""
        # Another version that was learnt meanwhile is newer.
        flight.publishable &= not self._versions.holds_other(flight.ref, meta)
        self.learn(flight, meta)

    def complete(self, flight: Flight, meta: ObjectMeta) -> None:
        """Store the page of a flight that was filled by callbacks, with the others of this turn."""
        if flight.part is not None:
            self._stats.record_bypass()
        elif flight.publishable:
            if not self._arrived:
                asyncio.get_running_loop().call_soon(self._store_arrived)
            self._arrived.append((flight, meta))
            return
        self.flights.end(flight)

    def _store_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        try:
            self._before_deciding()
        except BaseException:
            for flight, _ in arrived:
                self.flights.end(flight)
            raise
        now_s = self._clock.now_s()
        self._cache.insert_many(
            [
                NewPage(
                    Page(flight.ref, meta.etag, flight.number),
                    meta,
                    flight.buffer,
                    now_s,
                    flight.may_publish,
                    partial(self._stored, flight, meta),
                )
                for flight, meta in arrived
            ]
        )

    def _stored(self, flight: Flight, meta: ObjectMeta, stored: bool) -> None:
        self._note_stored(flight, Page(flight.ref, meta.etag, flight.number), stored=stored)
        self.flights.end(flight)

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

    def within(self, flight: Flight, size_bytes: int | None = None) -> Span:
        """Return the span that a flight fetches of an object of ``size_bytes``; None: not cut to a size."""
        first = flight.number * self._page_size
        part = Span(0, self._page_size) if flight.part is None else flight.part
        stop = first + part.stop
        start = first + part.start
        # Nothing of a page that a shorter version lacks.
        return Span(start, stop if size_bytes is None else max(start, min(stop, size_bytes)))

    async def _store(self, flight: Flight, page: Page, meta: ObjectMeta) -> None:
        self._before_deciding()
        stored = await self._cache.insert(page, meta, flight.buffer, self._clock.now_s(), flight.may_publish)
        self._note_stored(flight, page, stored=stored)

    def _note_stored(self, flight: Flight, page: Page, *, stored: bool) -> None:
        flight.stored = stored
        if stored and flight.intent is Intent.PREFETCH:
            self._cache.mark_unread(page)
        view = self._cache.view_now(page) if stored and flight.waiters else None
        if view is not None:
            # Slow readers continue from the tier, so that the memory is free for others.
            self._detached.add(flight.buffer)
            flight.buffer = view
            self._retire(flight)

    def take_early(self, flight: Flight, length: int) -> bool:
        """Take memory for the page before the request, if there is plenty: then no connection waits for it.

        The other half is for fills that hold a slot. Without that limit all memory could wait for slots,
        whose holders, which did not know the length of their page before, wait for memory. Return False
        for a prefetch that gets none: it is refused before the origin is asked.
        """
        ledger = self._ledger
        if flight.intent is not Intent.DEMAND:
            missing = length - flight.budget_bytes
            if missing > 0 and not ledger.take_now(missing, flight.intent):
                return False
            flight.budget_bytes = max(length, flight.budget_bytes)
        elif not flight.budget_bytes:
            plenty = ledger.taken_bytes + length <= ledger.capacity_bytes * READAHEAD_SHARE
            if plenty and ledger.try_take(length):
                flight.budget_bytes = length
        return True

    async def _take(self, flight: Flight, length: int) -> None:
        """Take memory for the page, less what was taken before; give back what was taken for a longer one."""
        missing = length - flight.budget_bytes
        if missing > 0:
            await self._ledger.take(missing, flight.intent)
        else:
            self._ledger.give(-missing)
        flight.budget_bytes = length

    def notice(self, flight: Flight, meta: ObjectMeta) -> None:
        """Drop other versions, cached or flying, if this flight brings a newer one."""
        if flight.publishable and self._versions.holds_other(flight.ref, meta):
            self._outdated(flight.ref)
            flight.publishable = True

    def learn(self, flight: Flight, meta: ObjectMeta) -> ObjectMeta:
        """Record the metadata that came with a page. Return the richer of old and new."""
        return self._versions.learn(flight.ref, meta) if flight.publishable else meta
