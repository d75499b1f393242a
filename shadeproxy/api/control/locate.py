"""``POST /v1/locate``: where a process on this host finds what is resident; see docs/protocol.md.

Laws: an answer is a hint, and the header in it is the proof (tiers/base.py ``Place``); what is not resident,
not verified yet, or wants a check first is told as not here now, and nothing is fetched for it.
"""

import asyncio
import os
import struct

import msgspec
from aiohttp import web

from shadeproxy.api.control.bodies import LOCATE
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.frames import SOURCE_NUMBERS
from shadeproxy.api.control.pieces import PieceReader, span_in
from shadeproxy.api.control.reads import read_call
from shadeproxy.core.errors import RangeNotSatisfiable
from shadeproxy.engine.base import Located
from shadeproxy.engine.knowledge.datasets import Sample

RECORD = struct.Struct("<IHHQQQQB7x64s")
"""u32 index, u16 status, u16 file, u64 header offset, u64 offset, u64 length, u64 position, u8 source,
64 bytes of header: 112 bytes, without gaps but the seven before the header."""

_HEAD = struct.Struct("<II")
_ALIGNMENT = 8
_HERE, _NOT_HERE = 200, 0
_NOBODY = bytes(64)

MOST_RECORDS = 1 << 17
"""Of one answer, 14 MiB: an item has a record for each of its pages, and pages may be small."""

# Of the 65,536 that a record can name; one item may add as many as it has pages.
_MOST_FILES = 1 << 15
_ITEMS_A_TURN = 64


async def post_locate(context: ControlContext, request: web.Request) -> web.Response:
    call = await read_call(context, request)
    places = _Places(PieceReader(context, call.job))
    for start in range(0, len(call.samples), _ITEMS_A_TURN):
        now_s = context.clock.now_s()
        for index, sample in enumerate(call.samples[start : start + _ITEMS_A_TURN], start):
            places.add(index, sample, now_s)
        if start + _ITEMS_A_TURN < len(call.samples):
            await asyncio.sleep(0)
    return web.Response(body=places.encode(), content_type=LOCATE)


class _Places:
    """The records of one answer."""

    def __init__(self, reader: PieceReader) -> None:
        self._reader = reader
        self._files: dict[os.PathLike[str], int] = {}
        self._records: list[bytes] = []

    def add(self, index: int, sample: Sample, now_s: float) -> None:
        """The records of an item, in order of position; one that says "not here now" when it is not."""
        room = len(self._records) < MOST_RECORDS and len(self._files) < _MOST_FILES
        if not room or not (self._add_by_ticket(index, sample, now_s) or self._add_found(index, sample)):
            self._records.append(RECORD.pack(index, _NOT_HERE, 0, 0, 0, 0, 0, 0, _NOBODY))

    def _add_by_ticket(self, index: int, sample: Sample, now_s: float) -> bool:
        engine = self._reader.context.engine
        ticket = engine.ticket(sample.ref, sample.offset, now_s)
        if ticket is None:
            return False
        try:
            span = span_in(sample, ticket.meta.size)
        except RangeNotSatisfiable:
            return False
        place = engine.place(ticket, self._reader.job, now_s, span) if ticket.holds(span) else None
        if place is None:
            return False
        start = place.body_offset + span.start - ticket.first
        self._record(
            index,
            Located(ticket.source, place.path, place.header_offset, place.header, start, span.length),
            0,
        )
        return True

    def _add_found(self, index: int, sample: Sample) -> bool:
        found = self._locate(sample)
        position = 0
        for piece in found or ():
            self._record(index, piece, position)
            position += piece.length
        return bool(found)  # nothing of an empty object is in the files

    def _record(self, index: int, piece: Located, position: int) -> None:
        source, path, header_offset, header, offset, length = piece
        file = self._files.setdefault(path, len(self._files))
        number = SOURCE_NUMBERS[source]
        self._records.append(
            RECORD.pack(index, _HERE, file, header_offset, offset, length, position, number, header)
        )

    def encode(self) -> bytes:
        """The body of the answer."""
        files = msgspec.json.encode({"files": [os.fspath(path) for path in self._files]})
        files += b" " * (-(_HEAD.size + len(files)) % _ALIGNMENT)
        return b"".join((_HEAD.pack(len(files), len(self._records)), files, *self._records))

    def _locate(self, sample: Sample) -> tuple[Located, ...] | None:
        usable = self._reader.usable_now(sample)
        if usable is None:
            return None
        request, meta = usable
        try:
            span = span_in(sample, meta.size)
        except RangeNotSatisfiable:
            return None
        return self._reader.context.engine.locate(request, meta, span)
