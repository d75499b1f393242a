"""Answers ``POST /v1/locate``: the files in which a process on this host finds resident pages, and the
offsets there. docs/protocol.md describes the answer.

Laws: an answer is a hint, because a page may move at any time. The reader proves by the record header in the
answer that it has read the right bytes (tiers/base.py ``Place``). If a page is not resident, was not verified
yet, or needs a check, the answer says that it is not here now; the page is not fetched. Samples that were
located before and have not moved are answered many at a time in columns, at a hundredth of the cost.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from shadeproxy.api.control.bodies import LOCATE
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.frames import SOURCE_NUMBERS
from shadeproxy.api.control.pieces import PieceReader, span_in
from shadeproxy.api.control.reads import read_call
from shadeproxy.core.errors import RangeNotSatisfiable
from shadeproxy.engine.base import FoundSamples, Located, PageHandle
from shadeproxy.engine.read.sample_lookup import SOURCES
from shadeproxy.hints.datasets import Dataset, Ids, Sample

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
"""One record of the answer, with 112 bytes. ``pad`` aligns ``header``; there are no other gaps."""

_HEAD_BYTES = 8
_ALIGNMENT = 8
_HERE, _NOT_HERE = 200, 0
_PAD, _NO_HEADER = bytes(7), bytes(64)

MOST_RECORDS = 1 << 17
"""Most records of one answer, which then has 14 MiB. An item has a record for each of its pages, and pages
may be small.
"""

# Number of files from which on an answer takes no more items. File numbers have 16 bits; half of them are
# kept free, because the last item may add as many files as it has pages.
_MOST_FILES = 1 << 15
_ITEMS_A_TURN = 64
_IDS_A_TURN = 1024
_NUMBER_OF = np.array([SOURCE_NUMBERS[source] for source in SOURCES], np.uint8)

Row = tuple[int, int, int, int, int, int, int, int, bytes, bytes]
"""The fields of one ``RECORD``, in order."""


async def post_locate(context: ControlContext, request: web.Request) -> web.Response:
    async with AsyncExitStack() as stack:
        call = await read_call(context, request, stack)
        places = _Places(PieceReader(context, call.job))
        if call.dataset is None:
            places.tell(await places.rows(call.items, range(len(call.items))))
        else:
            for start in range(0, len(call.ids), _IDS_A_TURN):
                if start:
                    await asyncio.sleep(0)
                await places.tell_samples(call.dataset, call.ids[start : start + _IDS_A_TURN], start)
    return web.Response(body=places.encode(), content_type=LOCATE)


class _Places:
    """Collects the records of one answer to ``POST /v1/locate``, and encodes them as its body."""

    def __init__(self, reader: PieceReader) -> None:
        self._reader = reader
        self._files: dict[os.PathLike[str], int] = {}
        self._told: list[NDArray[np.void]] = []
        self._count = 0

    def encode(self) -> bytes:
        """Return the body of the answer."""
        files = msgspec.json.encode({"files": [os.fspath(path) for path in self._files]})
        files += b" " * (-(_HEAD_BYTES + len(files)) % _ALIGNMENT)
        sizes = np.array([len(files), sum(map(len, self._told))], "<u4")
        return b"".join((sizes.tobytes(), files, *(told.tobytes() for told in self._told)))

    def tell(self, *parts: NDArray[np.void]) -> None:
        """Add records to the answer, in the order of their items."""
        told = np.concatenate(parts)
        self._told.append(told if len(parts) == 1 else told[np.argsort(told["index"], kind="stable")])

    # ------------------------------------------------------------------ samples, many in one step

    async def tell_samples(self, dataset: Dataset, ids: Ids, start: int) -> None:
        """Add the records of samples of ``dataset`` to the answer. ``start``: the index of the first sample
        among all items.
        """
        context, job = self._reader.context, self._reader.job
        room = self._count + len(ids) <= MOST_RECORDS and len(self._files) < _MOST_FILES
        found = context.engine.find_samples(dataset, ids, job, context.clock.now_s()) if room else None
        here = np.zeros(len(ids), np.bool_) if found is None else found.here
        parts = [] if found is None else [self._records_of(found, start)]
        places = np.flatnonzero(~here)
        if len(places):
            rest = ids[places]
            parts.append(await self.rows(dataset.pick(rest), (places + start).tolist(), (dataset, rest)))
        self.tell(*parts)

    def _records_of(self, found: FoundSamples, start: int) -> NDArray[np.void]:
        records = np.zeros(len(found.file), RECORD)
        numbers = np.unique(found.file)
        here = [self._files.setdefault(found.files[file], len(self._files)) for file in numbers.tolist()]
        if here:
            records["file"] = np.array(here, np.uint16)[np.searchsorted(numbers, found.file)]
        records["index"] = np.flatnonzero(found.here) + start
        records["status"] = _HERE
        for name in ("header_offset", "offset", "length", "header"):
            records[name] = getattr(found, name)
        records["source"] = _NUMBER_OF[found.source]
        self._count += len(records)
        return records

    # ------------------------------------------------------------------ items, each by itself

    async def rows(
        self, samples: list[Sample], indices: Sequence[int], asked: tuple[Dataset, Ids] | None = None
    ) -> NDArray[np.void]:
        """Return the records of items, in order. An item that is not resident has a record that says "not
        here now". ``asked``: the dataset and the ids of the items, if they are samples; their page handles
        are then remembered for the next call.
        """
        parts = [np.empty(0, RECORD)]
        engine, clock = self._reader.context.engine, self._reader.context.clock
        for first in range(0, len(samples), _ITEMS_A_TURN):
            if first:
                await asyncio.sleep(0)
            rows, now_s = list[Row](), clock.now_s()
            for place in range(first, min(first + _ITEMS_A_TURN, len(samples))):
                handle = self._add(rows, indices[place], samples[place], now_s)
                if handle is not None and asked is not None:
                    engine.remember_sample(asked[0], int(asked[1][place]), handle)
            # As rows of Python, all records would take four times their memory.
            parts.append(np.array(rows, RECORD))
        return np.concatenate(parts)

    def _add(self, rows: list[Row], index: int, sample: Sample, now_s: float) -> PageHandle | None:
        """Add the records of an item to ``rows``. Return the page handle by which it was located; None if
        there was none.
        """
        before, handle = len(rows), None
        if self._count < MOST_RECORDS and len(self._files) < _MOST_FILES:
            handle = self._add_by_handle(rows, index, sample, now_s)
            if handle is None:
                self._add_found(rows, index, sample)
        if len(rows) == before:
            rows.append((index, _NOT_HERE, 0, 0, 0, 0, 0, 0, _PAD, _NO_HEADER))
        self._count += len(rows) - before
        return handle

    def _add_by_handle(self, rows: list[Row], index: int, sample: Sample, now_s: float) -> PageHandle | None:
        engine = self._reader.context.engine
        handle = engine.find_handle(sample.ref, sample.offset, now_s)
        if handle is None:
            return None
        try:
            span = span_in(sample, handle.meta.size)
        except RangeNotSatisfiable:
            return None
        if not span.length or not handle.holds(span):
            return None
        place = engine.place(handle, self._reader.job, now_s, span)
        if place is None:
            return None
        start = place.body_offset + span.start - handle.first
        piece = Located(handle.source, place.path, place.header_offset, place.header, start, span.length)
        rows.append(self._row(index, piece, 0))
        return handle

    def _add_found(self, rows: list[Row], index: int, sample: Sample) -> None:
        position = 0
        for piece in self._locate(sample) or ():  # An empty object has no bytes in any file.
            rows.append(self._row(index, piece, position))
            position += piece.length

    def _row(self, index: int, piece: Located, position: int) -> Row:
        source, path, header_offset, header, offset, length = piece
        file = self._files.setdefault(path, len(self._files))
        return (
            index, _HERE, file, header_offset, offset, length, position, SOURCE_NUMBERS[source], _PAD, header
        )  # fmt: skip

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
