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
from shadeproxy.core.ranges import page_span, pages_of
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Page, Source, Span
from shadeproxy.engine.base import Hit, Located, Resident
from shadeproxy.engine.cache import PageCache
from shadeproxy.engine.residents import Slots

MOST_PAGES = 2
"""More are streamed with back-pressure: their pins would hold memory for as long as a client likes."""

MOST_LOCATED_PAGES = 256
COPY_BYTES = 16 * 1024
"""Up to here copying a body beside its head costs less than pinning it and writing two pieces."""

_NOTED_TOGETHER = 1024
_FLUSH_AFTER_S = 0.05

CountMany = Callable[[list[tuple[Resident, JobContext | None]]], None]


class _Piece(NamedTuple):
    slot: int
    within: Span
    """Of the page's bytes."""


class Hits:
    """The pages of a ``PageCache`` of ``page_size`` bytes, for who cannot wait.

    ``count``: told of the reads by ticket, many at a time.
    """

    def __init__(self, cache: PageCache, page_size: int, *, count: CountMany) -> None:
        self._cache = cache
        self._residents = cache.residents
        self._page_size = page_size
        self._count = count
        self._slots: list[int] = []
        self._taken: list[tuple[Resident, JobContext | None]] = []
        self._timer: asyncio.TimerHandle | None = None

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

    # ------------------------------------------------------------------ whole objects, again and again

    def ticket(self, ref: ObjectRef, meta: ObjectMeta, fresh_until_s: float) -> Resident | None:
        """A ticket for all bytes of an object that is one page."""
        if not 0 < meta.size <= self._page_size:
            return None
        slot = self._cache.find(Page(ref, meta.etag, 0))
        return None if slot is None else self._cache.hot.ticket(slot, ref, meta, fresh_until_s)

    def take(self, resident: Resident, job: JobContext | None, now_s: float) -> memoryview | None:
        """The body of a ticket, noted as used; None when the ticket is no longer good.

        Up to COPY_BYTES it is not pinned: copy it before anything else runs.
        """
        if (
            self._residents.stamps[resident.slot] != resident.stamp
            or resident.fresh_until_s <= now_s
            or (resident.can_wait and not resident.tier.is_hot(resident.location))
        ):
            return None
        start, stop = resident.start, resident.stop
        if stop - start <= COPY_BYTES:
            body = resident.window[start:stop]
        else:
            try:
                body = resident.tier.pin(resident.location)
            except TierError:
                return None
        taken = self._taken
        taken.append((resident, job))
        if self._timer is None or len(taken) >= _NOTED_TOGETHER:
            self._flush_soon()
        return body

    # ------------------------------------------------------------------ notes

    def note(self, slots: Slots, stamps: NDArray[np.int64]) -> None:
        """Reads of pages by another process, of which those that changed hands since are left out."""
        self._slots += slots[self._residents.stamp[slots] == stamps].tolist()
        self._flush_soon()

    def flush(self) -> None:
        """Let recency, reuse and statistics know of every read so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._taken = self._taken, []
        slots, self._slots = self._slots, []
        stamps = self._residents.stamps
        # A slot that changed hands since is another page's.
        slots += [one.slot for one, _ in taken if stamps[one.slot] == one.stamp]
        if taken:
            self._count(taken)
        if slots:
            self._cache.note_uses(np.array(slots, dtype=np.int64))

    def _note(self, pieces: list[_Piece]) -> None:
        self._slots += [piece.slot for piece in pieces]
        self._flush_soon()

    def _flush_soon(self) -> None:
        if len(self._slots) + len(self._taken) >= _NOTED_TOGETHER:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_AFTER_S, self.flush)

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
