"""Traces: the order of reads, what is known of the objects, and the hints that jobs give."""

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

NO_JOB = -1
"""The job of a read that names no job."""


@dataclass(frozen=True, slots=True)
class JobHints:
    """Hints of the job with number ``job`` in a trace. Its dataset has the ids from ``first`` up to, but
    without, ``stop``.

    order: u32[m], the ids that the job announces; it may read other ids. since, known: i64[k]; after
    ``since[i]`` reads of the job, the first ``known[i]`` ids of the order are announced; ``since[0]`` is 0.
    scores: f32[r, size of the dataset], nan for an unknown score; None: the job posts no scores. scored_at:
    i64[r], rising; row i of the scores is posted before read ``scored_at[i]`` of the trace.
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
        """Return how many reads of the order are announced once the job has finished ``done`` reads."""
        known: Positions = self.known[self.since.searchsorted(done, side="right") - 1]
        return known

    def known_now(self, done: int) -> int:
        """Return the result of ``known_after`` for one number."""
        return int(self.known[self.since.searchsorted(done, side="right") - 1])


@dataclass(frozen=True, slots=True)
class Trace:
    """n reads of ``objects`` objects, in the order in which they came.

    ids: u32[n], each below ``objects``. sizes: i64[objects] in bytes; None: all equal. jobs: u8[n]; None: one
    job. epochs: u16[n], never falling within a job; None: unknown. weights: f32[epochs, objects], the
    importance of each object as it is known while an epoch is read, nan if unknown; None: all unknown. times:
    f64[n] in seconds, never falling; None: unknown. prefixes: u16[objects], the prefix groups of objects;
    None: one group. prefix_names, job_names: the names of the groups and jobs in a recording, by number; the
    job "" stands for reads that named no job. stock: the numbers in ``jobs`` that
    stand for stock clients, which have no job. hints: one ``JobHints`` for each job, for traces in which the
    reads of jobs differ from their orders. sources: u8[n], the source from which the recorded proxy answered
    each read, as an index into ``telemetry.recording.SOURCES``. ranks: u16[n], the rank of the job that made
    each read; ``NO_RANK`` if unknown.
    """

    ids: Ids
    objects: int
    sizes: Sizes | None = None
    jobs: Jobs | None = None
    epochs: Epochs | None = None
    weights: Weights | None = None
    times: Times | None = None
    prefixes: Prefixes | None = None
    prefix_names: tuple[str, ...] = ()
    job_names: tuple[str, ...] = ()
    stock: tuple[int, ...] = ()
    sources: NDArray[np.uint8] | None = None
    ranks: NDArray[np.uint16] | None = None
    hints: tuple[JobHints, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects. If sizes are unknown, each object counts as one byte."""
        return self.objects if self.sizes is None else int(self.sizes.sum())

    @property
    def one_size(self) -> int | None:
        """The size of every object; None when they differ."""
        if self.sizes is None:
            return 1
        return int(self.sizes[0]) if (self.sizes == self.sizes[0]).all() else None

    def job_of_reads(self) -> NDArray[np.int16]:
        """Return the job of each read, i16[n]; ``NO_JOB`` for a read by a stock client."""
        if self.jobs is None:
            return np.full(len(self.ids), NO_JOB if 0 in self.stock else 0, dtype=np.int16)
        jobs = self.jobs.astype(np.int16)
        jobs[np.isin(jobs, self.stock)] = NO_JOB
        return jobs

    def counted(self) -> NDArray[np.bool_]:
        """Return which reads count in hit ratios, bool[n]: those from each job's second epoch on, because the
        first one fills the cache. If there is only one epoch, all reads count.
        """
        if self.epochs is None:
            return np.ones(len(self.ids), dtype=np.bool_)
        jobs = np.zeros(len(self.ids), dtype=np.uint8) if self.jobs is None else self.jobs
        first = np.full(256, np.iinfo(np.uint16).max, dtype=np.uint16)
        np.minimum.at(first, jobs, self.epochs)
        later: NDArray[np.bool_] = self.epochs > first[jobs]
        return later if later.any() else ~later
