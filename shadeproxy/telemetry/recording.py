"""Records demand reads in their order, so that ``shadeproxy simulate`` can replay them.

Laws: to record a read takes a few appends and no I/O. At most ``most_reads`` reads are kept, in 22 bytes
each. A recording has hashes of object names instead of the names; only prefix groups are in plain text. Call
``write`` on a thread of its own, because it blocks.
"""

import os
import zipfile
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext, Source

VERSION = 2
SOURCES = tuple(Source)
NO_RANK = (1 << 16) - 1
GROUP_BITS = 13
"""Number of low bits of a value in the column ``places`` that hold the number of a prefix group. The higher
bits hold an index into ``SOURCES``.
"""
NO_GROUP = (1 << GROUP_BITS) - 1

_CHUNK = 65_536
_MOST_JOBS = 255
_MOST_READERS = (1 << 16) - 1
_MOST_EPOCH = (1 << 16) - 1
_MOST_BYTES = (1 << 32) - 1
_MOST_MS = (1 << 32) - 1  # Seven weeks, in milliseconds.
_SOURCE_NUMBERS = {source: number << GROUP_BITS for number, source in enumerate(SOURCES)}


class RecordedRead(NamedTuple):
    """One read of an object. ``group``: the object's prefix group, which is its bucket and the first segment
    of its key; None if it is not known.
    """

    object_hash: int
    size_bytes: int
    job: JobContext | None
    source: Source
    group: str | None


class Chunk(NamedTuple):
    """Columns of shape (n,) with a run of n recorded reads. A chunk never changes after it was made.

    The columns hold, for each read: the hash of the object; bytes; the number of the reader, which is one
    rank of one job; the epoch; milliseconds since the first read; and the place, which is source and prefix
    group in one number.
    """

    objects: NDArray[np.uint64]
    bytes: NDArray[np.uint32]
    readers: NDArray[np.uint16]
    epochs: NDArray[np.uint16]
    times_ms: NDArray[np.uint32]
    places: NDArray[np.uint16]


class Snapshot(NamedTuple):
    """All reads so far. ``tables``: arrays that translate the numbers in the columns, by array name."""

    chunks: list[Chunk]
    tables: dict[str, NDArray[Any]]


class Recording:
    """The demand reads so far. One thread records them; another one may write the result of ``snapshot``."""

    def __init__(self, most_reads: int) -> None:
        self._most_reads = most_reads
        self._chunks: list[Chunk] = []
        self._sealed = 0
        self._jobs: dict[str, int] = {}
        self._readers: dict[tuple[int, int], int] = {}
        self._groups: dict[str, int] = {}
        self._began_s = 0.0
        self._begin()

    def __len__(self) -> int:
        return self._sealed + len(self._hashes)

    @property
    def full(self) -> bool:
        """True if the recording holds ``most_reads`` reads; then no more are recorded."""
        return len(self) >= self._most_reads

    def note(self, read: RecordedRead, now_s: float) -> None:
        """Record one read. ``now_s``: the time of the read, which must not be earlier than that of the read
        before.
        """
        if self.full:
            return
        if not len(self):
            self._began_s = now_s
        job = read.job
        self._hashes.append(read.object_hash)
        self._sizes.append(min(read.size_bytes, _MOST_BYTES))
        self._numbers.append(self._reader(job))
        self._epochs.append(min(job.epoch or 0, _MOST_EPOCH) if job is not None else 0)
        self._times.append(min(int(1000 * (now_s - self._began_s)), _MOST_MS))
        self._places.append(_SOURCE_NUMBERS[read.source] | self._group(read.group))
        if len(self._hashes) >= _CHUNK:
            self._seal()

    def note_many(self, reads: Iterable[RecordedRead], now_s: float) -> None:
        """Record several reads, the oldest first, as ``note`` does."""
        for read in reads:
            self.note(read, now_s)

    def snapshot(self) -> Snapshot:
        """Return all reads so far."""
        self._seal()
        # All jobs above the limit have the same number, which is shown with the name of the first of these
        # jobs.
        jobs = {number: name for name, number in reversed(self._jobs.items())}
        return Snapshot(
            list(self._chunks),
            {
                "version": np.array([VERSION]),
                "reader_jobs": np.array([job for job, _ in self._readers], dtype=np.uint8),
                "reader_ranks": np.array([rank for _, rank in self._readers], dtype=np.uint16),
                "job_names": np.array([jobs[number] for number in sorted(jobs)], dtype=np.str_),
                "group_names": np.array(list(self._groups), dtype=np.str_),
            },
        )

    def _reader(self, job: JobContext | None) -> int:
        name, rank = ("", None) if job is None else (job.job, job.rank)
        number = self._jobs.setdefault(name, min(len(self._jobs), _MOST_JOBS))
        reader = number, NO_RANK if rank is None else min(rank, NO_RANK - 1)
        found = self._readers.get(reader)
        if found is not None:
            return found
        if len(self._readers) > _MOST_READERS:
            return _MOST_READERS
        return self._readers.setdefault(reader, len(self._readers))

    def _group(self, name: str | None) -> int:
        if name is None:
            return NO_GROUP
        found = self._groups.get(name)
        if found is None:
            if len(self._groups) >= NO_GROUP:
                return NO_GROUP
            found = self._groups[name] = len(self._groups)
        return found

    def _begin(self) -> None:
        self._hashes = array("Q")
        self._sizes = array("I")
        self._numbers = array("H")
        self._epochs = array("H")
        self._times = array("I")
        self._places = array("H")

    def _seal(self) -> None:
        if self._hashes:
            columns = (self._hashes, self._sizes, self._numbers, self._epochs, self._times, self._places)
            self._chunks.append(Chunk(*map(np.array, columns)))
            self._sealed += len(self._hashes)
            self._begin()


def write(snapshot: Snapshot, path: Path) -> None:
    """Write the columns and tables as an .npz that replaces the file at ``path`` (I/O). Raises OSError.

    The file is written chunk by chunk. To join or sort ten million reads at once would hold the interpreter,
    and so the event loop, for far too long. The file has hashes of objects, which ``shadeproxy simulate``
    replaces by small numbers (simulate/recorded.py).
    """
    new = path.with_name(f"{path.name}.new")
    chunks = snapshot.chunks
    reads = sum(len(chunk.objects) for chunk in chunks)
    with new.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for column, name in enumerate(Chunk._fields):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    header = np.lib.format.header_data_from_array_1_0(chunks[0][column])
                    np.lib.format.write_array_header_1_0(member, header | {"shape": (reads,)})
                    for chunk in chunks:
                        member.write(chunk[column].data)
            for name, table in snapshot.tables.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, table, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
