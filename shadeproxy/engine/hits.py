"""Reads that need no waiting: resident, verified pages that can be touched now. Plain defs throughout.

Laws: nothing is counted and nothing changes unless the answer is complete; what cannot be answered here is
None, never an error: ``Engine.open`` then finds out why.
"""

from typing import NamedTuple

from shadeproxy.core.ranges import page_span, pages_of
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page, Source, Span
from shadeproxy.engine.base import Hit, Located
from shadeproxy.engine.cache import PageCache

MOST_PAGES = 2
"""More are streamed with back-pressure: their pins would hold memory for as long as a client likes."""

MOST_LOCATED_PAGES = 256


class _Piece(NamedTuple):
    slot: int
    number: int
    within: Span
    """Of the page's bytes."""


class Hits:
    """The pages of a ``PageCache`` of ``page_size`` bytes, for who cannot wait."""

    def __init__(self, cache: PageCache, page_size: int) -> None:
        self._cache = cache
        self._page_size = page_size

    def ready(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> bool:
        """Whether ``read`` would answer now; nothing is noted."""
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        return pieces is not None and all(self._cache.is_ready(piece.slot) for piece in pieces)

    def read(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> Hit | None:
        """The bytes of ``span``, noted as used; None when a page is missing, cold or unverified."""
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        if pieces is None:
            return None
        views: list[memoryview] = []
        for slot, _, _ in pieces:
            view = self._cache.view_now(slot)
            if view is None:
                return None
            views.append(view)
        hit = Hit(
            self._source(pieces),
            tuple(
                view[piece.within.start : piece.within.stop]
                for view, piece in zip(views, pieces, strict=True)
            ),
        )
        for view, piece in zip(views, pieces, strict=True):
            self._cache.use(Page(ref, meta.etag, piece.number), view)
        return hit

    def locate(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """Where the bytes of ``span`` are, noted as used; None as ``read``."""
        pieces = self._pieces(ref, meta, span, most=MOST_LOCATED_PAGES)
        if pieces is None:
            return None
        located: list[Located] = []
        for slot, _, within in pieces:
            place = self._cache.locate(slot)
            if place is None:
                return None
            located.append(
                Located(
                    self._cache.source(slot),
                    place.path,
                    place.header_offset,
                    place.header,
                    place.body_offset + within.start,
                    within.length,
                )
            )
        for piece in pieces:
            self._cache.note_use(piece.slot)
        return tuple(located)

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
            pieces.append(_Piece(slot, number, within))
        return pieces

    def _source(self, pieces: list[_Piece]) -> Source:
        sources = [self._cache.source(piece.slot) for piece in pieces]
        return Source.DISK if Source.DISK in sources else Source.RAM
