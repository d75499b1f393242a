"""The steps of every fill of a flight, by a task (flight_filler.py) or by callbacks (callback_fill.py).

Laws: memory is taken from the ledger before it is allocated. Slots and memory cannot deadlock: fills that
wait for an origin slot hold at most half of the memory budget, and a fill waits for memory only while it
holds a slot.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from shadeproxy.core.clock import Clock
from shadeproxy.core.delegated_body import BodyWriter
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import Intent, ObjectMeta, ObjectRef, Span
from shadeproxy.engine.freshness.verdicts import AuthEpoch
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.ownership import Ownership, Standing, validated_s
from shadeproxy.engine.read.flight import DetachedBuffers, Flight
from shadeproxy.engine.read.shared_answer import SharedAnswers
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.origin.base import Origin, Wanted
from shadeproxy.telemetry.stats import Stats

READAHEAD_SHARE = 0.5
_TOGETHER = 16
"""When so many pages have arrived, they are stored at once, without a wait for more."""

# The same limit in bytes; longer copies hold the loop too long. A body that a worker writes counts an eighth.
_TOGETHER_BYTES, _DELEGATED = 1 << 20, 8

_COLLECTED_S = 0.004
"""The longest time for which a page waits for others, to be stored with them. In a turn that stores one to
three pages, each page costs up to twice as much as in a turn that stores ten (docs/adr/0044).
"""


class FillSteps:
    """The steps that fills share. They store the pages of flights in ``cache``."""

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
        """``retire``: returns the memory of a flight to the ledger. ``outdated``: called to drop an old
        version. ``before_deciding``: called before pages are ranked, to flush the access log.
        """
        self._origin = origin
        self._cache = cache
        self.flights = flights
        self._retire = retire
        self._detached = detached
        self._versions = versions
        self._ledger = ledger
        self._other_pages = cache.residents.other_pages
        self._stats = stats
        self._clock = clock
        self.page_size = page_size
        """Length of a page in bytes."""
        self.long_groups: set[int] = set()
        """The prefix groups whose last fetched object has several pages."""
        self._outdated = outdated
        self._before_deciding = before_deciding
        self.answers = SharedAnswers()
        """The answers that fills by a task may share."""
        self._arrived: list[tuple[Flight, BodyWriter | None]] = []
        self._arrived_bytes = 0
        self._collecting: asyncio.TimerHandle | None = None  # The timer that ends the wait for more pages.
        self._storing = False  # True if the arrived pages will be stored in the next turn.

    def begin(self, flight: Flight) -> AuthEpoch | None:
        """Prepare a flight before the origin is asked. Return the auth epoch."""
        versions = self._versions
        flight.publishable = not versions.writing or not versions.being_written(flight.ref)
        if versions.ownership is not None:
            flight.began = versions.ownership.begin()
            flight.exact = versions.ownership.standing(flight.ref) is not Standing.OWN
        if flight.exact or not flight.publishable:
            flight.answer_stop = None  # Later flights may not take bytes from this one's answer.
        return None if versions.verdicts is None else versions.auth_epoch(flight.ref)

    def accept(self, flight: Flight, meta: ObjectMeta, epoch: AuthEpoch | None, *, whole: bool) -> ObjectMeta:
        """Record the metadata of the origin's answer. Return all fields that are known of its version.

        If the answer has a newer version, drop all other versions, whether cached or on their way.
        """
        if epoch is not None:
            self._versions.allow(flight.upstream, flight.ref, epoch)
        if flight.publishable and self._versions.holds_other(flight.ref, meta):
            self._outdated(flight.ref)
            flight.publishable = True
        self.note_size(flight.ref, meta.size)
        flight.note_page_length(min(self.page_size, meta.size - flight.number * self.page_size))
        # A Content-Range proves the object's length. A Content-Length proves it only when all bytes have
        # come.
        if whole or not flight.publishable:
            return meta
        return self._versions.learn(flight.ref, meta, flight.began)

    def note_size(self, ref: ObjectRef, size_bytes: int) -> None:
        """Note the size of a fetched object, for ``long_groups``."""
        note = self.long_groups.add if size_bytes > self.page_size else self.long_groups.discard
        note(self._cache.groups.of(ref))

    def _keeps(self, flight: Flight) -> bool:
        """Return whether to store the bytes of a flight. A part that is not stored counts as a bypass."""
        if flight.part is not None and flight.stored_as is None:
            self._stats.record_bypass()
            return False
        return flight.publishable and len(flight.buffer) > 0 and (flight.kept or self._is_lost(flight))

    def _is_lost(self, flight: Flight) -> bool:
        """Return whether the tier that had the page when the flight began has lost it."""
        return self._cache.find(flight.page) is None

    def complete(self, flight: Flight, writer: BodyWriter | None, *, whole: bool) -> None:
        """Store the page of a flight that callbacks filled, together with other arrived pages. Wait a little
        for more pages if some are on their way to readers, and memory is plenty.

        ``writer``: see ``NewPage``. ``whole``: True if all bytes of the object have come.
        """
        if whole and flight.publishable:
            assert flight.meta is not None, "opened before its bytes came"
            flight.publishable = self._versions.prove(flight.ref, flight.meta, flight.began)
        if (
            not (flight.publishable and flight.filled)
            or (flight.part is not None and flight.stored_as is None)
            or not (flight.kept or self._is_lost(flight))
        ):
            self._keeps(flight)
            self.flights.end(flight)
            return
        arrived, ledger = self._arrived, self._ledger
        arrived.append((flight, writer))
        self._arrived_bytes += flight.filled if writer is None else flight.filled // _DELEGATED
        if self._storing:
            return
        if (
            len(arrived) < _TOGETHER
            and self._arrived_bytes < _TOGETHER_BYTES
            and len(self.flights.live) > len(arrived)
            and ledger.taken_bytes <= ledger.capacity_bytes * READAHEAD_SHARE
            and flight.intent is Intent.DEMAND
        ):
            if self._collecting is None:
                self._collecting = asyncio.get_running_loop().call_later(_COLLECTED_S, self._store_arrived)
            return
        if self._collecting is not None:
            self._collecting.cancel()
        self._storing = True
        asyncio.get_running_loop().call_soon(self._store_arrived)

    def _store_arrived(self) -> None:
        arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
        self._collecting, self._storing = None, False
        try:
            self._before_deciding()
        except BaseException:
            for flight, _ in arrived:
                self.flights.end(flight)
            raise
        now_s, pages, ownership = self._clock.now_s(), [], self._versions.ownership
        for flight, writer in arrived:
            checked_s = now_s if ownership is None else self._validated_s(ownership, flight, now_s)
            if not flight.publishable:  # The object was written, or is FOREIGN: keep the page off the medium.
                self.flights.end(flight)
                continue
            assert flight.meta is not None, "complete"
            may, stored = flight.may_publish, partial(self._stored, flight)
            pages.append(NewPage(flight.page, flight.meta, flight.buffer, checked_s, may, stored, writer))
        if pages:
            self._cache.insert_many(pages)

    def _stored(self, flight: Flight, stored: bool) -> None:
        if stored and self._other_pages:
            self._replace_parts(flight)
        if stored and (flight.waiters or flight.intent is Intent.PREFETCH):
            self._note_stored(flight, stored=True)
        else:
            flight.stored = stored
        self.flights.end(flight)

    def wanted(self, flight: Flight, known: ObjectMeta | None) -> Wanted:
        """Return the GET that fills a flight.

        The first page of an unknown or small object is requested without a range. Such a GET works for empty
        objects too, and its answer has the checksum of the whole object. If the object is bigger, only the
        first page is read.
        """
        whole = flight.part is None and flight.number == 0 and (known is None or known.size <= self.page_size)
        span = None if whole else self.within(flight)
        if span is not None and flight.answer_stop is not None:
            stop = flight.answer_stop if known is None else min(flight.answer_stop, known.size)
            span = Span(span.start, stop)
        return Wanted(flight.ref, span, None if known is None else known.etag, flight.upstream)

    def within(self, flight: Flight, size_bytes: int | None = None) -> Span:
        """Return the span of the object that a flight fetches. ``size_bytes``: size of the object, which may
        end before the page does; None: not known.
        """
        if flight.part is not None and flight.part.start < 0:
            return flight.part  # The last bytes of the object.
        first = flight.number * self.page_size
        part = Span(0, self.page_size) if flight.part is None else flight.part
        stop = first + part.stop
        start = first + part.start
        # If the object ends before the page begins, the span is empty.
        return Span(start, stop if size_bytes is None else max(start, min(stop, size_bytes)))

    def length_of(self, flight: Flight, meta: ObjectMeta) -> int:
        """Return how many bytes of a version a flight fetches."""
        return self.within(flight, meta.size).length

    def _validated_s(self, ownership: Ownership, flight: Flight, now_s: float) -> float:
        """Return the time of validation to store with a page. Let the page not be stored if this process may
        not store it now.
        """
        flight.publishable &= ownership.may_store(flight.ref)
        return validated_s(ownership, flight.ref, flight.began, now_s)

    def _note_stored(self, flight: Flight, *, stored: bool) -> None:
        flight.stored = stored
        if stored and flight.intent is Intent.PREFETCH:
            self._cache.mark_unread(flight.page)
        view = self._cache.view_now(flight.page) if stored and flight.waiters else None
        if view is not None:
            # Slow readers continue from the tier. This memory then becomes free for other fills.
            self._detached.add(flight.buffer)
            flight.buffer = view
            self._retire(flight)

    def _replace_parts(self, flight: Flight) -> None:
        """Drop the stored parts of the page that a flight has stored. If the page is only a guess, keep them:
        it may leave again without having been read.
        """
        if flight.part is None and not flight.prefetched:
            self._cache.drop_parts(flight.ref, flight.number, self.page_size)

    def take_early(self, flight: Flight, length: int) -> bool:
        """Take memory for the page before the origin is asked, so that the connection never waits for memory.
        Leave at least half of the budget free. Return False for a prefetch that gets no memory: it must not
        ask the origin.

        The other half is for fills that hold a slot: they learn the length of their page only from the
        origin. If fills that wait for a slot could hold all memory, fills that hold the slots would wait for
        it.
        """
        ledger = self._ledger
        if flight.intent is not Intent.DEMAND:
            return self.take_now(flight, length)
        if not flight.budget_bytes:
            plenty = ledger.taken_bytes + length <= ledger.capacity_bytes * READAHEAD_SHARE
            if plenty and ledger.try_take(length):
                flight.budget_bytes = length
        return True

    def take_now(self, flight: Flight, length: int) -> bool:
        """Take the memory that the page still needs, or give back what is too much. Return False, with
        nothing taken, if there is too little memory.
        """
        missing = length - flight.budget_bytes
        if missing > 0 and not self._ledger.take_now(missing, flight.intent):
            return False
        if missing < 0:
            self._ledger.give(-missing)
        flight.budget_bytes = length
        return True
