"""Access log: a buffer of demand reads for statistics, orders, recency and reuse.

Laws: plain defs. Recording a read appends a row of bytes and decides nothing. ``flush_to_statistics`` and
``flush`` pass the rows on, in the order of the reads: in batches, because 1,000 cost as much as ten one by
one. Code that decides by reads, or shows them, calls ``flush`` first. A row whose page has since left its
slot counts in the statistics only.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext, Source, Span
from shadeproxy.engine.access_records import USE, AccessRecord, Kind, Uses, pack_use
from shadeproxy.engine.base import PageHandle
from shadeproxy.engine.index.residents import Slots
from shadeproxy.engine.storage.page_cache import PageCache

_MOST_WAITING_BYTES = 4096 * USE.itemsize
# Flushing costs some 100 us, and ten times as much with cold processor caches: no decision waits for it for
# the sake of fewer reads than these.
_WORTH_FLUSHING = 256
# In a small cache this share of the pages is enough: recency must not lag behind.
_SMALL = 64
_FLUSH_AFTER_S = 0.2
# Prefetch depends on the pages read so far.
_FLUSH_UNREAD_AFTER_S = 0.01
# Jobs come and go, and each epoch of a job is one more kind.
_MOST_KINDS = 1024

CountUses = Callable[[Uses, Sequence[Kind]], None]


class AccessLog:
    """Access log of the pages of ``cache``. ``count``: called with the reads, many at a time.

    Public attributes are for the compiled lane, which appends to ``rows`` (USE) the same as ``record``.
    """

    __slots__ = (
        "_count", "_delay_s", "_kept", "_note_uses", "kinds", "most_waiting_bytes", "residents", "rows",
        "timer", "unread",
    )  # fmt: skip

    def __init__(self, cache: PageCache, *, count: CountUses) -> None:
        self.residents = cache.residents
        self._note_uses = cache.note_uses
        self._count = count
        self.unread = cache.residents.unread
        self.most_waiting_bytes = _MOST_WAITING_BYTES
        self.rows = bytearray()
        self.timer: asyncio.Handle | None = None
        self._delay_s = 0.0
        """The delay that the timer was set with."""
        self.kinds: dict[Kind, int] = {}
        self._kept: list[tuple[Slots, NDArray[np.int64]]] = []
        """Slots counted in the statistics but not yet in recency, with their pages' generations: a slot
        may get another page before ``flush``."""

    # ------------------------------------------------------------------ recording

    def record(self, handle: PageHandle, job: JobContext | None, span: Span | None = None) -> None:
        """Record one read by page handle, of ``span`` of the object; None: of the whole page."""
        record = handle.access_record
        if record is None or record.job is not job or record.kinds is not self.kinds:
            record = self._prepare(handle, job)
        if span is None:
            self.rows += record.row
        else:
            self.rows += pack_use(
                handle.slot, handle.stamp, handle.object_hash, span.start, span.length, record.kind, 1
            )
        # Skip ``schedule_flush`` if it would only find that the timer is set already, and early enough.
        if self.timer is None or self.unread or len(self.rows) >= self.most_waiting_bytes:
            self.schedule_flush((handle.slot,))

    def _prepare(self, handle: PageHandle, job: JobContext | None) -> AccessRecord:
        """Make the row of a read of the whole page by ``job``; the handle keeps it for ``record``."""
        kind = self.kind(handle.ref.bucket, handle.source, job)
        size_bytes = handle.stop - handle.start
        row = pack_use(handle.slot, handle.stamp, handle.object_hash, handle.first, size_bytes, kind, 1)
        record = handle.access_record = AccessRecord(job, self.kinds, kind, row)
        return record

    def record_pages(self, slots: Sequence[int]) -> None:
        """Record reads, or parts of reads, that were counted already."""
        stamps = self.residents.stamps
        for slot in slots:
            self.rows += pack_use(slot, stamps[slot], 0, 0, 0, 0, 0)
        self.schedule_flush(slots)

    def record_many(self, uses: Uses) -> None:
        """Record reads in columns, their kinds from ``kind``."""
        self.rows += uses.tobytes()
        self.schedule_flush(uses["slot"].tolist() if self.unread else ())

    def record_others(self, uses: Uses, kinds: Sequence[Kind]) -> None:
        """Record reads of a worker. Statistics count them at once, after some that came later."""
        self.schedule_flush(self._keep(uses["slot"], uses["stamp"]))
        self._count(uses, kinds)

    def kind(self, bucket: str, source: Source, job: JobContext | None) -> int:
        """Return the number of this kind of reads; valid until the next ``flush_to_statistics``."""
        return self.kinds.setdefault(Kind(bucket, source, job), len(self.kinds))

    # ------------------------------------------------------------------ flushing

    def schedule_flush(self, slots: Iterable[int]) -> None:
        """Schedule ``flush``, because pages in ``slots`` were read.

        Never flush at once: that may promote and evict, and the present reader has bytes that are not pinned.
        """
        delay_s = _FLUSH_AFTER_S if self.unread.isdisjoint(slots) else _FLUSH_UNREAD_AFTER_S
        if self._waiting * USE.itemsize >= self.most_waiting_bytes:
            delay_s = 0.0
        if self.timer is not None:
            if self._delay_s <= delay_s:
                return
            self.timer.cancel()
        loop, self._delay_s = asyncio.get_running_loop(), delay_s
        self.timer = loop.call_later(delay_s, self.flush) if delay_s else loop.call_soon(self.flush)

    def flush_many(self) -> None:
        """Call ``flush`` if there are enough reads to be worth it."""
        waiting = self._waiting
        if waiting and waiting >= min(_WORTH_FLUSHING, len(self.residents) // _SMALL):
            self.flush()

    def flush(self) -> None:
        """Pass every read so far to recency, reuse and statistics."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.flush_to_statistics()
        kept, self._kept = self._kept, []
        if kept:
            slots, generations = (np.concatenate(column) for column in zip(*kept, strict=True))
            self._note_uses(slots[self.residents.generation[slots] == generations])

    def flush_to_statistics(self) -> None:
        """Pass every read so far to the statistics. It decides nothing, so call it at any time."""
        if not self.rows:
            return
        rows, self.rows = self.rows, bytearray()
        uses, kinds = np.frombuffer(rows, USE), list(self.kinds)
        if len(kinds) > _MOST_KINDS:
            # Empty the old dict as well: page handles that are not read again hold it.
            self.kinds.clear()
            self.kinds = {}
        self._keep(uses["slot"], uses["stamp"])
        self._count(uses, kinds)

    def _keep(self, slots: Slots, stamps: NDArray[np.int64]) -> list[int]:
        """Keep the slots whose pages did not change since. Return them if some page is unread."""
        same = slots[self.residents.stamp[slots] == stamps]
        if len(same):
            self._kept.append((same, self.residents.generation[same]))
        read: list[int] = same.tolist() if self.unread else []
        return read

    @property
    def _waiting(self) -> int:
        """Number of reads that recency has not counted."""
        return len(self.rows) // USE.itemsize + sum(len(slots) for slots, _ in self._kept)
