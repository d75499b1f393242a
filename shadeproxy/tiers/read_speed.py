"""Measures how fast a directory's medium reads."""

import logging
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shadeproxy.tiers.segment import SUFFIX

_logger = logging.getLogger(__name__)

_PIECE_BYTES = 1024 * 1024
_PIECES = 32
_FILE_BYTES = _PIECES * _PIECE_BYTES
_MOST_S = 0.25
_LEAST_PIECES = 4
_ALIGNED_BYTES = 4096
SPEED_NAME = "speed"


def measure_read_speed(directory: Path, room_bytes: int) -> float:
    """Return how many bytes a second the medium of ``directory`` reads (blocking, for up to a second).

    Writes a file of up to 32 MiB there, and reads the file past the page cache where the file system can
    (open(2), O_DIRECT). If the file does not fit into ``room_bytes``, reads as much of the segments there.
    Returns 0, for an unknown speed, if an I/O call fails or the segments hold too little.
    """
    path = directory / SPEED_NAME
    try:
        path.unlink(missing_ok=True)
        return _measure(path) if room_bytes >= _FILE_BYTES else _measure_segments(directory)
    except OSError as error:
        _logger.warning("the read speed of %s is unknown: %s", directory, error.strerror)
        return 0.0
    finally:
        with suppress(OSError):  # The speed is only a help, so no error may end the start.
            path.unlink(missing_ok=True)


def _measure(path: Path) -> float:
    # O_DIRECT reads only into aligned memory. A mapping begins at the start of a memory page.
    with mmap.mmap(-1, _PIECE_BYTES) as piece:
        piece.write(os.urandom(_PIECE_BYTES))  # Zeros would look too fast on a medium that compresses.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            written = _write(descriptor, piece)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        descriptor = _open_direct(path)
        try:
            began, read = time.perf_counter(), 0
            while read < written and time.perf_counter() - began < _MOST_S:
                read += os.preadv(descriptor, [piece], read)
            return read / (time.perf_counter() - began)
        finally:
            os.close(descriptor)


def _measure_segments(directory: Path) -> float:
    with mmap.mmap(-1, _PIECE_BYTES) as piece:
        spent_s, read, until_s = 0.0, 0, time.perf_counter() + 2 * _MOST_S
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            descriptor = _open_direct(path)
            try:
                for offset in _pieces_in(descriptor, until_s):
                    if read >= _FILE_BYTES or spent_s >= _MOST_S:
                        return read / spent_s
                    began = time.perf_counter()
                    read += os.preadv(descriptor, [piece], offset)
                    spent_s += time.perf_counter() - began
            finally:
                os.close(descriptor)
        return read / spent_s if read >= _LEAST_PIECES * _PIECE_BYTES else 0.0


def _pieces_in(descriptor: int, until_s: float) -> Iterator[int]:
    """Yield the offsets of pieces of a file that have no hole, as long as the time is before ``until_s``."""
    stop = 0
    with suppress(OSError):  # ENXIO: there is no more data.
        while time.perf_counter() < until_s:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
            stop = os.lseek(descriptor, start, os.SEEK_HOLE)
            offset = -(-start // _ALIGNED_BYTES) * _ALIGNED_BYTES
            yield from range(offset, stop - _PIECE_BYTES + 1, _PIECE_BYTES)


def _write(descriptor: int, piece: mmap.mmap) -> int:
    """Write up to ``_PIECES`` pieces, but no longer than the time limit. Return the number of bytes
    written.
    """
    began, written = time.perf_counter(), 0
    while written < _FILE_BYTES and time.perf_counter() - began < _MOST_S:
        written += os.pwrite(descriptor, piece, written)
    return written


def _open_direct(path: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError:  # A tmpfs before Linux 6.6 refuses O_DIRECT.
        return os.open(path, flags)
