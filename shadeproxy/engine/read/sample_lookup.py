"""Finds the places of many samples of a dataset by one call, in columns that repeat what page handles hold.

Laws: only plain defs that do not wait. Each place was found and checked by a page handle (hits.py) before. An
entry of the columns is valid exactly as long as its handle, by the same stamp and the same time. The number
of entries is bounded. Forgetting an entry does no harm: the next read of its sample makes a page handle
again.
"""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import Source
from shadeproxy.engine.access_records import USE
from shadeproxy.engine.base import FoundSamples, PageHandle
from shadeproxy.engine.index.residents import Residents
from shadeproxy.hints.datasets import WHOLE, Dataset, Ids
from shadeproxy.tiers.base import Place
from shadeproxy.tiers.record import HEADER_BYTES

SOURCES = tuple(Source)
_DISK = SOURCES.index(Source.DISK)

# A row of 16 bytes for each sample. The lower half of the stamp is enough: between two reads of a sample, no
# page moves four billion times.
_SEEN = np.dtype([("fresh_until_s", np.float64), ("slot", np.uint32), ("stamp", np.uint32)])
# A row for each slot. Rows that were never written take no memory, as in the columns of the index.
_PLACE = np.dtype(
    [
        ("header_offset", np.int64),
        ("object_offset", np.int64),  # Where the object would begin in the file if it lay there in one piece.
        ("body_bytes", np.uint32),
        ("file", np.uint16),
        ("source", np.uint8),
        ("pad", np.uint8),
        ("header", f"V{HEADER_BYTES}"),
    ]
)
_MOST_FILES = 1 << 16
_MOST_SAMPLES = 1 << 24
"""The most samples of all datasets together; their rows take 256 MiB. A bigger dataset is not remembered."""


class SampleLookup:
    """Remembers where samples lie in resident pages, and finds many samples by one call.

    ``is_ready``: returns whether a page on a disk can be read without waiting (``HotPages.is_ready``).
    """

    def __init__(self, residents: Residents, *, is_ready: Callable[[int], bool]) -> None:
        self._residents = residents
        self._is_ready = is_ready
        self.forget()

    def forget(self) -> None:
        """Forget the places of all samples."""
        self._seen: OrderedDict[str, NDArray[np.void]] = OrderedDict()
        self._places = np.zeros(len(self._residents.stamp), _PLACE)
        self._files: dict[Path, int] = {}

    def remember(self, dataset: Dataset, sample_id: int, handle: PageHandle, place: Place) -> None:
        """Remember ``place`` for a sample that lies wholly in the page or stored part of ``handle``."""
        if dataset.count > _MOST_SAMPLES:
            return
        if len(self._files) == _MOST_FILES or len(self._places) < len(self._residents.stamp):
            self.forget()
        seen = self._seen.get(dataset.digest)
        if seen is None:
            seen = self._seen[dataset.digest] = np.zeros(dataset.count, _SEEN)
            while sum(map(len, self._seen.values())) > _MOST_SAMPLES:
                self._seen.popitem(last=False)
        file = self._files.setdefault(place.path, len(self._files))
        source = SOURCES.index(handle.source)
        begin = place.body_offset - handle.first
        self._places[handle.slot] = (
            place.header_offset, begin, place.body_bytes, file, source, 0, place.header
        )  # fmt: skip
        seen[sample_id] = (handle.fresh_until_s, handle.slot, handle.stamp & 0xFFFFFFFF)

    def find(self, dataset: Dataset, ids: Ids, now_s: float) -> FoundSamples | None:
        """Return the places of those samples among ``ids`` (i64[k]) whose handles are valid at ``now_s``
        (Unix time). Return None if no sample of the dataset is remembered.
        """
        known = self._seen.get(dataset.digest)
        if known is None:
            return None
        self._seen.move_to_end(dataset.digest)
        seen = known[ids]
        stamps = self._residents.stamp[seen["slot"]]
        here = (stamps.astype(np.uint32) == seen["stamp"]) & (now_s < seen["fresh_until_s"])
        on_disk = here & (self._places["source"][seen["slot"]] == _DISK)
        here[on_disk] = [self._is_ready(slot) for slot in seen["slot"][on_disk].tolist()]
        slots = seen["slot"][here].astype(np.int64)
        places = self._places[slots]
        first, length = np.zeros(len(slots), np.int64), places["body_bytes"].astype(np.int64)
        if dataset.offset is not None and dataset.length is not None:
            told = dataset.length[ids[here]]
            length = np.where(told == WHOLE, length, told)
            first = np.where(told == WHOLE, 0, dataset.offset[ids[here]])
        uses = np.zeros(len(slots), USE)
        uses["slot"], uses["stamp"], uses["reads"] = slots, stamps[here], 1
        uses["object_hash"] = self._residents.object_hash[slots]
        uses["first"], uses["size_bytes"] = first, length
        return FoundSamples(
            here,
            list(self._files),
            places["file"],
            places["header_offset"],
            places["header"],
            places["object_offset"] + first,
            length,
            places["source"],
            uses,
        )
