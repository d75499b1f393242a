"""Joins readers to flights, and starts the flights of pages that are read ahead.

Laws: once a page is stored, its readers read it from its tier, and the memory of its flight is returned at
once. Reading ahead takes memory only while no reader waits for memory. A fill whose readers have all left
goes on only under the same condition. The fills themselves are in flight_filler.py.
"""

from collections.abc import Callable
from functools import partial

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import ReadBounds
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import page_span, part_number
from shadeproxy.core.tracing import READER
from shadeproxy.core.types import ENDLESS, Intent, JobContext, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.placement.partial_reads import Fetch
from shadeproxy.engine.read.callback_fill import fill_at_once
from shadeproxy.engine.read.fill_steps import READAHEAD_SHARE
from shadeproxy.engine.read.flight import DetachedBuffers, Flight
from shadeproxy.engine.read.flight_filler import FlightFiller
from shadeproxy.engine.read.needed import MOST_TOGETHER, SUFFIX, stop_asked
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.read.slow_readers import SlowReaders
from shadeproxy.engine.read.timeouts import OverdueFlights
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.base import CallbackOrigin, Origin
from shadeproxy.telemetry.stats import Stats


class PageFiller:
    """Joins readers to flights, and has the flights filled. ``outdated(ref)``: called to drop an old
    version.
    """

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
        callback_reads: CallbackOrigin | None = None,
    ) -> None:
        """``before_deciding``: called before pages are ranked, to flush the access log. ``callback_reads``:
        reads of ``origin`` by callbacks, if it supports them.
        """
        self._cache = cache
        self._ledger = ledger
        self._stats = stats
        self.page_size = page_size
        """Length of a page in bytes."""
        self._before_deciding = before_deciding
        self._callback_reads = callback_reads
        self.observer = cache.observer
        self.late_write_s = bounds.late_write_s
        """See ``ReadBounds``."""
        self.detached = DetachedBuffers(ledger.capacity_bytes // 2)
        slow = SlowReaders(lambda: self.flights, self.detached, ledger=ledger, stats=stats, clock=clock)
        overdue = OverdueFlights(lambda: self.flights, clock=clock, bounds=bounds, on_look=slow.look)
        self.flights = SingleFlight(self._retire, self._goes_on, overdue.watch)
        self.filler = FlightFiller(
            origin,
            cache,
            flights=self.flights,
            retire=self._retire,
            detached=self.detached,
            versions=versions,
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=page_size,
            outdated=outdated,
            before_deciding=before_deciding,
        )

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
        late: bool = False,
        answer_stop: int | None = None,
        reads: CallbackOrigin | None = None,
        job: JobContext | None = None,
    ) -> tuple[Flight, bool]:
        """Join, as a waiter, the flight that fetches a page, or at least the span ``part`` within the page.
        Start a flight if there is none. Return the flight, and whether it was running already.

        ``explained``: True if an order or scores explain the read. ``late``: True if a tier has the page, but
        would read it more slowly than the origin; then only the wanted bytes are fetched, and they are not
        stored. ``answer_stop``: see ``Flight``. ``reads``: the reads by callbacks that fetch the page.
        ``job``: the job to which the use of the origin's link is charged.
        """
        READER.set(job or ref)
        fetch = Fetch.PAGE
        if late:
            fetch = Fetch.PAGE if part is None else Fetch.PART
        elif intent is Intent.DEMAND:
            self._cache.miss(ref, number, explained=explained)
            self.observer.note_wanted(ref, number, job)
            if part is not None:
                fetch = self._fetch_of(ref, number, meta, part, explained=explained)
        flight, coalesced = self.flights.join(
            ref,
            number,
            upstream,
            partial(self.filler.fill, meta),
            intent,
            wanted=None if meta is None else meta.etag,
            part=part,
            part_only=fetch is not Fetch.PAGE,
            stored_as=self._stored_as(number, part, fetch),
            answer_stop=answer_stop,
            at_once=partial(
                fill_at_once, self.filler, meta, self._callback_reads if reads is None else reads
            ),
        )
        if late and not coalesced:
            flight.kept = False
        if answer_stop is not None and meta is not None and not coalesced:
            # The flights of later pages take memory at once. They may wait for this flight, so it must not
            # wait for memory.
            self.filler.take_early(flight, self.filler.within(flight, meta.size).length)
        if intent is Intent.DEMAND:
            if coalesced:
                self._stats.record_coalesced()
                self._demand(flight)
        elif not coalesced:
            self._stats.record_prefetch("issued")
        return flight, coalesced

    def join_suffix(
        self, request: ReadRequest, suffix: Span, note: Callable[[int], bool]
    ) -> tuple[Flight, bool]:
        """Join a flight of at least the last bytes of an object of unknown size, as ``join`` does. Start a
        flight if there is none; when it is opened, it has the page in which its bytes begin.

        ``suffix``: see ``suffix_needed``. ``note``: called with the read's first byte, if the read starts the
        flight; returns whether an order or scores explain the read.
        """
        READER.set(request.job or request.ref)
        place = partial(self._place, request, note)
        flight, coalesced = self.flights.join(
            request.ref,
            SUFFIX,
            request.upstream,
            partial(self.filler.fill, None, place=place),
            part=suffix,
            part_only=True,
        )
        if coalesced:
            self._stats.record_coalesced()
        return flight, coalesced

    def _place(
        self,
        request: ReadRequest,
        note: Callable[[int], bool],
        flight: Flight,
        meta: ObjectMeta,
        span: Span,
    ) -> None:
        """Give a flight the page in which ``span`` begins. The answer has nothing of the page before that."""
        ref, number = request.ref, span.start // self.page_size
        page = page_span(number, self.page_size, meta.size)
        part, stored_as = None, None
        explained = note(span.start)
        self._cache.miss(ref, number, explained=explained)
        self.observer.note_wanted(ref, number, request.job)
        if span.start > page.start:
            part = Span(span.start - page.start, page.length)
            self._before_deciding()
            fetch = self._cache.partial.fetch_part(ref, number, self._cache.groups.of(ref), page.start, part)
            stored_as = self._stored_as(number, part, fetch)
        self.flights.place(flight, number, part, stored_as)

    def answer_stop(
        self,
        request: ReadRequest,
        meta: ObjectMeta | None = None,
        span: Span | None = None,
        pages: range = range(0),
        finds: Callable[[int], bool] = lambda _page: False,
        *,
        explained: bool = False,
    ) -> int | None:
        """Return the end of the bytes to request with the first of ``pages``, which is missing; None: request
        that page alone. ``meta``, ``span``: the object's version and its wanted bytes; None: not known.

        The result ends before the first page that is on its way, or that ``finds`` finds in a tier. It is the
        end of a page if that page will be fetched whole (``PartialReads``).
        """
        if request.intent is not Intent.DEMAND:
            return None
        if meta is None or span is None:
            size, stop = ENDLESS, stop_asked(request, self.page_size)
        else:
            size, stop = meta.size, self._missing_stop(request.ref, pages, finds)
            stop = None if stop is None else min(stop * self.page_size, span.stop)
        if stop is None:
            return None
        number, part_bytes = divmod(stop, self.page_size)
        end = min((number + 1) * self.page_size, size)
        page_bytes = end - number * self.page_size
        takes_page = part_bytes and self._cache.partial.takes_page(
            request.ref, number, page_bytes=page_bytes, part_bytes=part_bytes, explained=explained
        )
        return end if takes_page else stop

    def _missing_stop(self, ref: ObjectRef, pages: range, finds: Callable[[int], bool]) -> int | None:
        """Return the end of the missing pages that one answer should bring, as a page number."""
        ledger, page_size = self._ledger, self.page_size
        room_bytes = ledger.capacity_bytes * READAHEAD_SHARE
        if len(pages) < 2 or ledger.waiting or ledger.taken_bytes + 3 * page_size > room_bytes:
            return None
        stop = pages.start + 1
        while stop < min(pages.stop, pages.start + MOST_TOGETHER):
            if self.flights.busy(ref, stop) or finds(stop):
                break
            stop += 1
        return stop if stop > pages.start + 1 and self.filler.answers.may_share() else None

    def join_readahead(
        self,
        ref: ObjectRef,
        number: int,
        *,
        upstream: Upstream,
        meta: ObjectMeta,
        part: Span | None,
        explained: bool,
        job: JobContext | None,
    ) -> Flight | None:
        """Join or start the flight of a page that will be wanted soon. Return None if memory is short: a
        reader that waits for memory for one page must not hold memory for later pages.
        """
        READER.set(job or ref)
        length = page_span(number, self.page_size, meta.size).length
        readahead_bytes = self._ledger.capacity_bytes * READAHEAD_SHARE
        running = self.flights.find_serving(ref, number, meta.etag, part) is not None
        if not running:
            if self._ledger.waiting or self._ledger.taken_bytes + length > readahead_bytes:
                return None
            # Take memory before the miss is noted. When the miss is noted, the access log may be flushed.
            # Pages may then be demoted, which needs memory too.
            taken = self._ledger.try_take(length)
            assert taken, "no fill waits and there is room"
        self._cache.miss(ref, number, explained=explained)
        self.observer.note_wanted(ref, number, job)
        fetch = Fetch.PAGE
        if part is not None:
            fetch = self._fetch_of(ref, number, meta, part, explained=explained)
        flight, _ = self.flights.join(
            ref,
            number,
            upstream,
            partial(self.filler.fill, meta),
            wanted=meta.etag,
            part=part,
            part_only=fetch is not Fetch.PAGE,
            stored_as=self._stored_as(number, part, fetch),
        )
        if not running:
            flight.budget_bytes = length if flight.part is None else flight.part.length
            self._ledger.give(length - flight.budget_bytes)
        self._demand(flight)
        return flight

    def _fetch_of(
        self, ref: ObjectRef, number: int, meta: ObjectMeta | None, part: Span, *, explained: bool
    ) -> Fetch:
        """Return what to fetch for ``part`` of a missing page. The caller has noted the miss before. If
        nothing is known of the object (``meta`` None), the page counts as a full one.
        """
        busy = self.flights.busy(ref, number)
        # If bytes of the part are on their way, several readers want them. So fetch the whole page, which
        # then serves all of them, or join the flight that serves all of the part.
        if busy and self.flights.overlaps(ref, number, part):
            return Fetch.PAGE
        end = (number + 1) * self.page_size
        page = page_span(number, self.page_size, end if meta is None else meta.size)
        self._before_deciding()
        return self._cache.partial.fetch(
            ref,
            number,
            self._cache.groups.of_missing(ref),
            first=page.start,
            page_bytes=page.length,
            part=part,
            explained=explained,
            busy=busy,
        )

    def _stored_as(self, number: int, part: Span | None, fetch: Fetch) -> int | None:
        """Return the number under which a flight stores ``part`` of a page; see ``Flight.stored_as``."""
        if part is None or fetch is not Fetch.STORED_PART:
            return None
        return part_number(number * self.page_size + part.start)

    def _demand(self, flight: Flight) -> None:
        """Turn a prefetch that a reader has joined into a demand read, with the priority of a demand read."""
        if flight.intent is Intent.PREFETCH:
            flight.intent = Intent.DEMAND
            self._stats.record_prefetch("used")

    def _goes_on(self, flight: Flight) -> bool:
        """Return whether a flight that has lost its last waiter goes on to its end. Call this only if one of
        its waiters got all that it wanted.
        """
        ledger = self._ledger
        return (
            flight.publishable
            and flight.part is None
            and not ledger.waiting
            and ledger.taken_bytes <= ledger.capacity_bytes * READAHEAD_SHARE
        )

    def _retire(self, flight: Flight) -> None:
        given, flight.budget_bytes = flight.budget_bytes, 0
        if given:
            self._ledger.give(given)
