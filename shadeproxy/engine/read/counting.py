"""Counting of demand reads: statistics, announced orders, and the recording.

Laws: plain defs; a read is counted once, whichever process answered it. Orders get it before its page is
ranked; reads that were hits are passed on in batches.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.clock import Clock
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import Intent, JobContext, Source
from shadeproxy.engine.access_records import Kind, Uses
from shadeproxy.engine.base import ReadRequest
from shadeproxy.hints.order.upcoming import ReadObserver
from shadeproxy.telemetry.recording import Recording
from shadeproxy.telemetry.stats import Stats

JobsOf = Callable[[NDArray[np.uint64] | list[int]], Sequence[str | None]]
"""The jobs whose datasets hold the objects, by object hash, for reads that name no job."""


class Counting:
    """Counts reads in ``stats``; passes them to ``orders``, and to ``recording`` if there is one."""

    def __init__(
        self,
        stats: Stats,
        clock: Clock,
        *,
        jobs_of: JobsOf,
        orders: ReadObserver,
        recording: Recording | None,
    ) -> None:
        self._stats = stats
        self._clock = clock
        self._jobs_of = jobs_of
        self._orders = orders
        self._recording = recording
        self.before_recording: Callable[[], None] = lambda: None
        """Called before a read is recorded, to count earlier reads first."""

    def note_read(self, request: ReadRequest, first: int) -> None:
        """Pass on to the orders that bytes from ``first`` on are about to be read."""
        if self._orders.active and request.intent is Intent.DEMAND:
            self._orders.note_read(object_hash(request.ref), first, request.job, self._clock.now_s())

    def count(self, request: ReadRequest, source: Source, size_bytes: int) -> None:
        """Count one read, after ``note_read``."""
        job = request.job
        if job is None:
            (name,) = self._jobs_of([object_hash(request.ref)])
            job = None if name is None else JobContext(name)
        if self._recording is not None:
            self.before_recording()
            self._recording.note(object_hash(request.ref), size_bytes, job)
        self._stats.record_reads(request.ref.bucket, source, 1, size_bytes, job)

    def count_uses(self, uses: Uses, kinds: Sequence[Kind]) -> None:
        """Count reads in columns, oldest first."""
        reads = uses[uses["reads"] > 0]
        if not len(reads):
            return
        if self._orders.active:
            jobs = [kinds[number].job for number in reads["kind"].tolist()]
            self._orders.note_reads(reads["object_hash"], reads["first"], jobs, self._clock.now_s())
        names = self._jobs_of(reads["object_hash"])
        if self._recording is not None:
            self._recording.note_many(
                (hashed, size_bytes, _whose(kinds[number].job, name))
                for hashed, size_bytes, number, name in zip(
                    reads["object_hash"].tolist(),
                    reads["size_bytes"].tolist(),
                    reads["kind"].tolist(),
                    names,
                    strict=True,
                )
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


def _whose(job: JobContext | None, of_data_set: str | None) -> JobContext | None:
    """Return the job that the reader named, else the one whose dataset it read."""
    return job if job is not None or of_data_set is None else JobContext(of_data_set)
