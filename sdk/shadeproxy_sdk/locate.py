"""Parses the answer of ``POST /v1/locate`` (docs/protocol.md), and copies the samples that it locates from
the cache's files.

Law for readers outside the proxy: copy the bytes, *then* read the 64 bytes of the record's header in the
file. If they equal the header in the answer, the copy is right; otherwise it is dropped. This is safe because
the proxy erases a record's header before it overwrites the record's bytes, and because no two records have
the same header. A reader locks nothing while it copies, so a dead or slow reader blocks nothing.
"""

import itertools
import json
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.batch_buffer import UNKNOWN, BatchBuffer
from shadeproxy_sdk.errors import BadAnswer
from shadeproxy_sdk.segments import Segments

CONTENT_TYPE = "application/vnd.shadeproxy.locate"
HEADER_BYTES = 64
HEAD = struct.Struct("<II")
RECORD = np.dtype(
    [
        ("index", "<u4"),
        ("status", "<u2"),
        ("file", "<u2"),
        ("header_offset", "<u8"),
        ("offset", "<u8"),
        ("length", "<u8"),
        ("position", "<u8"),
        ("source", "u1"),
        ("pad", "V7"),
        ("header", "V64"),
    ]
)
READS_FILES = hasattr(os, "preadv")
"""True if this system can read the cache's files. On Windows it cannot, and no proxy runs there."""
_COLUMNS = ("index", "file", "header_offset", "offset", "length", "position", "header")
_MOST = np.uint64(1 << 62)
_HERE = 200
_FILE_BITS = np.uint64(48)
_BUT_FILE = np.uint64((1 << 48) - 1)


class Located(NamedTuple):
    """The cached pieces of the items of one call. ``rows``: the pieces as rows of type RECORD, ordered by
    item. ``files``: the paths to which the field ``file`` of a row is an index.

    ``lengths[i]``: the number of bytes of item i; UNKNOWN if the item is not cached on this host.
    """

    files: list[str]
    rows: NDArray[np.void]
    lengths: NDArray[np.int64]

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces together."""
        return int(self.rows["length"].sum())

    def split(self, parts: int) -> list["Located"]:
        """Split into at most ``parts`` parts, each with about equally many pieces. All pieces of an item stay
        in one part.
        """
        index = self.rows["index"]
        parts = min(parts, len(index))
        cuts = np.array([len(index) * part // parts for part in range(1, parts)], np.int64)
        # Cut only between items, because the pieces of one item stay together.
        starts = np.searchsorted(index, index[cuts])
        bounds = [0, *sorted({int(start) for start in starts} - {0}), len(index)]
        return [self._replace(rows=self.rows[start:stop]) for start, stop in itertools.pairwise(bounds)]

    def without(self, unwanted: NDArray[np.bool_]) -> "Located":
        """Return a copy without the items i for which ``unwanted[i]`` is True."""
        rows = self.rows[~unwanted[self.rows["index"]]]
        return Located(self.files, rows, np.where(unwanted, UNKNOWN, self.lengths))


def decode(body: bytes, count: int) -> Located:
    """Parse an answer for ``count`` items. Raises BadAnswer if the answer breaks a rule of the format."""
    try:
        json_bytes, rows = HEAD.unpack_from(body)
        files = json.loads(body[HEAD.size : HEAD.size + json_bytes])["files"]
        records = np.frombuffer(body, RECORD, offset=HEAD.size + json_bytes)
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadAnswer(f"the answer of /v1/locate is damaged: {error}") from None
    if len(records) != rows:
        raise BadAnswer("the answer of /v1/locate is damaged: its records contradict each other")
    if _is_plain(records, count, files):
        return Located(files, records, records["length"].astype(np.int64))
    if not _obeys(records, count, files):
        raise BadAnswer("the answer of /v1/locate is damaged: its records contradict each other")
    records = records[records["status"] == _HERE]
    lengths = np.full(count, UNKNOWN, np.int64)
    # The end of an item's last piece is the length of the item.
    index = records["index"]
    last = np.ones(len(index), np.bool_)
    np.not_equal(index[1:], index[:-1], out=last[:-1])
    lengths[index[last]] = (records["position"] + records["length"])[last]
    return Located(files, records, lengths)


def copy(located: Located, positions: Sequence[int], batch: BatchBuffer, segments: Segments) -> int:
    """Copy into ``batch`` those samples of ``located`` that can be read, and return their number. Item i is
    the sample at ``positions[i]``.

    A sample stays missing if it was evicted meanwhile, or lies in a file that this process may not open.
    Several threads may copy into one batch, each of them other samples.
    """
    arrived, copied, view, whole = 0, -1, memoryview(b""), False
    descriptors: dict[int, int | None] = {}
    columns = (located.rows[name].tolist() for name in _COLUMNS)
    lengths = located.lengths.tolist()
    with segments:
        for index, file, header_offset, offset, length, start, header in zip(*columns, strict=True):
            if index != copied:
                copied, whole = index, True
                view = batch.room(positions[index], lengths[index])
            if file not in descriptors:
                descriptors[file] = segments.open(located.files[file])
            descriptor = descriptors[file]
            stop = start + length
            room = view if length == len(view) else view[start:stop]
            if descriptor is None:
                whole = False
            elif not _read(descriptor, room, offset, header_offset, header):
                renewed = segments.renewed(located.files[file], descriptor)
                if renewed is None or not _read(renewed, room, offset, header_offset, header):
                    whole = False
                else:
                    descriptors[file] = renewed
            if whole and stop == len(view):
                batch.views[positions[index]] = view
                arrived += 1
    return arrived


def _read(descriptor: int, room: memoryview, offset: int, header_offset: int, header: bytes) -> bool:
    """Fill ``room`` from ``offset`` of the file on. Return True if that worked, and the file still had
    ``header`` at ``header_offset`` afterwards.
    """
    length = len(room)
    try:
        read = os.preadv(descriptor, [room], offset)
        while 0 < read < length:
            more = os.preadv(descriptor, [room[read:]], offset + read)
            read = read + more if more else 0
        return read == length and os.pread(descriptor, HEADER_BYTES, header_offset) == header
    except OSError:
        return False


def _is_plain(records: NDArray[np.void], count: int, files: Any) -> bool:
    """Return whether every item is cached on this host in one piece. That is the usual case.

    If so, the records also keep the rules of ``_obeys``, whose check takes three times as long.
    """
    if not (count and len(records) == count and isinstance(files, list)):
        return False
    words = records.view("<u8").reshape(count, -1)
    # Index, status and file are in one 8-byte word; offsets, length and position are one word each.
    here = np.arange(count, dtype=np.uint64) | np.uint64(_HERE << 32)
    return bool(
        all(isinstance(path, str) for path in files)
        and ((words[:, 0] & _BUT_FILE) == here).all()
        and (words[:, 0] >> _FILE_BITS).max() < len(files)
        and words[:, 1:4].max() < _MOST
        and not words[:, 4].any()
    )


def _obeys(records: NDArray[np.void], count: int, files: Any) -> bool:
    """Return whether the records keep the rules of the format: they are ordered by index, and the pieces of
    each item join without gaps.
    """
    if not (isinstance(files, list) and all(isinstance(path, str) for path in files)):
        return False
    if not len(records):
        return True
    index, status = records["index"].astype(np.int64), records["status"]
    here = status == _HERE
    steps = index[1:] - index[:-1]
    if index[-1] >= count or (steps < 0).any() or not (here | (status == 0)).all():
        return False
    numbers = ("header_offset", "offset", "length", "position")
    if any((records[name] >= _MOST).any() for name in numbers) or (records["file"][here] >= len(files)).any():
        return False
    # An item that is not cached on this host has exactly one record, with status 0.
    if ((steps == 0) & ~(here[1:] & here[:-1])).any():
        return False
    first = np.ones(len(index), np.bool_)
    np.greater(steps, 0, out=first[1:])
    length = records["length"].astype(np.int64)
    ends = np.cumsum(length)
    begins = (ends - length)[first][np.cumsum(first) - 1]
    return bool((records["position"].astype(np.int64)[here] == (ends - length - begins)[here]).all())
