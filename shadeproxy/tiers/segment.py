"""One segment file: bytes in, bytes out, and which of its 4-KiB blocks are taken.

Bodies are written with pwrite, never through the mapping: a full medium then answers ENOSPC, where a store
to a mapped page would kill the process with SIGBUS. They are read through one shared read-only mapping.
A record writes its body first and its header last; it dies header first. Before either, the segment's
catalogue is emptied. Placing records and counting the capacity is the store's business. ``occupy``,
``vacate``, ``cost`` and ``give_back`` only keep books and do no I/O; they belong to the thread that owns
the store, as ``fill`` does to the one that recovers, before the segment is taken in.
"""

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import TierError
from shadeproxy.tiers import catalogue
from shadeproxy.tiers.medium import SYSTEM, Calls, is_resident
from shadeproxy.tiers.record import HEADER_BYTES, UNIT_BYTES, Body

BLOCK_BYTES = 4096
_NOWHERE = -1
"""No page begins there, nor a multiple of a page behind it: mincore refuses it."""
UNITS_PER_BLOCK = BLOCK_BYTES // UNIT_BYTES
SUFFIX = ".seg"

# State of a block: no bytes on the medium; 1 to 64 live records; bytes on the medium but no record.
_HOLE = 0
_SLACK = 255
_SLACK_BYTE = b"\xff"

Counts = NDArray[np.int64]

BlockRange = tuple[int, int]
"""Half-open range of block numbers of one segment."""

_ZERO_HEADER = bytes(HEADER_BYTES)


PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def share(target: int | Path, group_id: int | None, *, mode: int) -> None:
    """Let members of a group read, and search a directory, beside the owner's ``mode``. Raises OSError."""
    if group_id is not None:
        # Its group before its mode: else members of the old group could read for a moment.
        os.chown(target, -1, group_id)
        mode |= (mode & 0o500) >> 3
    os.chmod(target, mode)  # noqa: PTH101  a descriptor has no Path


class Segment:
    """A file of ``size_bytes``, sparse, with a mapping and the state of its blocks."""

    def __init__(
        self,
        path: Path,
        number: int,
        *,
        size_bytes: int | None = None,
        group_id: int | None = None,
        calls: Calls = SYSTEM,
    ) -> None:
        """Open an existing file, or with ``size_bytes`` create one that ``group_id`` may read.

        ``calls``: by which it is read and written from then on. Raises OSError.
        """
        self.path = path
        self.number = number
        self.records = 0
        self._calls = calls
        self.catalogue_path = path.with_suffix(catalogue.SUFFIX)
        self.catalogued = False
        self._unerased: list[int] = []
        # Erasures so far, and how many of them are on the medium; of an earlier process nobody knows.
        self._erased, self._flushed = int(size_bytes is None), 0
        create = os.O_CREAT | os.O_EXCL if size_bytes else 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
        """The open file; -1 once closed."""
        try:
            if size_bytes:
                share(self.descriptor, group_id, mode=PRIVATE_FILE)
                os.ftruncate(self.descriptor, size_bytes)
            self.size_bytes = os.fstat(self.descriptor).st_size
            self.mapping = mmap.mmap(self.descriptor, self.size_bytes, access=mmap.ACCESS_READ)
        except OSError:
            os.close(self.descriptor)
            raise
        self._bytes: NDArray[np.uint8] = np.frombuffer(self.mapping, np.uint8)
        self._address: int = self._bytes.ctypes.data  # once: asking numpy takes 1 us
        self.view = memoryview(self.mapping)
        self._blocks = bytearray(-(-self.size_bytes // BLOCK_BYTES))
        # Whose pages a socket may still hold (tiers/lending.py): of an earlier process nobody knows.
        self._lent = bytearray((b"\x00" if size_bytes else b"\x01") * len(self._blocks))

    @property
    def units(self) -> int:
        """Length in units of 64 bytes."""
        return self.size_bytes // UNIT_BYTES

    @property
    def slack_blocks(self) -> int:
        """Blocks that hold bytes but no record."""
        return self._blocks.count(_SLACK)

    # ------------------------------------------------------------------ books

    def cost(self, unit: int, units: int) -> tuple[int, int]:
        """Blocks that a record here would take from holes, and from slack."""
        first, stop = unit // UNITS_PER_BLOCK, -(-(unit + units) // UNITS_PER_BLOCK)
        return self._blocks.count(_HOLE, first, stop), self._blocks.count(_SLACK, first, stop)

    def fill(self, units: Counts, lengths: Counts) -> None:
        """Count in all records of a segment, and nothing else: i64[n] first units and lengths, in order."""
        firsts, lasts = units // UNITS_PER_BLOCK, (units + lengths - 1) // UNITS_PER_BLOCK
        blocks = len(self._blocks)
        # A record is alone in the blocks between its first and its last; these it may share.
        inner = np.bincount(firsts + 1, minlength=blocks + 2) - np.bincount(
            np.maximum(lasts, firsts + 1), minlength=blocks + 2
        )
        counts = np.cumsum(inner)[:blocks] + np.bincount(firsts, minlength=blocks)
        counts += np.bincount(lasts[lasts > firsts], minlength=blocks)
        self._blocks = bytearray(counts.astype(np.uint8).tobytes())
        self.records = len(units)

    @property
    def held_blocks(self) -> int:
        """Blocks that a record touches."""
        return len(self._blocks) - self._blocks.count(_HOLE) - self.slack_blocks

    def occupy(self, unit: int, units: int) -> None:
        """Count a record in. Between its first and its last block nothing else can be."""
        first, last = unit // UNITS_PER_BLOCK, (unit + units - 1) // UNITS_PER_BLOCK
        blocks = self._blocks
        count = blocks[first]
        blocks[first] = 1 if count == _SLACK else count + 1
        if last > first:
            blocks[first + 1 : last] = b"\x01" * (last - first - 1)
            count = blocks[last]
            blocks[last] = 1 if count == _SLACK else count + 1
        self.records += 1

    def vacate(self, unit: int, units: int) -> BlockRange:
        """Count a record out; answers the blocks that no record touches now: they are slack."""
        first, last = unit // UNITS_PER_BLOCK, (unit + units - 1) // UNITS_PER_BLOCK
        blocks = self._blocks
        count = blocks[first]
        assert count not in (_HOLE, _SLACK), "released twice"
        blocks[first] = left = count - 1 or _SLACK
        freed_first = freed_stop = first if left == _SLACK else first + 1
        if last > first:
            blocks[first + 1 : last] = _SLACK_BYTE * (last - first - 1)
            count = blocks[last]
            assert count not in (_HOLE, _SLACK), "released twice"
            blocks[last] = left = count - 1 or _SLACK
            freed_stop = last + 1 if left == _SLACK else last
        elif left == _SLACK:
            freed_stop = first + 1
        self.records -= 1
        return freed_first, freed_stop

    def has_slack(self, blocks: BlockRange) -> bool:
        """Whether any block of the range is slack still."""
        return self._blocks.find(_SLACK, *blocks) >= 0

    def give_back(self, blocks: BlockRange) -> list[BlockRange]:
        """Turn the slack within a range to holes; answers the runs that are to be punched."""
        runs: list[BlockRange] = []
        position, stop = blocks
        while (first := self._blocks.find(_SLACK, position, stop)) >= 0:
            tail = self._blocks[first:stop]
            length = len(tail) - len(tail.lstrip(_SLACK_BYTE))
            position = first + length
            self._blocks[first:position] = bytes(length)
            runs.append((first, position))
        return runs

    def lend(self, start: int, stop: int) -> None:
        """Bytes ``[start, stop)`` are about to be sent without being copied, out of blocks that one record
        has for itself.
        """
        first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        self._lent[first:last] = b"\x01" * (last - first)

    def give_back_lent(self, blocks: BlockRange) -> list[BlockRange]:
        """As ``give_back``, for those blocks of a range that were lent: they may not be overwritten."""
        runs: list[BlockRange] = []
        position, stop = blocks
        while (first := self._lent.find(1, position, stop)) >= 0:
            end = self._lent.find(0, first, stop)
            position = stop if end < 0 else end
            self._lent[first:position] = bytes(position - first)
            runs += self.give_back((first, position))
        return runs

    def holes(self) -> list[BlockRange]:
        """Runs of blocks that count as holes, whatever the file system holds there."""
        edges = np.flatnonzero(
            np.diff(np.frombuffer(self._blocks, np.uint8) == _HOLE, prepend=False, append=False)
        )
        return [(int(first), int(stop)) for first, stop in edges.reshape(-1, 2)]

    # ------------------------------------------------------------------ bytes

    def body(self, start: int, length: int) -> NDArray[np.uint8]:
        """``length`` mapped bytes from ``start``: u8[length], read-only, keeps the mapping alive."""
        return self._bytes[start : start + length]

    def write(self, offset: int, header: bytes, body: Body) -> None:
        """Body, then header. Raises OSError; the header is then not written."""
        self._prepare()
        self._write_all(body, offset + len(header))
        self._write_all(header, offset)

    def erase(self, offset: int) -> None:
        """Zero a header. Raises OSError; it is then tried again before anything else is changed."""
        self._unerased.append(offset)
        self._prepare()

    @property
    def owed(self) -> int:
        """Headers that were to be erased, and could not be."""
        return len(self._unerased)

    @property
    def unflushed(self) -> bool:
        """Return whether an erasure may not be on the medium yet."""
        return self._flushed != self._erased

    def retry(self) -> None:
        """Erase what could not be erased. Raises OSError."""
        if self._unerased:
            self._prepare()

    def flush(self) -> None:
        """Have every erasure so far on the medium. Raises OSError: nobody knows then which of them are."""
        if self.unflushed and self.descriptor >= 0:
            # Another thread may erase meanwhile: that is flushed later.
            erased = self._erased
            self._calls.flush(self.descriptor)
            self._flushed = erased

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes, by a system call: a bad medium is then OSError instead of SIGBUS."""
        return self._calls.pread(self.descriptor, length, offset)

    def read_record(self, offset: int, length: int) -> bytes:
        """As ``read``. Raises TierError."""
        try:
            return self.read(offset, length)
        except OSError as error:
            raise TierError(f"cannot read a record: {error.strerror}") from error

    def punch(self, blocks: BlockRange) -> None:
        """Return blocks to the file system. Raises OSError."""
        self._prepare()
        first, stop = blocks
        self._calls.punch_hole(self.descriptor, first * BLOCK_BYTES, (stop - first) * BLOCK_BYTES)

    def is_resident(self, offset: int, length: int) -> bool:
        """Whether the bytes are in the page cache. Raises OSError."""
        return is_resident(self._address, offset, length)

    @property
    def allocated_bytes(self) -> int:
        """What the file takes on the medium. Raises OSError."""
        return os.fstat(self.descriptor).st_blocks * 512

    def next_data(self, offset: int) -> BlockRange | None:
        """Byte range of the next run that is no hole, from ``offset`` on; None at the end."""
        try:
            start = os.lseek(self.descriptor, offset, os.SEEK_DATA)
        except OSError:
            return None
        return start, os.lseek(self.descriptor, start, os.SEEK_HOLE)

    def close(self) -> None:
        """Close the file. The mapping goes with the last view of it (an explicit close would raise)."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            self._bytes = np.empty(0, np.uint8)
            self._address = _NOWHERE
            self.view = memoryview(b"")
            del self.mapping

    def destroy(self) -> None:
        """Delete the file and close it. Raises OSError."""
        # In this order: a catalogue without its segment would pass for that of the next one of its number.
        self.catalogue_path.unlink(missing_ok=True)
        self.path.unlink()
        self.close()

    def _prepare(self) -> None:
        """Before any change: an empty catalogue, and no header left that was to be erased."""
        if self.catalogued:
            self._outdate()
        while self._unerased:
            self._write_all(_ZERO_HEADER, self._unerased[-1])
            self._unerased.pop()
            self._erased += 1

    def _outdate(self) -> None:
        # One that was deleted says nothing already.
        with contextlib.suppress(FileNotFoundError):
            catalogue.empty(self.catalogue_path)
        self.catalogued = False

    def _write_all(self, data: Body, offset: int) -> None:
        written = self._calls.pwrite(self.descriptor, data, offset)
        if written < len(data):
            # Short writes happen when the medium fills up: the next call says so.
            view = memoryview(data)
            while written < len(data):
                written += self._calls.pwrite(self.descriptor, view[written:], offset + written)
