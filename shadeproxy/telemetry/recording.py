"""Recording of demand reads, in the order in which they came, for ``shadeproxy simulate``.

Laws: noting a read is a few appends and never I/O; at most ``most_reads`` are kept, 15 bytes each; hashes of
object names are kept, and no keys. Call ``write`` on a thread.
"""

import os
import zipfile
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext

_CHUNK = 65_536
_MOST_JOBS = 255
_MOST_EPOCH = (1 << 16) - 1
_MOST_BYTES = (1 << 32) - 1


class Chunk(NamedTuple):
    """Reads that will not change any more, columns of shape (n,): object hash, bytes, job, epoch."""

    objects: NDArray[np.uint64]
    bytes: NDArray[np.uint32]
    jobs: NDArray[np.uint8]
    epochs: NDArray[np.uint16]


class Recording:
    """A recording, used from one thread; the result of ``chunks`` may be written on another."""

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
        """True if no more reads are kept."""
        return len(self) >= self._most_reads

    def note(self, object_hash: int, size_bytes: int, job: JobContext | None) -> None:
        """Note one read of an object, of ``size_bytes``."""
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
        """Note reads as ``note`` does, oldest first."""
        for object_hash, size_bytes, job in reads:
            self.note(object_hash, size_bytes, job)

    def chunks(self) -> list[Chunk]:
        """Return all reads so far."""
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


def write(chunks: list[Chunk], path: Path) -> None:
    """Replace the trace file (I/O) by an .npz of the columns. Raises OSError.

    It is written chunk by chunk, because joining or sorting ten million reads holds the interpreter, and with
    it the event loop, for far too long: ``shadeproxy simulate`` numbers the objects (simulate/trace.py).
    """
    new = path.with_name(f"{path.name}.new")
    reads = sum(len(chunk.objects) for chunk in chunks)
    with new.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for column, name in enumerate(Chunk._fields):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    header = np.lib.format.header_data_from_array_1_0(chunks[0][column])
                    np.lib.format.write_array_header_1_0(member, header | {"shape": (reads,)})
                    for chunk in chunks:
                        member.write(chunk[column].data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
