"""``Notes``: demand reads that statistics, orders, recency and reuse are yet to be told of.

Laws: plain defs. To note a read is to append a row of bytes: nothing is decided, and nothing is told before
``tell`` or ``flush``, in the order of the reads. Reads are told together, because 1,000 cost what ten one by
one do; whoever decides by them, or shows them, calls ``flush`` first. A row whose page changed hands since
counts in the statistics and nowhere else.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext, Source, Span
from shadeproxy.engine.base import Resident
from shadeproxy.engine.cache import PageCache
from shadeproxy.engine.residents import Slots
from shadeproxy.engine.uses import USE, Kind, Noted, Uses, pack_use

_MOST_WAITING_BYTES = 4096 * USE.itemsize
# Telling costs some 100 us, and ten times as much where nothing of it is in the processor's caches: for the
# sake of fewer reads than these no decision waits for it.
_WORTH_TELLING = 256
# Of a small cache so many would be much: what was read is not to be kept for that read.
_SMALL = 64
_FLUSH_AFTER_S = 0.2
# Who fetches ahead goes by what has been read.
_FLUSH_UNREAD_AFTER_S = 0.01
# Of jobs that come and go; each epoch of a job is one more.
_MOST_KINDS = 1024

CountUses = Callable[[Uses, Sequence[Kind]], None]


class Notes:
    """Of the pages of ``cache``. ``count``: told of the reads, many at a time.

    What is public beside the methods is for the compiled lane, which appends to ``rows`` (USE) what ``add``
    would.
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
        """What the timer was set for."""
        self.kinds: dict[Kind, int] = {}
        self._kept: list[tuple[Slots, NDArray[np.int64]]] = []
        """Slots that statistics were told of, recency not, and the generation of the page in each: until it
        is told the slot may change hands."""

    # ------------------------------------------------------------------ noting

    def add(self, ticket: Resident, job: JobContext | None, span: Span | None = None) -> None:
        """One read by ticket, of ``span`` of the object; None: of the whole page."""
        noted = ticket.noted
        if noted is None or noted.job is not job or noted.kinds is not self.kinds:
            noted = self._prepare(ticket, job)
        if span is None:
            self.rows += noted.row
        else:
            self.rows += pack_use(
                ticket.slot, ticket.stamp, ticket.object_hash, span.start, span.length, noted.kind, 1
            )
        # What ``soon`` would find out: the timer is set already, and for no later.
        if self.timer is None or self.unread or len(self.rows) >= self.most_waiting_bytes:
            self.soon((ticket.slot,))

    def _prepare(self, ticket: Resident, job: JobContext | None) -> Noted:
        """What ``add`` appends for a read of the whole page by ``job``; kept with the ticket."""
        kind = self.kind(ticket.ref.bucket, ticket.source, job)
        size_bytes = ticket.stop - ticket.start
        row = pack_use(ticket.slot, ticket.stamp, ticket.object_hash, ticket.first, size_bytes, kind, 1)
        noted = ticket.noted = Noted(job, self.kinds, kind, row)
        return noted

    def add_pages(self, slots: Sequence[int]) -> None:
        """Reads, or parts of reads, that were counted already."""
        stamps = self.residents.stamps
        for slot in slots:
            self.rows += pack_use(slot, stamps[slot], 0, 0, 0, 0, 0)
        self.soon(slots)

    def add_many(self, uses: Uses) -> None:
        """Reads in columns, their kinds from ``kind``."""
        self.rows += uses.tobytes()
        self.soon(uses["slot"].tolist() if self.unread else ())

    def add_others(self, uses: Uses, kinds: Sequence[Kind]) -> None:
        """Reads that another process noted; told to statistics at once, later than some that came after."""
        self.soon(self._keep(uses["slot"], uses["stamp"]))
        self._count(uses, kinds)

    def kind(self, bucket: str, source: Source, job: JobContext | None) -> int:
        """The number under which such reads are noted; good until the next ``tell``."""
        return self.kinds.setdefault(Kind(bucket, source, job), len(self.kinds))

    # ------------------------------------------------------------------ telling

    def soon(self, slots: Iterable[int]) -> None:
        """``flush`` in a while, as pages in ``slots`` were read.

        Never at once: it may promote and evict, and who reads now has bytes that are not pinned.
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
        """``flush``, if there is enough to be worth it."""
        waiting = self._waiting
        if waiting and waiting >= min(_WORTH_TELLING, len(self.residents) // _SMALL):
            self.flush()

    def flush(self) -> None:
        """Let recency, reuse and statistics know of every read so far."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.tell()
        kept, self._kept = self._kept, []
        if kept:
            slots, generations = (np.concatenate(column) for column in zip(*kept, strict=True))
            self._note_uses(slots[self.residents.generation[slots] == generations])

    def tell(self) -> None:
        """Let statistics know of every read so far. Nothing is decided by it: it may be done at any time."""
        if not self.rows:
            return
        rows, self.rows = self.rows, bytearray()
        uses, kinds = np.frombuffer(rows, USE), list(self.kinds)
        if len(kinds) > _MOST_KINDS:
            # Emptied as well: tickets that are not read again hold it.
            self.kinds.clear()
            self.kinds = {}
        self._keep(uses["slot"], uses["stamp"])
        self._count(uses, kinds)

    def _keep(self, slots: Slots, stamps: NDArray[np.int64]) -> list[int]:
        """Keep those that did not change hands since."""
        same = slots[self.residents.stamp[slots] == stamps]
        if len(same):
            self._kept.append((same, self.residents.generation[same]))
        read: list[int] = same.tolist() if self.unread else []
        return read

    @property
    def _waiting(self) -> int:
        """Reads that recency is not told of."""
        return len(self.rows) // USE.itemsize + sum(len(slots) for slots, _ in self._kept)
