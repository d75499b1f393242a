"""One segment file: its bytes, and the state of each of its 4-KiB blocks.

Bodies are written with pwrite and not through the mapping. If the medium is full, pwrite returns ENOSPC; a
store to a mapped page would kill the process with SIGBUS. Bodies are read through one shared read-only
mapping. A write puts the body first and the header last; an erasure zeroes the header. Before a write or an
erasure, the segment's catalogue is emptied.

The store places records and counts the capacity. Its thread calls ``occupy``, ``vacate``, ``cost`` and
``give_back``, which only count and do no I/O. Before the segment is added to the space, the recovery thread
calls ``fill`` and ``occupy``.
"""

import errno
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.delegated_body import WrittenBody, file_id
from shadeproxy.core.errors import TierError
from shadeproxy.tiers import catalogue
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.medium import SYSTEM, Calls, is_resident
from shadeproxy.tiers.record import (
    HEADER_BYTES,
    MOST_HEADER_BYTES,
    PEEK_BYTES,
    UNIT_BYTES,
    Body,
    check_body,
    read_layout,
    unpack_header,
)

BLOCK_BYTES = 4096
_NOWHERE = -1
"""Address of a closed segment. It is no multiple of the page size, so mincore refuses it, and also every
address that lies a number of whole pages above it.
"""
UNITS_PER_BLOCK = BLOCK_BYTES // UNIT_BYTES
SUFFIX = ".seg"

# The state of a block is its number of live records, 1 to 64, or without live records one of these two.
_HOLE = 0  # The medium has freed the block's bytes.
_SLACK = 255  # The medium still holds bytes in the block.
_SLACK_BYTE = b"\xff"

Counts = NDArray[np.int64]

BlockRange = tuple[int, int]
"""Half-open range of block numbers of one segment."""

_ZERO_HEADER = bytes(HEADER_BYTES)
PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def share(target: int | Path, group_id: int | None, *, mode: int) -> None:
    """Let a group read ``target`` (and search it, if it is a directory), beside the owner's ``mode``. Raises
    OSError.
    """
    if group_id is not None:
        # Set the group before the mode: otherwise members of the old group could read for a moment.
        os.chown(target, -1, group_id)
        mode |= (mode & 0o500) >> 3
    os.chmod(target, mode)  # noqa: PTH101  a descriptor has no Path


class Segment:
    """A sparse file of ``size_bytes``, with a mapping and the state of its blocks."""

    def __init__(
        self,
        path: Path,
        number: int,
        *,
        size_bytes: int | None = None,
        group_id: int | None = None,
        calls: Calls = SYSTEM,
    ) -> None:
        """Open an existing file, or with ``size_bytes`` create a file that ``group_id`` may read.

        ``calls``: the system calls for all reads and writes. Raises OSError.
        """
        self.path = path
        self.number = number
        self.records = 0
        self._calls = calls
        self.catalogue_path = path.with_suffix(catalogue.SUFFIX)
        self.catalogued = False
        self._unerased: list[int] = []
        # Erasures so far (those of an earlier process count as one), and how many of them are on the medium.
        self._erased, self._flushed = int(size_bytes is None), 0
        create = os.O_CREAT | os.O_EXCL if size_bytes else 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
        """Descriptor of the open file; -1 once closed."""
        try:
            if size_bytes:
                share(self.descriptor, group_id, mode=PRIVATE_FILE)
                os.ftruncate(self.descriptor, size_bytes)
            self.size_bytes = os.fstat(self.descriptor).st_size
            self.file = file_id(self.descriptor)
            self.mapping = mmap.mmap(self.descriptor, self.size_bytes, access=mmap.ACCESS_READ)
            if size_bytes:
                self.stop_readahead()
        except OSError:
            os.close(self.descriptor)
            raise
        self._bytes: NDArray[np.uint8] = np.frombuffer(self.mapping, np.uint8)
        self._address: int = self._bytes.ctypes.data  # Cached, because asking numpy takes 1 us.
        self.view = memoryview(self.mapping)
        self._blocks = bytearray(-(-self.size_bytes // BLOCK_BYTES))
        # Blocks whose pages a socket may still hold (tiers/sendfile.py). In a file of an earlier process, any
        # block may be such a one.
        self._sent = bytearray((b"\x00" if size_bytes else b"\x01") * len(self._blocks))

    def stop_readahead(self) -> None:
        """Keep the kernel from reading ahead, which would put unchecked bytes into the page cache. Recovery
        calls this only after its scan: its pages are checked at their first read. Raises OSError.
        """
        self.mapping.madvise(mmap.MADV_RANDOM)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def units(self) -> int:
        """Length in units of 64 bytes."""
        return self.size_bytes // UNIT_BYTES

    @property
    def slack_blocks(self) -> int:
        """Number of blocks that hold bytes but no record."""
        return self._blocks.count(_SLACK)

    # ------------------------------------------------------------------ counts

    def cost(self, unit: int, units: int) -> tuple[int, int]:
        """Return how many holes and how many slack blocks a record at this place would take."""
        first, stop = unit // UNITS_PER_BLOCK, -(-(unit + units) // UNITS_PER_BLOCK)
        return self._blocks.count(_HOLE, first, stop), self._blocks.count(_SLACK, first, stop)

    def fill(self, units: Counts, lengths: Counts) -> None:
        """Count all records of a segment that had none. ``units``, ``lengths``: i64[n], sorted by address."""
        firsts, lasts = units // UNITS_PER_BLOCK, (units + lengths - 1) // UNITS_PER_BLOCK
        blocks = len(self._blocks)
        # The blocks between a record's first and last block belong to it alone. It may share its first and
        # last block.
        inner = np.bincount(firsts + 1, minlength=blocks + 2) - np.bincount(
            np.maximum(lasts, firsts + 1), minlength=blocks + 2
        )
        counts = np.cumsum(inner)[:blocks] + np.bincount(firsts, minlength=blocks)
        counts += np.bincount(lasts[lasts > firsts], minlength=blocks)
        self._blocks = bytearray(counts.astype(np.uint8).tobytes())
        self.records = len(units)

    @property
    def held_blocks(self) -> int:
        """Number of blocks that hold a record or a part of one."""
        return len(self._blocks) - self._blocks.count(_HOLE) - self.slack_blocks

    def occupy(self, unit: int, *lengths: int) -> None:
        """Count as live the records that follow each other from ``unit`` on. ``lengths``: their lengths in
        units. No other record touches the blocks between a record's first and its last block.
        """
        blocks = self._blocks
        for units in lengths:
            first, last = unit // UNITS_PER_BLOCK, (unit + units - 1) // UNITS_PER_BLOCK
            count = blocks[first]
            blocks[first] = 1 if count == _SLACK else count + 1
            if last > first:
                blocks[first + 1 : last] = b"\x01" * (last - first - 1)
                count = blocks[last]
                blocks[last] = 1 if count == _SLACK else count + 1
            unit += units
        self.records += len(lengths)

    def vacate(self, unit: int, units: int) -> BlockRange:
        """Count a record as gone. Return the blocks that no record touches now: they became slack."""
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
        """Return whether any block of the range is still slack."""
        return self._blocks.find(_SLACK, *blocks) >= 0

    def give_back(self, blocks: BlockRange) -> list[BlockRange]:
        """Turn the slack in a range of blocks into holes. Return the runs of blocks that must be punched."""
        runs: list[BlockRange] = []
        position, stop = blocks
        while (first := self._blocks.find(_SLACK, position, stop)) >= 0:
            tail = self._blocks[first:stop]
            length = len(tail) - len(tail.lstrip(_SLACK_BYTE))
            position = first + length
            self._blocks[first:position] = bytes(length)
            runs.append((first, position))
        return runs

    def mark_sent(self, start: int, stop: int) -> None:
        """Mark bytes ``[start, stop)``, in blocks that belong to one record alone, as sent by sendfile. The
        bytes must not be overwritten from then on.
        """
        first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        self._sent[first:last] = b"\x01" * (last - first)

    def was_sent(self, offset: int, length: int) -> bool:
        """Return whether sendfile sent any block of these bytes that has not become a hole since."""
        return self._sent.find(1, offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES)) >= 0

    def give_back_sent(self, blocks: BlockRange) -> list[BlockRange]:
        """Turn the slack of a range that was sent by sendfile into holes. A socket may still hold the pages
        of these blocks, so they must not be overwritten. Return the runs of blocks that must be punched.
        """
        runs: list[BlockRange] = []
        position, stop = blocks
        while (first := self._sent.find(1, position, stop)) >= 0:
            end = self._sent.find(0, first, stop)
            position = stop if end < 0 else end
            self._sent[first:position] = bytes(position - first)
            runs += self.give_back((first, position))
        return runs

    def holes(self) -> list[BlockRange]:
        """Return the runs of blocks that count as holes, even if the file system still holds their bytes."""
        edges = np.flatnonzero(
            np.diff(np.frombuffer(self._blocks, np.uint8) == _HOLE, prepend=False, append=False)
        )
        return [(int(first), int(stop)) for first, stop in edges.reshape(-1, 2)]

    # ------------------------------------------------------------------ bytes

    def body(self, start: int, length: int) -> NDArray[np.uint8]:
        """Return ``length`` mapped bytes from ``start``: u8[length], read-only. The array keeps the mapping
        alive.
        """
        return self._bytes[start : start + length]

    def check_length(self) -> None:
        """Raise OSError if another program has truncated the file. Call this before a write, because a write
        makes the file long again, and the bytes that were cut off would be read as zeros.
        """
        if os.lseek(self.descriptor, 0, os.SEEK_END) < self.size_bytes:
            raise OSError(errno.EIO, f"another program truncated {self.path}")

    def write(self, offset: int, header: bytes, body: Body | WrittenBody) -> None:
        """Write the body, unless another process has written it, then the header. Raises OSError; then no
        header was written.
        """
        if self.catalogued or self._unerased:
            self._prepare()
        pwrite, descriptor = self._calls.pwrite, self.descriptor
        if not isinstance(body, WrittenBody):
            start = offset + len(header)
            written = pwrite(descriptor, body, start)
            if written < len(body):
                self._write_rest(body, start, written)
        written = pwrite(descriptor, header, offset)
        if written < len(header):
            self._write_rest(header, offset, written)

    def erase(self, *offsets: int) -> None:
        """Zero the headers of records. Raises OSError; the headers that are left are then erased before any
        other change.
        """
        self._unerased += offsets
        self._prepare()

    @property
    def owed(self) -> int:
        """Number of headers whose erasure failed."""
        return len(self._unerased)

    @property
    def unflushed(self) -> bool:
        """True if an erasure may not be on the medium yet."""
        return self._flushed != self._erased

    def retry(self) -> None:
        """Repeat the erasures that failed. Raises OSError."""
        if self._unerased:
            self._prepare()

    def flush(self) -> None:
        """Flush every erasure so far to the medium. Raises OSError; some of the erasures may then be lost."""
        if self.unflushed and self.descriptor >= 0:
            # Another thread may add an erasure during the flush; the next flush covers it.
            erased = self._erased
            self._calls.flush(self.descriptor)
            self._flushed = erased

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes. If the medium is bad, the system call used here raises OSError, but
        reading the mapping would kill the process with SIGBUS.
        """
        return self._calls.pread(self.descriptor, length, offset)

    def read_record(self, offset: int, length: int) -> bytes:
        """Return bytes as ``read`` does, but raise TierError instead of OSError."""
        try:
            return self.read(offset, length)
        except OSError as error:
            raise TierError(f"cannot read a record: {error.strerror}") from error

    def read_header(self, offset: int, most_bytes: int, *, store_id: int, address: int) -> RecordHeader:
        """Return the proven header of the record at ``offset``, which takes at most ``most_bytes``.

        ``store_id``, ``address``: the values that the header must carry. Any thread; raises TierError.
        """
        raw = self.read_record(offset, min(most_bytes, PEEK_BYTES))
        if read_layout(raw).body_start > len(raw):
            raw = self.read_record(offset, min(most_bytes, MOST_HEADER_BYTES))
        return unpack_header(raw, store_id=store_id, address=address)[0]

    def read_whole(self, offset: int, most_bytes: int, *, store_id: int, address: int) -> RecordHeader:
        """Read a complete record, check the hash of its body, and return its header. Raises TierError."""
        raw = self.read_record(offset, most_bytes)
        header, layout = unpack_header(raw, store_id=store_id, address=address)
        check_body(raw, layout)
        return header

    def punch(self, blocks: BlockRange) -> None:
        """Return blocks to the file system. Raises OSError."""
        self._prepare()
        first, stop = blocks
        self._calls.punch_hole(self.descriptor, first * BLOCK_BYTES, (stop - first) * BLOCK_BYTES)

    def is_resident(self, offset: int, length: int) -> bool:
        """Return whether the bytes are in the page cache. Raises OSError."""
        return is_resident(self._address, offset, length)

    @property
    def allocated_bytes(self) -> int:
        """Bytes that the file takes on the medium. Raises OSError."""
        return os.fstat(self.descriptor).st_blocks * 512

    def next_data(self, offset: int) -> BlockRange | None:
        """Return the byte range of the next run of data from ``offset`` on, or None. Raises OSError."""
        try:
            start = os.lseek(self.descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None
        return start, os.lseek(self.descriptor, start, os.SEEK_HOLE)

    def close(self) -> None:
        """Close the file. The mapping ends with its last view; closing it now would raise an error."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            self._bytes = np.empty(0, np.uint8)
            self._address = _NOWHERE
            self.view = memoryview(b"")
            del self.mapping

    def destroy(self) -> None:
        """Delete the file and close it. Raises OSError."""
        # The catalogue goes first: if it stayed, the next segment of this number would use it as its own.
        self.catalogue_path.unlink(missing_ok=True)
        self.path.unlink()
        self.close()

    def _prepare(self) -> None:
        """Prepare a change of the segment: empty the catalogue and repeat failed erasures."""
        if self.catalogued:
            self._outdate()
        last = os.lseek(self.descriptor, 0, os.SEEK_END) - HEADER_BYTES if self._unerased else 0
        while self._unerased:
            if self._unerased[-1] > last:  # Another program truncated the file, and this header with it.
                self._unerased.pop()
                continue
            written = self._calls.pwrite(self.descriptor, _ZERO_HEADER, self._unerased[-1])
            if written < HEADER_BYTES:
                self._write_rest(_ZERO_HEADER, self._unerased[-1], written)
            self._unerased.pop()
            self._erased += 1

    def _outdate(self) -> None:
        catalogue.empty(self.catalogue_path)
        self.catalogued = False

    def _write_rest(self, data: Body, offset: int, written: int) -> None:
        """Write the rest of ``data`` after a short write. On a full medium, the next write raises OSError."""
        view = memoryview(data)
        while written < len(data):
            written += self._calls.pwrite(self.descriptor, view[written:], offset + written)
