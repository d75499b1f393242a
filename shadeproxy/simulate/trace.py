"""Traces: the order of reads of objects, with all that is known of them, and the hints that jobs give."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Jobs = NDArray[np.uint8]
Epochs = NDArray[np.uint16]
Weights = NDArray[np.float32]
Sizes = NDArray[np.int64]
Times = NDArray[np.float64]
Prefixes = NDArray[np.uint16]
Positions = NDArray[np.int64]

NOBODY = -1
"""The job of a read that names none."""


@dataclass(frozen=True, slots=True)
class JobHints:
    """Hints of the job with number ``job`` in a trace; its data set is the ids from ``first`` to ``stop``.

    order: u32[m], the ids that it announces; it may read others. since, known: i64[k], after ``since[i]`` of
    the job's reads the first ``known[i]`` of the order are announced; ``since[0]`` is 0. scores: f32[r, size
    of the data set], nan where there is none; None: it posts none. scored_at: i64[r], the reads of the trace
    before which the rows are posted, rising.
    """

    job: int
    first: int
    stop: int
    order: Ids
    since: Positions
    known: Positions
    scores: Weights | None = None
    scored_at: Positions | None = None

    def known_after(self, done: Positions) -> Positions:
        """Return how many reads of the order are announced after so many finished reads."""
        known: Positions = self.known[self.since.searchsorted(done, side="right") - 1]
        return known


@dataclass(frozen=True, slots=True)
class Trace:
    """n reads of ``objects`` objects, in the order in which they came.

    ids: u32[n], each below ``objects``. sizes: i64[objects] bytes; None: all alike. jobs: u8[n]; None: one.
    epochs: u16[n], never falling within a job; None: not known. weights: f32[epochs, objects], the importance
    known while an epoch is read, nan where it is not; None: nothing is known. times: f64[n] s, never falling;
    None: not known. prefixes: u16[objects], groups of keys; None: one. stock: the numbers among ``jobs`` of
    clients that are no job. hints: by job, for traces in which jobs say anything else than what they read.
    sources: u8[n], of ``telemetry.recording.SOURCES``, by the proxy that was recorded. ranks: u16[n], of the
    job's processes; ``NO_RANK`` where it has none.
    """

    ids: Ids
    objects: int
    sizes: Sizes | None = None
    jobs: Jobs | None = None
    epochs: Epochs | None = None
    weights: Weights | None = None
    times: Times | None = None
    prefixes: Prefixes | None = None
    stock: tuple[int, ...] = ()
    sources: NDArray[np.uint8] | None = None
    ranks: NDArray[np.uint16] | None = None
    hints: tuple[JobHints, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects; where sizes are not known, their number."""
        return self.objects if self.sizes is None else int(self.sizes.sum())

    @property
    def one_size(self) -> int | None:
        """The size of every object; None when they differ."""
        if self.sizes is None:
            return 1
        return int(self.sizes[0]) if (self.sizes == self.sizes[0]).all() else None

    def job_of_reads(self) -> NDArray[np.int16]:
        """Return the job of each read, ``NOBODY`` where it is that of a stock client: i16[n]."""
        if self.jobs is None:
            return np.full(len(self.ids), NOBODY if 0 in self.stock else 0, dtype=np.int16)
        jobs = self.jobs.astype(np.int16)
        jobs[np.isin(jobs, self.stock)] = NOBODY
        return jobs

    def counted(self) -> NDArray[np.bool_]:
        """Return the reads that count: from each job's second epoch on; all if there is only one epoch."""
        if self.epochs is None:
            return np.ones(len(self.ids), dtype=np.bool_)
        jobs = np.zeros(len(self.ids), dtype=np.uint8) if self.jobs is None else self.jobs
        first = np.full(256, np.iinfo(np.uint16).max, dtype=np.uint16)
        np.minimum.at(first, jobs, self.epochs)
        later: NDArray[np.bool_] = self.epochs > first[jobs]
        return later if later.any() else ~later
