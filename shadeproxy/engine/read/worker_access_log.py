"""The access log of a worker: the reads that it has answered, which it reports to the coordinator."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shadeproxy.core.types import JobContext, Source, Span
from shadeproxy.engine.access_records import USE, AccessRecord, Kind, Uses, pack_use
from shadeproxy.engine.base import PageHandle

_MOST_KINDS = 1024


class _SharedStamps(NamedTuple):
    """The column of stamps, under the name by which the compiled lane reads it."""

    stamps: memoryview


class WorkerAccessLog:
    """Access log of a worker, as in access_log.py. ``on_flush``: gets the reads since the last flush.

    The compiled lane appends to ``rows`` (USE) in the same way as ``record``. A timer of the worker flushes
    the rows. ``timer`` is always set, so that the compiled lane schedules no flush of its own.
    """

    __slots__ = (
        "_on_flush",
        "_touched",
        "kinds",
        "most_waiting_bytes",
        "residents",
        "rows",
        "timer",
        "unread",
    )

    def __init__(self, stamps: memoryview, on_flush: Callable[[Uses, list[Kind]], None]) -> None:
        self.residents = _SharedStamps(stamps)
        self.rows = bytearray()
        self.kinds: dict[Kind, int] = {}
        self.timer = True
        self.unread: set[int] = set()
        self.most_waiting_bytes = sys.maxsize
        self._on_flush = on_flush
        self._touched: set[Kind] = set()

    def record(self, handle: PageHandle, job: JobContext | None, span: Span | None = None) -> None:
        """Record one read through a page handle. ``span``: the bytes of the object that were read; None: the
        whole page.
        """
        record = handle.access_record
        if record is None or record.job is not job or record.kinds is not self.kinds:
            kind = self.kind(handle.ref.bucket, handle.source, job)
            size_bytes = handle.stop - handle.start
            row = pack_use(handle.slot, handle.stamp, handle.object_hash, handle.first, size_bytes, kind, 1)
            record = handle.access_record = AccessRecord(job, self.kinds, kind, row)
        if span is None:
            self.rows += record.row
        else:
            self.rows += pack_use(
                handle.slot, handle.stamp, handle.object_hash, span.start, span.length, record.kind, 1
            )

    def kind(self, bucket: str, source: Source, job: JobContext | None) -> int:
        """Return the number that stands for a kind of reads. It is valid until the next flush."""
        return self.kinds.setdefault(Kind(bucket, source, job), len(self.kinds))

    def touch(self, bucket: str, job: JobContext) -> None:
        """Report that ``job`` reads, although another proxy answers and counts the read."""
        self._touched.add(Kind(bucket, Source.BYPASS, job))

    def flush(self) -> None:
        """Pass on the reads since the last call, with their kinds."""
        if not self.rows and not self._touched:
            return
        uses, self.rows = np.frombuffer(self.rows, USE), bytearray()
        touched, self._touched = self._touched, set()
        every = list(self.kinds)
        # Keep all kinds, because page handles hold rows with kind numbers. But pass on only the kinds of
        # these rows, so that only jobs that still read are reported.
        numbers, uses["kind"] = np.unique(uses["kind"], return_inverse=True)
        if len(every) > _MOST_KINDS:
            # Clear the old dict too. Otherwise page handles that are never used again would keep its kinds
            # alive.
            self.kinds.clear()
            self.kinds = {}
        self._on_flush(uses, [*(every[number] for number in numbers.tolist()), *touched])
