"""Demand reads in the order in which they came, kept for ``shadeproxy simulate``.

Laws: noting a read is a few appends and never I/O; at most ``most_reads`` are kept, 15 bytes each; keys are
not kept, only numbers that stand for objects in one recording. Packing and writing are for a thread.
"""

import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext

_CHUNK = 65_536
_MOST_JOBS = 255
_MOST_EPOCH = (1 << 16) - 1
_MOST_BYTES = (1 << 32) - 1


class Chunk(NamedTuple):
    """Reads that will not change any more, columns of shape (n,)."""

    object_hash: NDArray[np.uint64]
    size_bytes: NDArray[np.uint32]
    job: NDArray[np.uint8]
    epoch: NDArray[np.uint16]


class Recording:
    """Used from one thread; what ``chunks`` answers may be packed on another."""

    def __init__(self, most_reads: int) -> None:
        self._most_reads = most_reads
        self._chunks: list[Chunk] = []
        self._sealed = 0
        self._jobs: dict[str, int] = {}
        self._begin()

    def __len__(self) -> int:
        return self._sealed + len(self._hashes)

    @property
    def full(self) -> bool:
        """Nothing more is kept."""
        return len(self) >= self._most_reads

    def note(self, object_hash: int, size_bytes: int, job: JobContext | None) -> None:
        """One read of an object, of so many bytes."""
        if self.full:
            return
        self._hashes.append(object_hash)
        self._sizes.append(min(size_bytes, _MOST_BYTES))
        # Jobs beyond those that have a number of their own share the last one.
        name = "" if job is None else job.job
        self._numbers.append(self._jobs.setdefault(name, min(len(self._jobs), _MOST_JOBS)))
        self._epochs.append(min(job.epoch or 0, _MOST_EPOCH) if job is not None else 0)
        if len(self._hashes) >= _CHUNK:
            self._seal()

    def note_many(self, reads: Iterable[tuple[int, int, JobContext | None]]) -> None:
        """Reads as for ``note``, oldest first."""
        for object_hash, size_bytes, job in reads:
            self.note(object_hash, size_bytes, job)

    def chunks(self) -> list[Chunk]:
        """All reads so far."""
        self._seal()
        return list(self._chunks)

    def _begin(self) -> None:
        self._hashes = array("Q")
        self._sizes = array("I")
        self._numbers = array("B")
        self._epochs = array("H")

    def _seal(self) -> None:
        if self._hashes:
            self._chunks.append(
                Chunk(
                    np.array(self._hashes, dtype=np.uint64),
                    np.array(self._sizes, dtype=np.uint32),
                    np.array(self._numbers, dtype=np.uint8),
                    np.array(self._epochs, dtype=np.uint16),
                )
            )
            self._sealed += len(self._hashes)
            self._begin()


def pack(chunks: list[Chunk]) -> dict[str, Any]:
    """The arrays of a trace file (see simulate/trace.py).

    Objects are numbered in the order of their hashes. sizes: the most bytes that one read of an object took.
    Within a job the epoch never falls: reads that are late for theirs count for the next one.
    """
    hashes = np.concatenate([chunk.object_hash for chunk in chunks])
    objects, ids = np.unique(hashes, return_inverse=True)
    sizes = np.ones(len(objects), dtype=np.int64)
    np.maximum.at(sizes, ids, np.concatenate([chunk.size_bytes for chunk in chunks]).astype(np.int64))
    jobs = np.concatenate([chunk.job for chunk in chunks])
    epochs = np.concatenate([chunk.epoch for chunk in chunks])
    for job in np.unique(jobs):
        mine = jobs == job
        epochs[mine] = np.maximum.accumulate(epochs[mine])
    arrays: dict[str, Any] = {"ids": ids.astype(np.uint32), "sizes": sizes}
    if jobs.any():
        arrays["jobs"] = jobs
    if epochs.any():
        arrays["epochs"] = epochs
    return arrays


def write(chunks: list[Chunk], path: Path) -> None:
    """Put a trace file in the place of the last one (I/O). Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        np.savez(file, **pack(chunks))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
