"""Access log: a buffer of demand reads, for statistics, orders, recency and read histories.

Laws: only plain defs. To record a read means to append a row of bytes; nothing is decided then.
``flush_to_statistics`` and ``flush`` pass the rows on in batches, in the order of the reads: a batch of 1,000
rows costs as much as ten rows one by one. Code that decides by reads, or shows them, calls ``flush`` first.
If a page has left its slot since the read, its row counts in the statistics only. A read that is not a hit is
not recorded here: ``Counting`` counts it at once.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.clock import Clock
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import Intent, JobContext, ObjectRef, Source, Span
from shadeproxy.engine.access_records import USE, AccessRecord, Kind, Uses, pack_use
from shadeproxy.engine.base import PageHandle, ReadRequest
from shadeproxy.engine.index.residents import Slots
from shadeproxy.engine.read.read_recorder import ReadRecorder
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.order.upcoming import ReadObserver
from shadeproxy.telemetry.stats import Stats

_MOST_WAITING = 4096
# After a flush by the timer took longer than this, the next one passes on half as many reads, and leaves the
# rest to the next turn of the event loop. Each job with an order makes a read more expensive.
_LONG_FLUSH_S = 0.004
_FEWEST_AT_ONCE = 512
# A flush costs some 100 us, and ten times as much with cold processor caches. So while fewer reads than this
# wait, a decision is made without a flush.
_WORTH_FLUSHING = 256
# A small cache needs a flush earlier: after one read for every ``_SMALL`` resident pages. Otherwise recency
# would lag far behind.
_SMALL = 64
_FLUSH_AFTER_S = 0.2
# The delay of a flush after a prefetched page was read. It is short, because that read decides what is
# prefetched next.
_FLUSH_UNREAD_AFTER_S = 0.01
# The number of kinds is bounded, because each epoch of each job adds kinds.
_MOST_KINDS = 1024

# Kind numbers of rows whose reads other code counts, so that the rows need no ``Kind``. In a worker's rows,
# such a row has a real kind number and the hash of its object.
_AS_BEFORE, _EXPLAINED, _UNEXPLAINED = range(3)

CountUses = Callable[[Uses, Sequence[Kind], float], NDArray[np.bool_]]
"""The type of a function that counts reads in the statistics. Arguments: the reads, their kinds, and the tick
of the latest read. The function returns, for each read, whether an order or a score explains the read.
"""

JobsOf = Callable[[NDArray[np.uint64] | list[int]], Sequence[str | None]]
"""The type of a function that finds the jobs of reads that name none. It gets the hashes of the objects that
were read. It returns, for each, the job whose dataset holds the object, or None.
"""


class FetchedRead(NamedTuple):
    """A demand read that the origin answered with ``size_bytes`` bytes of body."""

    ref: ObjectRef
    object_hash: int
    size_bytes: int
    job: JobContext | None


class AccessLog:
    """Access log of the pages of ``cache``. ``count``: counts a batch of reads in the statistics.

    The public attributes are for the compiled lane. It appends rows (USE) to ``rows`` in the same way as
    ``record``.
    """

    __slots__ = (
        "_at_once", "_count", "_delay_s", "_kept", "_note_uses", "_tick", "kinds", "most_waiting_bytes",
        "residents", "rows", "timer", "unread",
    )  # fmt: skip

    def __init__(self, cache: PageCache, *, count: CountUses) -> None:
        self.residents = cache.residents
        self._note_uses = cache.note_uses
        self._tick = cache.tick
        self._count = count
        self.unread = cache.residents.unread
        self.most_waiting_bytes = _MOST_WAITING * USE.itemsize
        self._at_once = 2 * _FEWEST_AT_ONCE
        """The most reads that one flush by the timer passes on."""
        self.rows = bytearray()
        self.timer: asyncio.Handle | None = None
        self._delay_s = 0.0
        """The delay with which the timer was last set."""
        self.kinds: dict[Kind, int] = {}
        self._kept: list[tuple[Slots, NDArray[np.int64], NDArray[np.bool_]]] = []
        """Reads that the statistics have counted, but that recency has not. Three columns: their slots; the
        generations of their pages, because a slot may get another page before ``flush``; and whether each
        read is explained.
        """

    # ------------------------------------------------------------------ recording

    def record(self, handle: PageHandle, job: JobContext | None, span: Span | None = None) -> None:
        """Record one read through a page handle. ``span``: the bytes of the object that were read; None: the
        whole page.
        """
        record = handle.access_record
        if record is None or record.job is not job or record.kinds is not self.kinds:
            record = self._prepare(handle, job)
        if span is None:
            self.rows += record.row
        else:
            self.rows += pack_use(
                handle.slot, handle.stamp, handle.object_hash, span.start, span.length, record.kind, 1
            )
        # If the timer is set early enough already, save the call of ``schedule_flush``.
        if self.timer is None or self.unread or len(self.rows) >= self.most_waiting_bytes:
            self.schedule_flush((handle.slot,))

    def _prepare(self, handle: PageHandle, job: JobContext | None) -> AccessRecord:
        """Make the row for a read of the whole page by ``job``. The handle keeps this row for later reads."""
        kind = self.kind(handle.ref.bucket, handle.source, job)
        size_bytes = handle.stop - handle.start
        row = pack_use(handle.slot, handle.stamp, handle.object_hash, handle.first, size_bytes, kind, 1)
        record = handle.access_record = AccessRecord(job, self.kinds, kind, row)
        return record

    def record_pages(self, slots: Sequence[int], *, explained: bool | None = None) -> None:
        """Record reads of pages for recency alone, because other code counts them in the statistics.
        ``explained``: whether an order or a score explains the reads. None: they are explained if the last
        counted read before them is.
        """
        kind = _AS_BEFORE if explained is None else _EXPLAINED if explained else _UNEXPLAINED
        stamps = self.residents.stamps
        for slot in slots:
            self.rows += pack_use(slot, stamps[slot], 0, 0, 0, kind, 0)
        self.schedule_flush(slots)

    def record_many(self, uses: Uses) -> None:
        """Record many reads, given in columns. Their kind numbers must come from ``kind``."""
        self.rows += uses.tobytes()
        self.schedule_flush(uses["slot"].tolist() if self.unread else ())

    def record_others(self, uses: Uses, kinds: Sequence[Kind]) -> None:
        """Record reads that a worker answered. The statistics count them at once, ahead of earlier reads that
        still wait here.
        """
        self.schedule_flush(self._pass_on(uses, kinds))

    def kind(self, bucket: str, source: Source, job: JobContext | None) -> int:
        """Return the number that stands for a kind of reads in rows. The number is valid until the next
        ``flush_to_statistics``.
        """
        return self.kinds.setdefault(Kind(bucket, source, job), len(self.kinds))

    # ------------------------------------------------------------------ flushing

    def schedule_flush(self, slots: Iterable[int]) -> None:
        """Make sure that ``flush`` is called soon, because the pages in ``slots`` were read.

        ``flush`` itself is not called here: it may promote and evict pages, while the present reader still
        uses bytes that are not pinned.
        """
        delay_s = _FLUSH_AFTER_S if self.unread.isdisjoint(slots) else _FLUSH_UNREAD_AFTER_S
        if self._waiting * USE.itemsize >= self.most_waiting_bytes:
            delay_s = 0.0
        if self.timer is not None:
            if self._delay_s <= delay_s:
                return
            self.timer.cancel()
        loop, self._delay_s = asyncio.get_running_loop(), delay_s
        flush = self._flush_some
        self.timer = loop.call_later(delay_s, flush) if delay_s else loop.call_soon(flush)

    def flush_many(self) -> None:
        """Call ``flush`` if enough reads wait to be worth it."""
        waiting = self._waiting
        if waiting and waiting >= min(_WORTH_FLUSHING, len(self.residents) // _SMALL):
            self.flush()

    def _flush_some(self) -> None:
        """Call ``flush`` for the oldest reads, as many as it can pass on in a short time, and soon again for
        the others.
        """
        loop = asyncio.get_running_loop()
        began_s, waiting = loop.time(), self._waiting
        # Never leave more than ``_MOST_WAITING``, so that they do not grow from turn to turn.
        count = min(waiting, max(self._at_once, waiting - _MOST_WAITING))
        self._flush_oldest(count)
        if loop.time() - began_s > _LONG_FLUSH_S:
            self._at_once = max(count // 2, _FEWEST_AT_ONCE)
        elif count >= self._at_once:
            self._at_once = min(2 * count, _MOST_WAITING)
        if self.rows:
            self._delay_s, self.timer = 0.0, loop.call_soon(self._flush_some)

    def flush(self) -> None:
        """Pass every recorded read on to recency, read histories and statistics."""
        self._flush_oldest(len(self.rows))

    def _flush_oldest(self, count: int) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._pass_oldest(count)
        kept, self._kept = self._kept, []
        if kept:
            slots, generations, explained = (np.concatenate(column) for column in zip(*kept, strict=True))
            same = self.residents.generation[slots] == generations
            self._note_uses(slots[same], explained[same])

    def flush_to_statistics(self) -> None:
        """Pass every recorded read on to the statistics. No page moves because of this call, so it may be
        made at any time.
        """
        self._pass_oldest(len(self.rows))

    def _pass_oldest(self, count: int) -> None:
        """Do the same for the ``count`` oldest reads."""
        if not self.rows:
            return
        rows, self.rows = self.rows, self.rows[count * USE.itemsize :]
        uses, kinds = np.frombuffer(rows, USE)[:count], list(self.kinds)
        if len(kinds) > _MOST_KINDS and not self.rows:
            # Clear the old dict too. Otherwise page handles that are never used again would keep its kinds
            # alive.
            self.kinds.clear()
            self.kinds = {}
        self._pass_on(uses, kinds)

    def _pass_on(self, uses: Uses, kinds: Sequence[Kind]) -> list[int]:
        """Count reads in the statistics, and keep for ``flush`` those whose page is unchanged since the read.
        Return the slots of these pages if any prefetched page is still unread; otherwise return an empty
        list.
        """
        kept = sum(len(slots) for slots, _, _ in self._kept)
        explained = self._count(uses, kinds, self._tick() + kept + len(uses))
        slots = uses["slot"]
        same = np.flatnonzero(self.residents.stamp[slots] == uses["stamp"])
        if len(same):
            self._kept.append((slots[same], self.residents.generation[slots[same]], explained[same]))
        read: list[int] = slots[same].tolist() if self.unread else []
        return read

    @property
    def _waiting(self) -> int:
        """Number of recorded reads that recency has not counted yet."""
        return len(self.rows) // USE.itemsize + sum(len(slots) for slots, _, _ in self._kept)


class Counting:
    """Counts demand reads in ``stats``, and passes them to ``orders`` and to ``recorder``.

    Each read is counted once, whether this process or a worker answered it. The orders get a read before its
    page is ranked.
    """

    def __init__(
        self,
        stats: Stats,
        clock: Clock,
        *,
        jobs_of: JobsOf,
        orders: ReadObserver,
        recorder: ReadRecorder | None,
        before_recording: Callable[[], None],
        tick: Callable[[], float],
    ) -> None:
        """``before_recording``: called before a read is recorded; it counts all earlier reads. ``tick``:
        returns the tick of the latest read.
        """
        self._stats = stats
        self._clock = clock
        self._jobs_of = jobs_of
        self._orders = orders
        self._recorder = recorder
        self._before_recording = before_recording
        self._tick = tick

    def note_read(self, request: ReadRequest, first: int) -> bool:
        """Tell the orders that a read from byte ``first`` on begins. Return whether an order or a score
        explains the read.
        """
        if not self._orders.active or request.intent is not Intent.DEMAND:
            return False
        hashed, now_s = object_hash(request.ref), self._clock.now_s()
        return self._orders.note_read(hashed, first, request.job, now_s, self._tick() + 1)

    def note_first(self, hashed: int, job: JobContext | None) -> bool:
        """Tell the orders of a demand read of an object from its first byte on. Return the same as
        ``note_read``.
        """
        if not self._orders.active:
            return False
        return self._orders.note_read(hashed, 0, job, self._clock.now_s(), self._tick() + 1)

    def count_fetched(self, reads: Sequence[FetchedRead]) -> None:
        """Count demand reads that the origin answered; the oldest comes first. The caller has called
        ``note_first`` for each read.
        """
        if self._recorder is not None:
            self._before_recording()
        names = self._jobs_of([read.object_hash for read in reads])
        sums: dict[tuple[str, JobContext | None], tuple[int, int]] = {}
        for (ref, _, size_bytes, job), name in zip(reads, names, strict=True):
            whose = _whose(job, name)
            if self._recorder is not None:
                self._recorder.note(ref, size_bytes, Source.ORIGIN, whose)
            count, sum_bytes = sums.get(key := (ref.bucket, whose), (0, 0))
            sums[key] = count + 1, sum_bytes + size_bytes
        for (bucket, whose), (count, sum_bytes) in sums.items():
            self._stats.record_reads(bucket, Source.ORIGIN, count, sum_bytes, whose)

    def count(self, request: ReadRequest, source: Source, size_bytes: int) -> None:
        """Count one read. The caller has called ``note_read`` before."""
        job = request.job
        if job is None:
            (name,) = self._jobs_of([object_hash(request.ref)])
            job = None if name is None else JobContext(name)
        if self._recorder is not None:
            self._before_recording()
            self._recorder.note(request.ref, size_bytes, source, job)
        self._stats.record_reads(request.ref.bucket, source, 1, size_bytes, job)

    def count_uses(self, uses: Uses, kinds: Sequence[Kind], tick: float) -> NDArray[np.bool_]:
        """Count the reads ``uses``; the oldest comes first, and the latest has the tick ``tick``. ``kinds``:
        the kinds, by kind number. Return bool[n]: whether an order or a score explains each read.
        """
        counted = uses["reads"] > 0
        reads = uses[counted]
        explained: NDArray[np.bool_] = uses["kind"] == _EXPLAINED
        as_before = ~counted & ((uses["kind"] == _AS_BEFORE) | (uses["object_hash"] > 0))
        explained[counted | as_before] = False
        if not len(reads):
            return explained
        if self._orders.active:
            jobs = [kinds[number].job for number in reads["kind"].tolist()]
            explained[counted] = self._orders.note_reads(
                reads["object_hash"], reads["first"], jobs, self._clock.now_s(), tick
            )
            before = np.maximum.accumulate(np.where(counted, np.arange(len(uses)), 0))
            explained[as_before] = explained[before[as_before]]
        names = self._jobs_of(reads["object_hash"])
        if self._recorder is not None:
            named = zip(reads["kind"].tolist(), names, strict=True)
            self._recorder.note_uses(
                reads, kinds, [_whose(kinds[number].job, name) for number, name in named]
            )
        whose = sorted(set(filter(None, names)))
        places = {name: place for place, name in enumerate((None, *whose))}
        codes = reads["kind"] * len(places) + np.fromiter(map(places.get, names), np.int64, len(names))
        found, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, inverse, reads["size_bytes"])
        for code, count, size_bytes in zip(found.tolist(), counts.tolist(), sums.tolist(), strict=True):
            number, place = divmod(code, len(places))
            bucket, source, job = kinds[number]
            self._stats.record_reads(bucket, source, count, size_bytes, _whose(job, (None, *whose)[place]))
        return explained


def _whose(job: JobContext | None, of_data_set: str | None) -> JobContext | None:
    """Return the job that the reader named. If it named none, return the job whose dataset holds the object;
    None if there is none.
    """
    return job if job is not None or of_data_set is None else JobContext(of_data_set)
