"""The answer of ``POST /v1/locate`` (docs/protocol.md), and the copy of what it points at.

The law of readers outside the proxy: copy the bytes, *then* read the 64 bytes of the record's header. If
they are those that the proxy told, the copy is right: a record dies header first, its bytes are overwritten
later, and no two records have one header. If they are not, the copy is worth nothing and is dropped.
Nothing is held while copying, so a reader that dies, or is slow, is in nobody's way.
"""

import json
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.errors import BadAnswer
from shadeproxy_sdk.landing import Landing
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
_MOST = np.uint64(1 << 62)


class Piece(NamedTuple):
    """``length`` bytes at ``offset`` of a file: ``position`` of a sample on, while ``header`` stands."""

    path: str
    header_offset: int
    header: bytes
    offset: int
    length: int
    position: int


class Located(NamedTuple):
    """``pieces[i]`` of each item that is cached here, and ``lengths[i]``, the bytes of all its pieces."""

    pieces: dict[int, list[Piece]]
    lengths: dict[int, int]


def decode(body: bytes, count: int) -> Located:
    """What an answer for ``count`` items says. Raises BadAnswer when it breaks a rule of the format."""
    try:
        json_bytes, rows = HEAD.unpack_from(body)
        files = json.loads(body[HEAD.size : HEAD.size + json_bytes])["files"]
        records = np.frombuffer(body, RECORD, offset=HEAD.size + json_bytes)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise BadAnswer(f"the answer of /v1/locate is damaged: {error}") from None
    if len(records) != rows or not _obeys(records, count, files):
        raise BadAnswer("the answer of /v1/locate is damaged: its records contradict each other")
    records = records[records["status"] == 200]
    pieces: dict[int, list[Piece]] = {}
    lengths: dict[int, int] = {}
    names = ("index", "file", "header_offset", "offset", "length", "position")
    columns = (records[name].tolist() for name in names)
    for row in zip(*columns, records["header"].tolist(), strict=True):
        index, file, header_offset, offset, length, position, header = row
        piece = Piece(files[file], header_offset, header, offset, length, position)
        pieces.setdefault(index, []).append(piece)
        lengths[index] = position + length
    return Located(pieces, lengths)


def copy(located: Located, positions: Sequence[int], landing: Landing, segments: Segments) -> int:
    """Land what can be read of ``located``, whose item i is sample ``positions[i]``; how many samples.

    The others stay missing: evicted meanwhile, or in files that this process may not open.
    """
    landed = 0
    with segments:
        for index, pieces in located.pieces.items():
            position = positions[index]
            view = landing.room(position, located.lengths[index])
            if all(_copy(piece, view, segments) for piece in pieces):
                landing.views[position] = view
                landed += 1
    return landed


def _copy(piece: Piece, view: memoryview, segments: Segments) -> bool:
    descriptor = segments.open(piece.path)
    if descriptor is None:
        return False
    room = view[piece.position : piece.position + piece.length]
    if _read(descriptor, piece, room):
        return True
    renewed = segments.renewed(piece.path, descriptor)
    return renewed is not None and _read(renewed, piece, room)


def _read(descriptor: int, piece: Piece, room: memoryview) -> bool:
    try:
        read = os.preadv(descriptor, [room], piece.offset)
        while 0 < read < piece.length:
            more = os.preadv(descriptor, [room[read:]], piece.offset + read)
            read = read + more if more else 0
        return (
            read == piece.length and os.pread(descriptor, HEADER_BYTES, piece.header_offset) == piece.header
        )
    except OSError:
        return False


def _obeys(records: NDArray[np.void], count: int, files: Any) -> bool:
    """Whether the records are in order of index, and the pieces of each item follow each other."""
    if not (isinstance(files, list) and all(isinstance(path, str) for path in files)):
        return False
    if not len(records):
        return True
    index, status = records["index"].astype(np.int64), records["status"]
    here = status == 200
    steps = np.diff(index)
    if index[-1] >= count or (steps < 0).any() or not np.isin(status, (0, 200)).all():
        return False
    numbers = ("header_offset", "offset", "length", "position")
    if any((records[name] >= _MOST).any() for name in numbers) or (records["file"][here] >= len(files)).any():
        return False
    # An item that is not here has one record.
    if ((steps == 0) & ~(here[1:] & here[:-1])).any():
        return False
    first = np.concatenate(([True], steps > 0))
    length = records["length"].astype(np.int64)
    ends = np.cumsum(length)
    begins = (ends - length)[first][np.cumsum(first) - 1]
    return bool((records["position"].astype(np.int64)[here] == (ends - length - begins)[here]).all())
