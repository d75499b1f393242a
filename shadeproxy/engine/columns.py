"""The memory of the resident table: private, or shared with processes that read hits for themselves.

Laws: one process writes. A page that comes, moves, leaves or loses trust gets another stamp *before* its
bytes are touched, and a stamp is one aligned store of 8 bytes. So whoever reads a stamp, then a location,
then copies the bytes, and then finds the stamp unchanged has copied the page: a table that is torn, stale or
wrong costs a miss. That rests on stores being seen in their order, which x86-64 promises and others do not.
"""

import mmap
import os
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index import page_hash

NO_TIER = -1
# What finding a page and ranking it asks, in one cache line: facts of 1,024 pages drawn from a million come
# from memory once instead of seven times.
PAGE = np.dtype(
    [
        ("object_hash", np.uint64),
        ("etag", np.uint64),
        ("number", np.uint32),
        ("group", np.int32),
        ("location", np.int64),
        ("record_bytes", np.int64),
        ("last_use", np.float64),
        ("admitted", np.float64),
        ("uses", np.float32),
    ],
    align=True,
)
PAGE_ROW = struct.Struct("@QQIiqqddf4x")
"""A row of PAGE, to be written by one call."""
REST = np.dtype(
    [
        ("body_bytes", np.int64),
        ("validated_s", np.float64),
        ("generation", np.int64),  # of the slot: one more for every page it holds
        # Of the slot: another number whenever its page comes, moves, leaves or loses trust.
        ("stamp", np.int64),
        ("position", np.int32),  # in its tier's members
        ("unverified", np.bool_),  # body hash not checked since recovery
        ("pinned", np.bool_),  # held whatever else comes
    ],
    align=True,
)
REST_HEAD = struct.Struct("@qdq")
"""The first three fields of a row of REST."""
# Memory that was never written is not resident: room for two million pages costs nothing until they come,
# and moving a million rows to a longer column would block the event loop for 30 ms.
COLUMN_CAPACITY = 1 << 21
# Shared columns cannot move: a table that outgrows them is no longer shared.
SHARED_CAPACITY = 1 << 23
_WAYS = 8
# 16 MiB, all of it resident sooner or later: pages are spread over it by their hash.
_BUCKETS = 1 << 19
_RETIRED = -1
_WHERE = np.dtype(np.int32)


class Columns(NamedTuple):
    """Facts by slot."""

    pages: NDArray[np.void]
    rest: NDArray[np.void]
    tier: NDArray[np.int8]


def private_columns() -> Columns:
    """Columns of this process."""
    tier = np.full(COLUMN_CAPACITY, NO_TIER, np.int8)
    return Columns(np.zeros(COLUMN_CAPACITY, PAGE), np.zeros(COLUMN_CAPACITY, REST), tier)


class Share:
    """Columns in a file without a name, and beside them, by hash, which slots are shown to readers.

    A bucket holds eight slots; a page for which there is no room is not shown, and so read by the owner.
    """

    def __init__(self, descriptor: int, *, writable: bool = False) -> None:
        """Of the descriptor of another ``Share``, for reading."""
        sizes = [SHARED_CAPACITY * kind.itemsize for kind in (PAGE, REST, np.dtype(np.int8))]
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        length = sum(sizes) + _BUCKETS * _WAYS * _WHERE.itemsize
        if writable:
            os.ftruncate(descriptor, length)
        memory = mmap.mmap(descriptor, length, prot=access)
        starts = np.cumsum([0, *sizes]).tolist()
        self.descriptor = descriptor
        self.columns = Columns(
            np.frombuffer(memory, PAGE, SHARED_CAPACITY, starts[0]),
            np.frombuffer(memory, REST, SHARED_CAPACITY, starts[1]),
            np.frombuffer(memory, np.int8, SHARED_CAPACITY, starts[2]),
        )
        # Slot + 1, so that memory never written says "nothing".
        self._shown = np.frombuffer(memory, _WHERE, _BUCKETS * _WAYS, starts[3]).data

    @classmethod
    def create(cls) -> "Share":
        """A new one, for the process that writes. Raises OSError."""
        return cls(os.memfd_create("shadeproxy-residents", os.MFD_CLOEXEC), writable=True)

    def show(self, slot: int, object_hash: int, number: int) -> None:
        """Let readers find the page of a slot."""
        shown, free = self._shown, -1
        first = _bucket(object_hash, number)
        for place in range(first, first + _WAYS):
            if shown[place] == slot + 1:
                return
            if not shown[place] and free < 0:
                free = place
        if free >= 0:
            shown[free] = slot + 1

    def hide(self, slot: int, object_hash: int, number: int) -> None:
        """Take back what ``show`` did; nothing when the slot is not shown."""
        first = _bucket(object_hash, number)
        for place in range(first, first + _WAYS):
            if self._shown[place] == slot + 1:
                self._shown[place] = 0

    def candidates(self, object_hash: int, number: int) -> list[int]:
        """Slots that may hold a page."""
        first = _bucket(object_hash, number)
        return [slot - 1 for slot in self._shown[first : first + _WAYS] if slot]

    def retire(self) -> None:
        """The columns have moved: nothing here is true any more, for good."""
        self.columns.rest["stamp"][:] = _RETIRED
        self.columns.tier[:] = NO_TIER
        np.frombuffer(self._shown, _WHERE)[:] = 0


def _bucket(object_hash: int, number: int) -> int:
    return page_hash(object_hash, number) % _BUCKETS * _WAYS
