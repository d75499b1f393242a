"""Reads that need no waiting. Plain defs throughout.

Laws: nothing is counted and nothing changes unless the answer is complete; what cannot be answered here is
None, never an error: ``Engine.open`` then finds out why. Reads are noted together, because noting 1,000
costs what noting ten one by one does; whoever decides by them, or shows them, calls ``flush`` first.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import TierError
from shadeproxy.core.memo import Memo
from shadeproxy.core.ranges import page_span, pages_of
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Page, Source, Span
from shadeproxy.engine.base import Hit, Loan, Located, Resident
from shadeproxy.engine.cache import PageCache
from shadeproxy.engine.hot import COPY_BYTES
from shadeproxy.engine.knowledge.datasets import Dataset, Ids
from shadeproxy.engine.residents import Slots
from shadeproxy.engine.sample_places import SOURCES, FoundSamples, SamplePlaces
from shadeproxy.engine.uses import Kind, Uses
from shadeproxy.tiers.base import Lender, Place

MOST_PAGES = 2
"""More are streamed with back-pressure: their pins would hold memory for as long as a client likes."""

MOST_LOCATED_PAGES = 256
_NOTED_TOGETHER = 4096
# Noting costs some 100 us, and ten times as much where nothing of it is in the processor's caches: for the
# sake of fewer reads than these no decision waits for it.
_WORTH_NOTING = 256
# Of a small cache so many would be much: what was read is not to be kept for that read.
_SMALL = 64
# A ticket and its key take about 500 bytes.
_MOST_TICKETS = 32_768
_FLUSH_AFTER_S = 0.2
# Who fetches ahead goes by what has been read.
_FLUSH_UNREAD_AFTER_S = 0.01

Taken = tuple[Resident, JobContext | None, int, int]
"""One read by ticket: for whom, from which byte of the object on, and how many."""

CountMany = Callable[[list[Taken]], None]
CountUses = Callable[[Uses, list[Kind]], None]
Fresh = Callable[[ObjectRef], tuple[ObjectMeta, float] | None]
"""Metadata that may answer every client, and until when (Unix time)."""


class _Piece(NamedTuple):
    slot: int
    within: Span
    """Of the page's bytes."""


class Hits:
    """The pages of a ``PageCache`` of ``page_size`` bytes, for who cannot wait.

    ``fresh``: asked before a ticket is made. ``count``: told of the reads by ticket, many at a time;
    ``count_uses``: of those that are noted in columns.
    """

    def __init__(
        self, cache: PageCache, page_size: int, *, fresh: Fresh, count: CountMany, count_uses: CountUses
    ) -> None:
        self._cache = cache
        self._residents = cache.residents
        self._page_size = page_size
        self._fresh = fresh
        self._count = count
        self._count_uses = count_uses
        self._samples = SamplePlaces(cache.residents, page_size)
        self._uses: list[Uses] = []
        """Reads that were noted in columns; all of them came before those in ``_taken``."""
        self._kinds: dict[Kind, int] = {}
        self._slots: list[int] = []
        self._generations: list[int] = []
        """Of the page that was read in each of ``_slots``: until it is noted its slot may change hands."""
        self._taken: list[Taken] = []
        self._tickets: Memo[tuple[ObjectRef, int], Resident] = Memo(_MOST_TICKETS)
        self._timer: asyncio.Handle | None = None
        self._delay_s = 0.0
        """What the timer was set for."""
        self._unread = cache.residents.unread

    # ------------------------------------------------------------------ any span

    def ready(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> bool:
        """Whether ``read`` would answer now; nothing is noted."""
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        return pieces is not None and all(self._cache.hot.is_ready(piece.slot) for piece in pieces)

    def read(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> Hit | None:
        """The bytes of ``span``, noted as used; None when a page is missing, cold or unverified."""
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        if pieces is None:
            return None
        views: list[memoryview] = []
        for slot, within in pieces:
            view = self._cache.hot.view(slot)
            if view is None:
                return None
            views.append(view[within.start : within.stop])
        self._note(pieces)
        return Hit(self._source(pieces), tuple(views))

    def locate(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """Where the bytes of ``span`` are, noted as used; None as ``read``."""
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
        self._note(pieces)
        return tuple(located)

    # ------------------------------------------------------------------ a page, again and again

    def ticket(self, ref: ObjectRef, first: int, now_s: float) -> Resident | None:
        """A ticket for the page that holds byte ``first``, good at ``now_s`` but for the wait it may cost."""
        number = first // self._page_size
        ticket = self._tickets.get((ref, number))
        if ticket is not None and self._is_good(ticket, now_s):
            return ticket
        fresh = self._fresh(ref)
        slot = None if fresh is None else self._cache.find(Page(ref, fresh[0].etag, number))
        if fresh is None or slot is None:
            return None
        meta, until_s = fresh
        begin = number * self._page_size
        ticket = self._cache.hot.ticket(slot, ref, meta, first=begin, fresh_until_s=until_s)
        if ticket is not None:
            self._tickets.put((ref, number), ticket)
        return ticket

    def take(
        self, ticket: Resident, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        """The bytes of a ticket, noted as used; None when the ticket is no longer good.

        Of a page of up to COPY_BYTES they are not pinned: copy them before anything else runs.
        """
        if not self._is_readable(ticket, now_s):
            return None
        start, stop = ticket.start, ticket.stop
        if stop - start <= COPY_BYTES:
            body = ticket.window[start:stop]
        else:
            try:
                body = ticket.tier.pin(ticket.location)
            except TierError:
                return None
        if span is not None:
            body = body[span.start - ticket.first : span.stop - ticket.first]
        self._note_taken(ticket, job, ticket.first if span is None else span.start, len(body))
        return body

    def lend(
        self, ticket: Resident, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> Loan | None:
        """As ``take``, for sendfile."""
        if ticket.lender is None or not self._is_readable(ticket, now_s):
            return None
        start, stop = ticket.start, ticket.stop
        if span is not None:
            stop = start + span.stop - ticket.first
            start += span.start - ticket.first
        self._note_taken(ticket, job, ticket.first if span is None else span.start, stop - start)
        return _loan(ticket, ticket.lender, start, stop)

    def lend_across(
        self, ticket: Resident, job: JobContext | None, now_s: float, span: Span
    ) -> tuple[Loan, ...] | None:
        """As ``lend``, over at most MOST_PAGES pages of one version and one tier; noted as one read."""
        tickets = [ticket]
        while (first := tickets[-1].first + self._page_size) < span.stop:
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
        rest = [one.slot for one in tickets[1:]]
        self._keep(rest)
        self._note_taken(ticket, job, span.start, span.length)
        if not self._unread.isdisjoint(rest):
            self._flush_soon(_FLUSH_UNREAD_AFTER_S)
        return tuple(loans)

    def place(self, ticket: Resident, job: JobContext | None, now_s: float, span: Span) -> Place | None:
        """As ``take``, but where the page's record is: that it is not in the page cache is no hindrance."""
        if not self._is_good(ticket, now_s):
            return None
        if ticket.place is None:
            # Telling reads the header through the mapping, which the maker of the ticket has just touched.
            ticket.place = self._cache.hot.place(ticket.slot)
            if ticket.place is None:
                return None
        self._note_taken(ticket, job, span.start, span.length)
        return ticket.place

    def remember_sample(self, dataset: Dataset, sample_id: int, ticket: Resident) -> None:
        """A ticket just had its ``place`` told for the sample."""
        if ticket.place is not None:
            self._samples.remember(dataset, sample_id, ticket, ticket.place)

    def find_samples(
        self, dataset: Dataset, ids: Ids, job: JobContext | None, now_s: float
    ) -> FoundSamples | None:
        """As ``place``, of all samples whose tickets ``remember_sample`` was told of; noted as used."""
        found = self._samples.find(dataset, ids, now_s)
        if found is None or not len(found.uses):
            return found
        if self._taken:
            self.tell()  # in the order in which they came
        entries, uses = dataset.entries, found.uses
        rows = ids[found.here]
        buckets = entries.bucket_of[rows if dataset.entry_of is None else dataset.entry_of[rows]]
        codes, kind_of = np.unique(
            buckets.astype(np.int64) * len(SOURCES) + found.source, return_inverse=True
        )
        kinds = [
            Kind(entries.buckets[code // len(SOURCES)], SOURCES[code % len(SOURCES)], job)
            for code in codes.tolist()
        ]
        numbers = [self._kinds.setdefault(kind, len(self._kinds)) for kind in kinds]
        uses["kind"] = np.array(numbers, np.int32)[kind_of]
        self._uses.append(uses)
        unread = self._unread and not self._unread.isdisjoint(uses["slot"].tolist())
        self._flush_soon(_FLUSH_UNREAD_AFTER_S if unread else _FLUSH_AFTER_S)
        return found

    def _is_good(self, ticket: Resident, now_s: float) -> bool:
        return self._residents.stamps[ticket.slot] == ticket.stamp and now_s < ticket.fresh_until_s

    def _is_readable(self, ticket: Resident, now_s: float) -> bool:
        """Whether it is good, and its bytes can be touched without waiting."""
        return (
            self._residents.stamps[ticket.slot] == ticket.stamp
            and now_s < ticket.fresh_until_s
            and (not ticket.can_wait or ticket.tier.is_hot(ticket.location))
        )

    def forget(self) -> None:
        """Make every ticket anew: what ``fresh`` says changed."""
        self._tickets = Memo(_MOST_TICKETS)
        self._samples.forget()

    # ------------------------------------------------------------------ notes

    def flush_many(self) -> None:
        """``flush``, if there is enough to be worth it."""
        enough = min(_WORTH_NOTING, len(self._residents) // _SMALL)
        if self._waiting >= max(enough, 1):
            self.flush()

    def note(self, slots: Slots, stamps: NDArray[np.int64]) -> None:
        """Reads of pages by another process, of which those that changed hands since are left out."""
        read = self._keep_many(slots, stamps)
        self._flush_soon(_FLUSH_AFTER_S if self._unread.isdisjoint(read) else _FLUSH_UNREAD_AFTER_S)

    def flush(self) -> None:
        """Let recency, reuse and statistics know of every read so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.tell()
        if self._slots:
            slots, generations = (
                np.array(column, dtype=np.int64) for column in (self._slots, self._generations)
            )
            self._slots, self._generations = [], []
            self._cache.note_uses(slots[self._residents.generation[slots] == generations])

    def tell(self) -> None:
        """Let statistics know of every read so far. Nothing is decided by it: it may be done at any time."""
        if self._uses:
            uses, self._uses = np.concatenate(self._uses), []
            kinds, self._kinds = list(self._kinds), {}
            self._keep_many(uses["slot"], uses["stamp"])
            self._count_uses(uses, kinds)
        taken, self._taken = self._taken, []
        if not taken:
            return
        stamps = self._residents.stamps
        # A slot that changed hands since is another page's.
        self._keep([one.slot for one, _, _, _ in taken if stamps[one.slot] == one.stamp])
        self._count(taken)

    def _note(self, pieces: list[_Piece]) -> None:
        slots = [piece.slot for piece in pieces]
        self._keep(slots)
        self._flush_soon(_FLUSH_AFTER_S if self._unread.isdisjoint(slots) else _FLUSH_UNREAD_AFTER_S)

    def _keep(self, slots: list[int]) -> None:
        generations = self._residents.generations
        self._slots += slots
        self._generations += [generations[slot] for slot in slots]

    def _keep_many(self, slots: Slots, stamps: NDArray[np.int64]) -> list[int]:
        """``_keep`` those that did not change hands since."""
        same = slots[self._residents.stamp[slots] == stamps]
        read: list[int] = same.tolist()
        self._slots += read
        self._generations += self._residents.generation[same].tolist()
        return read

    @property
    def _waiting(self) -> int:
        """Reads that are not noted yet."""
        return len(self._slots) + len(self._taken) + sum(map(len, self._uses))

    def _note_taken(self, ticket: Resident, job: JobContext | None, first: int, size_bytes: int) -> None:
        taken = self._taken
        taken.append((ticket, job, first, size_bytes))
        is_unread = ticket.slot in self._unread
        # What ``_flush_soon`` would find out: the timer is set already, and for no later.
        if is_unread or self._timer is None or len(self._slots) + len(taken) >= _NOTED_TOGETHER:
            self._flush_soon(_FLUSH_UNREAD_AFTER_S if is_unread else _FLUSH_AFTER_S)

    def _flush_soon(self, delay_s: float) -> None:
        """Never at once: noting may promote and evict, and who reads now has bytes that are not pinned."""
        if self._waiting >= _NOTED_TOGETHER:
            delay_s = 0.0
        if self._timer is not None:
            if self._delay_s <= delay_s:
                return
            self._timer.cancel()
        loop, self._delay_s = asyncio.get_running_loop(), delay_s
        self._timer = loop.call_later(delay_s, self.flush) if delay_s else loop.call_soon(self.flush)

    def _pieces(self, ref: ObjectRef, meta: ObjectMeta, span: Span, *, most: int) -> list[_Piece] | None:
        numbers = pages_of(span, self._page_size)
        if len(numbers) > most:
            return None
        pieces: list[_Piece] = []
        for number in numbers:
            slot = self._cache.find(Page(ref, meta.etag, number))
            if slot is None:
                return None
            page = page_span(number, self._page_size, meta.size)
            within = Span(max(span.start, page.start) - page.start, min(span.stop, page.stop) - page.start)
            pieces.append(_Piece(slot, within))
        return pieces

    def _source(self, pieces: list[_Piece]) -> Source:
        sources = [self._cache.source(piece.slot) for piece in pieces]
        return Source.DISK if Source.DISK in sources else Source.RAM


def _loan(ticket: Resident, lender: Lender, start: int, stop: int) -> Loan:
    file, first, last = lender
    first = max(start, first)
    last = max(first, min(stop, last))
    if first < last:
        file.lend(first, last)
    return Loan(ticket, file, start, first, last, stop)
