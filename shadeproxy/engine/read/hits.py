"""Reads that need no waiting. Plain defs throughout.

Laws: nothing is counted or changed unless the answer is complete; a read that cannot be answered here returns
None, never an error: ``Engine.open`` then finds out why. Answered reads go to the access log (notes.py).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shadeproxy.core.errors import TierError
from shadeproxy.core.memo import Memo
from shadeproxy.core.ranges import page_span, pages_of
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Page, Source, Span
from shadeproxy.engine.base import FoundSamples, Hit, Located, PageHandle, SendfileSlice
from shadeproxy.engine.read.access_log import AccessLog
from shadeproxy.engine.read.sample_lookup import SOURCES, SampleLookup
from shadeproxy.engine.storage.hot_pages import COPY_BYTES
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.datasets import Dataset, Ids
from shadeproxy.tiers.base import Place, SendableBlocks

MOST_PAGES = 2
"""More pages are streamed with back-pressure: pins would hold their memory as long as a client likes."""

MOST_LOCATED_PAGES = 256
# A page handle and its key take about 700 bytes.
_MOST_TICKETS = 32_768

Fresh = Callable[[ObjectRef], tuple[ObjectMeta, float] | None]
"""Metadata that may answer every client, and the time until it may (Unix time)."""


class _Piece(NamedTuple):
    slot: int
    within: Span
    """Within the page's bytes."""


class Hits:
    """Hits on the pages of a ``PageCache`` of ``page_size`` bytes, without waiting.

    ``notes``: the access log. ``fresh``: asked before a page handle is made. ``tickets``: page handles by
    object and page number, which the compiled lane reads too.
    """

    def __init__(self, cache: PageCache, page_size: int, *, notes: AccessLog, fresh: Fresh) -> None:
        self._cache = cache
        self._residents = cache.residents
        self.page_size = page_size
        self.notes = notes
        self._note = notes.add
        self._fresh = fresh
        self._samples = SampleLookup(cache.residents, page_size)
        self.tickets: Memo[tuple[ObjectRef, int], PageHandle] = Memo(_MOST_TICKETS)

    # ------------------------------------------------------------------ any span

    def ready(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> bool:
        """Return whether ``read`` would answer now, recording nothing."""
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        return pieces is not None and all(self._cache.hot.is_ready(piece.slot) for piece in pieces)

    def read(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> Hit | None:
        """Return the bytes of ``span``, recorded as read; None when a page is missing, cold or unverified."""
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        if pieces is None:
            return None
        views: list[memoryview] = []
        for slot, within in pieces:
            view = self._cache.hot.view(slot)
            if view is None:
                return None
            views.append(view[within.start : within.stop])
        self.notes.add_pages([piece.slot for piece in pieces])
        return Hit(self._source(pieces), tuple(views))

    def locate(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """Return the places of the bytes of ``span``, recorded as read; None as ``read``."""
        pieces = self._pieces(ref, meta, span, most=MOST_LOCATED_PAGES)
        if pieces is None:
            return None
        located: list[Located] = []
        for slot, within in pieces:
            place = self._cache.hot.place(slot)
            if place is None:
                return None
            start = place.body_offset + within.start
            source = self._cache.source(slot)
            located.append(
                Located(source, place.path, place.header_offset, place.header, start, within.length)
            )
        self.notes.add_pages([piece.slot for piece in pieces])
        return tuple(located)

    # ------------------------------------------------------------------ page handles

    def ticket(self, ref: ObjectRef, first: int, now_s: float) -> PageHandle | None:
        """Return a handle for the page that holds byte ``first``, valid at ``now_s``, perhaps not hot."""
        number = first // self.page_size
        ticket = self.tickets.get((ref, number))
        if ticket is not None and self._is_good(ticket, now_s):
            return ticket
        fresh = self._fresh(ref)
        slot = None if fresh is None else self._cache.find(Page(ref, fresh[0].etag, number))
        if fresh is None or slot is None:
            return None
        meta, until_s = fresh
        begin = number * self.page_size
        ticket = self._cache.hot.ticket(slot, ref, meta, first=begin, fresh_until_s=until_s)
        if ticket is not None:
            self.tickets.put((ref, number), ticket)
        return ticket

    def take(
        self, ticket: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        """Return a handle's bytes, recorded as read; None when the handle is no longer valid.

        The bytes of a page of up to COPY_BYTES are not pinned: copy them before anything else runs.
        """
        if not self._is_readable(ticket, now_s):
            return None
        start, stop = ticket.start, ticket.stop
        if stop - start <= COPY_BYTES:
            body = ticket.window[start:stop]
        else:
            try:
                body = ticket.tier.pin_window(ticket.location, start, stop)
            except TierError:
                return None
        if span is not None:
            body = body[span.start - ticket.first : span.stop - ticket.first]
        self._note(ticket, job, span)
        return body

    def lend(
        self, ticket: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> SendfileSlice | None:
        """Do as ``take``, but return a slice for sendfile."""
        if ticket.lender is None or not self._is_readable(ticket, now_s):
            return None
        start, stop = ticket.start, ticket.stop
        if span is not None:
            stop = start + span.stop - ticket.first
            start += span.start - ticket.first
        self._note(ticket, job, span)
        return _loan(ticket, ticket.lender, start, stop)

    def lend_across(
        self, ticket: PageHandle, job: JobContext | None, now_s: float, span: Span
    ) -> tuple[SendfileSlice, ...] | None:
        """Do as ``lend``, over at most MOST_PAGES pages of one version and tier, recorded as one read."""
        tickets = [ticket]
        while (first := tickets[-1].first + self.page_size) < span.stop:
            after = self.ticket(ticket.ref, first, now_s) if len(tickets) < MOST_PAGES else None
            if after is None or after.meta.etag != ticket.meta.etag or after.source is not ticket.source:
                return None
            tickets.append(after)
        if any(one.lender is None or not self._is_readable(one, now_s) for one in tickets):
            return None
        loans = []
        for one in tickets:
            assert one.lender is not None, "just looked at"
            offset = one.start - one.first
            start, stop = max(span.start + offset, one.start), min(span.stop + offset, one.stop)
            loans.append(_loan(one, one.lender, start, stop))
        self._note(ticket, job, span)
        self.notes.add_pages([one.slot for one in tickets[1:]])
        return tuple(loans)

    def place(self, ticket: PageHandle, job: JobContext | None, now_s: float, span: Span) -> Place | None:
        """Do as ``take``, but return the record's place. The page need not be in the page cache."""
        if not self._is_good(ticket, now_s):
            return None
        if ticket.place is None:
            # Locating reads the header through the mapping, and making the handle has just touched it.
            ticket.place = self._cache.hot.place(ticket.slot)
            if ticket.place is None:
                return None
        self._note(ticket, job, span)
        return ticket.place

    def remember_sample(self, dataset: Dataset, sample_id: int, ticket: PageHandle) -> None:
        """Remember the place of the sample, if ``place`` has just set it on the handle."""
        if ticket.place is not None:
            self._samples.remember(dataset, sample_id, ticket, ticket.place)

    def find_samples(
        self, dataset: Dataset, ids: Ids, job: JobContext | None, now_s: float
    ) -> FoundSamples | None:
        """Return the places of samples given to ``remember_sample`` with valid handles, recorded as read."""
        found = self._samples.find(dataset, ids, now_s)
        if found is None or not len(found.uses):
            return found
        entries, uses = dataset.entries, found.uses
        rows = ids[found.here]
        buckets = entries.bucket_of[rows if dataset.entry_of is None else dataset.entry_of[rows]]
        codes, kind_of = np.unique(
            buckets.astype(np.int64) * len(SOURCES) + found.source, return_inverse=True
        )
        numbers = [
            self.notes.kind(entries.buckets[code // len(SOURCES)], SOURCES[code % len(SOURCES)], job)
            for code in codes.tolist()
        ]
        uses["kind"] = np.array(numbers, np.int32)[kind_of]
        self.notes.add_many(uses)
        return found

    def _is_good(self, ticket: PageHandle, now_s: float) -> bool:
        return self._residents.stamps[ticket.slot] == ticket.stamp and now_s < ticket.fresh_until_s

    def _is_readable(self, ticket: PageHandle, now_s: float) -> bool:
        """Return whether the handle is valid, and its bytes can be touched without waiting."""
        return (
            self._residents.stamps[ticket.slot] == ticket.stamp
            and now_s < ticket.fresh_until_s
            and (not ticket.can_wait or ticket.tier.is_hot(ticket.location))
        )

    def forget(self) -> None:
        """Drop every page handle: the answers of ``fresh`` changed."""
        self.tickets.clear()
        self._samples.forget()

    def _pieces(self, ref: ObjectRef, meta: ObjectMeta, span: Span, *, most: int) -> list[_Piece] | None:
        numbers = pages_of(span, self.page_size)
        if len(numbers) > most:
            return None
        pieces: list[_Piece] = []
        for number in numbers:
            slot = self._cache.find(Page(ref, meta.etag, number))
            if slot is None:
                return None
            page = page_span(number, self.page_size, meta.size)
            within = Span(max(span.start, page.start) - page.start, min(span.stop, page.stop) - page.start)
            pieces.append(_Piece(slot, within))
        return pieces

    def _source(self, pieces: list[_Piece]) -> Source:
        sources = [self._cache.source(piece.slot) for piece in pieces]
        return Source.DISK if Source.DISK in sources else Source.RAM


def _loan(ticket: PageHandle, lender: SendableBlocks, start: int, stop: int) -> SendfileSlice:
    file = lender.file
    first = max(start, lender.start)
    last = max(first, min(stop, lender.stop))
    if first < last and not ticket.lent:
        # Mark the whole page at once, else each range would be marked separately. It costs a hole where
        # blocks that were not sent could be overwritten.
        file.lend(lender.start, lender.stop)
        ticket.lent = True
    return SendfileSlice(ticket, file, start, first, last, stop)
