"""Answers reads from resident pages without waiting, by plain defs only.

Laws: nothing is counted or changed unless the answer is complete. If a read cannot be answered here, the
result is None, never an error; ``Engine.open`` then finds the reason. Answered reads go to the access log
(access_log.py).
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np

from shadeproxy.core.errors import TierError
from shadeproxy.core.memo import Memo
from shadeproxy.core.ranges import STORED_PARTS, pages_of, part_number, span_within
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Page, Source, Span
from shadeproxy.engine.base import FoundSamples, Hit, Located, PageHandle, SendfileSlice
from shadeproxy.engine.index.metadata import KnownMetadata
from shadeproxy.engine.read.access_log import AccessLog
from shadeproxy.engine.read.sample_lookup import SOURCES, SampleLookup
from shadeproxy.engine.storage.disk_page import MOST_COPIED_BYTES
from shadeproxy.engine.storage.hot_pages import COPY_BYTES
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.datasets import Dataset, Ids
from shadeproxy.tiers.base import Place

MOST_PAGES = 2
"""The most pages of a hit. A hit pins the memory of all its pages for as long as a slow client reads, so
longer answers are streamed with back-pressure.
"""

MOST_LOCATED_PAGES = 256
# A page handle and its key take about 700 bytes, so all handles take about 23 MB.
_MOST_HANDLES = 32_768

Told = Callable[[], bool]
"""The type of a function that notes a read. It is called once, when the answer is complete, and returns
whether an order or scores explain the read.
"""

Fresh = Callable[[ObjectRef], tuple[KnownMetadata, float] | None]
"""The type of a function that returns metadata of an object, and the Unix time until which it may answer
every client without a check.
"""


def is_good(handle: PageHandle, stamps: memoryview, now_s: float = -inf, *, touch: bool = False) -> bool:
    """Return whether the page is still where ``handle`` says, and may answer at ``now_s`` without a check.

    ``stamps``: the column ``Residents.stamps``. ``now_s``: Unix time; if left out, freshness is not tested.
    ``touch``: also require that the bytes can be read without waiting. The same test is in two other places:
    ``SampleLookup.find`` makes it for many handles at once, and ``is_good`` of _sending.pxi in the compiled
    lane. Change all three together.
    """
    return (
        stamps[handle.slot] == handle.stamp
        and now_s < handle.fresh_until_s
        and not (touch and handle.can_wait and not handle.tier.is_hot(handle.location))
    )


class _Piece(NamedTuple):
    slot: int
    within: Span
    """The wanted bytes, within the page or the stored part."""


class Hits:
    """Answers reads of pages of ``cache`` without waiting.

    ``access_log``: gets the reads. ``fresh``: called before a page handle is made. ``handles``: page handles
    by object and number of the record; the compiled lane reads them too. ``page_size`` is in bytes.
    """

    def __init__(self, cache: PageCache, page_size: int, *, access_log: AccessLog, fresh: Fresh) -> None:
        self._cache = cache
        self._residents = cache.residents
        self.page_size = page_size
        self.access_log = access_log
        self._record = access_log.record
        self._fresh = fresh
        self._samples = SampleLookup(cache.residents, is_ready=cache.hot.is_ready)
        self.handles: Memo[tuple[ObjectRef, int], PageHandle] = Memo(_MOST_HANDLES)

    # ------------------------------------------------------------------ any span

    def ready(self, ref: ObjectRef, meta: ObjectMeta, span: Span) -> bool:
        """Return whether ``read`` would answer now. Records nothing."""
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        hot = self._cache.hot
        return (
            pieces is not None
            and (span.length <= MOST_COPIED_BYTES or not any(hot.can_wait(piece.slot) for piece in pieces))
            and all(hot.is_ready(piece.slot) for piece in pieces)
        )

    def read(self, ref: ObjectRef, meta: ObjectMeta, span: Span, told: Told) -> Hit | None:
        """Return the bytes of ``span``, and record the read. Return None if a page is missing, cold or not
        verified, or if ``span`` is long and a page is on a disk (``take``).
        """
        pieces = self._pieces(ref, meta, span, most=MOST_PAGES)
        if pieces is None:
            return None
        views: list[memoryview] = []
        for slot, within in pieces:
            can_wait = self._cache.hot.can_wait(slot)
            if can_wait and span.length > MOST_COPIED_BYTES:
                return None
            view = self._cache.hot.view(slot)
            if view is None:
                return None
            part = view[within.start : within.stop]
            views.append(memoryview(bytes(part)) if can_wait else part)
        self.access_log.record_pages([piece.slot for piece in pieces], explained=told())
        return Hit(self._source(pieces), tuple(views))

    def locate(self, ref: ObjectRef, meta: ObjectMeta, span: Span, told: Told) -> tuple[Located, ...] | None:
        """Return the places of the bytes of ``span``, and record the read. Return None as ``read`` does."""
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
        self.access_log.record_pages([piece.slot for piece in pieces], explained=told())
        return tuple(located)

    # ------------------------------------------------------------------ page handles

    def find_handle(self, ref: ObjectRef, first: int, now_s: float) -> PageHandle | None:
        """Return a handle of the page that holds byte ``first``, or else of the stored part that begins with
        this byte. The handle is valid at ``now_s``. The bytes may be cold.
        """
        handles, table, number = self.handles, self._residents, first // self.page_size
        if number >= STORED_PARTS:
            return None  # The byte is beyond the end of any object. Higher numbers are those of stored parts.
        handle = handles.get((ref, number))
        if handle is not None and is_good(handle, table.stamps, now_s):
            return handle
        key = ref, STORED_PARTS + first
        handle = handles.get(key) if handles.old else handles.young.get(key)
        # If the page has come since, it answers, because it holds longer spans too.
        if (
            handle is not None
            and is_good(handle, table.stamps, now_s)
            and table.occupant(handle.object_hash, number) is None
        ):
            return handle
        if (fresh := self._fresh(ref)) is None:
            return None
        known, until_s = fresh
        meta, begin = known.meta, number * self.page_size
        slot = self._cache.find(Page(ref, meta.etag, number))
        if slot is None and (part := part_number(first)) is not None:
            number, begin = part, first
            slot = self._cache.find(Page(ref, meta.etag, number))
        if slot is None:
            return None
        handle = self._cache.hot.make_handle(slot, ref, meta, first=begin, fresh_until_s=until_s)
        if handle is not None:
            handles.put((ref, number), handle)
            if number and table.share is not None:
                self._cache.renew(slot, known)
        return handle

    def take(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> memoryview | None:
        """Return the bytes of a handle, and record the read. Return None if the handle is no longer valid.

        If the page has at most COPY_BYTES bytes, its bytes are not pinned: copy them before any other code
        runs. Longer bytes of a page on a disk are a copy, because touching them later might wait for the
        disk. More than MOST_COPIED_BYTES of such a page are not returned (None).
        """
        if not is_good(handle, self._residents.stamps, now_s, touch=True):
            return None
        start, stop = handle.start, handle.stop
        first, last = (start, stop) if span is None else handle.bounds(span)
        if stop - start <= COPY_BYTES:
            body = handle.window[first:last]
        elif not handle.can_wait:
            try:
                body = handle.tier.pin_window(handle.location, start, stop)[first - start : last - start]
            except TierError:
                return None
        elif last - first <= MOST_COPIED_BYTES:
            body = memoryview(bytes(handle.window[first:last]))
        else:
            return None
        self._record(handle, job, span)
        return body

    def take_slices(
        self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span | None = None
    ) -> tuple[SendfileSlice, ...] | None:
        """Return the bytes that ``take`` would return as sendfile slices, and record one read. The slices
        come from at most MOST_PAGES pages or stored parts, all of one version and source.
        """
        after: list[PageHandle] | None = []
        if span is not None and span.stop > handle.end:
            after = self._handles_after(handle, span.stop, now_s)
        if after is None:
            return None
        stamps = self._residents.stamps
        for one in (handle, *after):
            if one.sendable is None or not is_good(one, stamps, now_s, touch=True):
                return None
        self._record(handle, job, span)
        if not after:
            return (_slice_of(handle, span),)
        self.access_log.record_pages([one.slot for one in after])
        return tuple([_slice_of(one, span) for one in (handle, *after)])

    def _handles_after(self, handle: PageHandle, stop: int, now_s: float) -> list[PageHandle] | None:
        """Return handles of the bytes after those of ``handle``, up to byte ``stop``. Return None if there
        are too many, or if a page is missing or has another version or source.
        """
        handles: list[PageHandle] = []
        edge = handle.end
        while edge < stop:
            after = self.find_handle(handle.ref, edge, now_s) if len(handles) < MOST_PAGES - 1 else None
            if (
                after is None
                or after.first != edge
                or after.meta.etag != handle.meta.etag
                or after.source is not handle.source
            ):
                return None
            handles.append(after)
            edge = after.end
        return handles

    def place(self, handle: PageHandle, job: JobContext | None, now_s: float, span: Span) -> Place | None:
        """Return the place of a page's record, and record the read. Return None as ``take`` does. A page on a
        disk must be in the page cache; otherwise the other process would read it from the disk unchecked.
        """
        if not is_good(handle, self._residents.stamps, now_s, touch=True):
            return None
        if handle.place is None:
            handle.place = self._cache.hot.place(handle.slot)
            if handle.place is None:
                return None
        self._record(handle, job, span)
        return handle.place

    def remember_sample(self, dataset: Dataset, sample_id: int, handle: PageHandle) -> None:
        """Remember the place of a sample. Call this just after ``place`` has stored the place in the
        handle.
        """
        if handle.place is not None:
            self._samples.remember(dataset, sample_id, handle, handle.place)

    def find_samples(
        self, dataset: Dataset, ids: Ids, job: JobContext | None, now_s: float
    ) -> FoundSamples | None:
        """Return the places of samples that were given to ``remember_sample`` and whose handles are still
        valid. Record the reads.
        """
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
            self.access_log.kind(entries.buckets[code // len(SOURCES)], SOURCES[code % len(SOURCES)], job)
            for code in codes.tolist()
        ]
        uses["kind"] = np.array(numbers, np.int32)[kind_of]
        self.access_log.record_many(uses)
        return found

    def forget(self) -> None:
        """Drop every page handle, because ``fresh`` may now return other results."""
        self.handles.clear()
        self._samples.forget()

    def _pieces(self, ref: ObjectRef, meta: ObjectMeta, span: Span, *, most: int) -> list[_Piece] | None:
        numbers = pages_of(span, self.page_size)
        if len(numbers) > most:
            return None
        pieces: list[_Piece] = []
        for number in numbers:
            slot = self._cache.find(Page(ref, meta.etag, number))
            within = span_within(span, number, self.page_size, meta.size)
            if slot is None:
                if span.length == meta.size:
                    return None  # A read of a whole object needs its pages, not stored parts.
                start = number * self.page_size + within.start
                slot = self._cache.find_part(ref, meta.etag, Span(start, start + within.length))
                within = Span(0, within.length)
            if slot is None:
                return None
            pieces.append(_Piece(slot, within))
        return pieces

    def _source(self, pieces: list[_Piece]) -> Source:
        sources = [self._cache.source(piece.slot) for piece in pieces]
        return Source.DISK if Source.DISK in sources else Source.RAM


def _slice_of(handle: PageHandle, span: Span | None) -> SendfileSlice:
    """Return those bytes of the page that lie in ``span`` as a sendfile slice; None: all bytes. The page must
    have sendable blocks.
    """
    sendable = handle.sendable
    assert sendable is not None, "just looked at"
    file, start, stop = sendable.file, handle.start, handle.stop
    if span is not None:
        start, stop = handle.bounds(span)
    first = max(start, sendable.start)
    last = max(first, min(stop, sendable.stop))
    if file is not None and first < last and not handle.marked_sent:
        # Mark all sendable blocks of the page as sent, because marking single ranges costs more. The price:
        # when the page is dropped, even blocks that were not sent become holes, although they could have been
        # overwritten.
        file.mark_sent(sendable.start, sendable.stop)
        handle.marked_sent = True
    return SendfileSlice(handle, file, start, first, last, stop)
