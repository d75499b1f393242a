"""Columns of the table of resident pages, in private memory or in memory shared with workers, which read hits
themselves.

Laws: only one process, the coordinator, writes. When a page enters or leaves a slot, moves, or is marked
stale, its slot gets another stamp *before* any byte of the page changes. A stamp is one aligned store of 8
bytes. A reader reads the stamp, then the location, copies the bytes, and reads the stamp again. If the stamp
is unchanged, the copy is the page. So a table that is half-written, old or wrong costs only a miss. The
protocol is right only if other processors see stores in the order in which they were made. x86-64 guarantees
this, and some other processors do not.
"""

import mmap
import os
import struct
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.hash_table import page_hash

NO_TIER = -1
# The fields that find and rank a page share one cache line. So ranking 1,024 random pages of a million
# fetches one line for each page instead of seven.
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
"""Layout of a row of PAGE, with which one call writes the whole row."""
REST = np.dtype(
    [
        ("body_bytes", np.int64),
        ("validated_s", np.float64),
        ("generation", np.int64),  # Raised by one whenever the slot gets another page.
        # Changes whenever the slot's page enters, moves, leaves or is marked stale.
        ("stamp", np.int64),
        ("position", np.int32),  # Position of the slot in ``Members`` of its tier.
        ("unverified", np.bool_),  # True if the body's hash was not checked since recovery.
        ("pinned", np.bool_),  # True if the page is never evicted.
    ],
    align=True,
)
REST_HEAD = struct.Struct("@qdq")
"""Layout of the first three fields of a row of REST."""
VERDICT = np.dtype([("stamp", np.int64), ("until_s", np.float64)])
"""A verdict of the origin: clients that use the proxy's own credentials at the origin may read the slot's
page. The verdict is valid until ``until_s`` (Unix time), and only while the slot has the stamp ``stamp``.
"""
# Memory that was never written takes no room, so columns for two million pages cost nothing until pages come.
# Columns are this long from the start, because moving a million rows to longer columns would block the event
# loop for 30 ms.
COLUMN_CAPACITY = 1 << 21
# Shared columns cannot move. A table that needs more slots moves to private columns, and is not shared any
# more.
SHARED_CAPACITY = 1 << 23
_WAYS = 8
# The buckets take 16 MiB. The kernel allocates all of it sooner or later, because hashes spread the cached
# pages over all buckets.
_BUCKETS = 1 << 19
_RETIRED = -1
_WHERE = np.dtype(np.int32)
_TIME = np.dtype(np.float64)


class NewRows(NamedTuple):
    """Pages that need slots, in columns of shape (n,). ``tick``: the present tick, which is the last use of
    all these pages.
    """

    object_hash: NDArray[np.uint64]
    number: NDArray[np.uint32]
    etag: NDArray[np.uint64]
    group: NDArray[np.intp]
    record_bytes: NDArray[np.int64]
    body_bytes: NDArray[np.int64]
    validated_s: NDArray[np.float64]
    tick: float


class Columns(NamedTuple):
    """Columns of the table of resident pages; the index of a row is the slot."""

    pages: NDArray[np.void]
    rest: NDArray[np.void]
    tier: NDArray[np.int8]


def private_columns() -> Columns:
    """Return columns in the memory of this process alone."""
    tier = np.full(COLUMN_CAPACITY, NO_TIER, np.int8)
    return Columns(np.zeros(COLUMN_CAPACITY, PAGE), np.zeros(COLUMN_CAPACITY, REST), tier)


class Share:
    """Columns in shared memory (an unnamed file), and a hash table by which workers find the slot of a page.

    A bucket of the hash table has room for eight slots. If the bucket of a page is full, workers do not find
    the page, and the coordinator answers its reads.
    """

    def __init__(self, descriptor: int, *, writable: bool = False) -> None:
        """Map the shared memory of ``descriptor``. Only the process that writes the table is ``writable``."""
        sizes = [SHARED_CAPACITY * kind.itemsize for kind in (PAGE, REST, VERDICT, np.dtype(np.int8))]
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        buckets_bytes = _BUCKETS * _WAYS * _WHERE.itemsize
        length = sum(sizes) + buckets_bytes + _TIME.itemsize
        if writable:
            os.ftruncate(descriptor, length)
        memory = mmap.mmap(descriptor, length, prot=access)
        starts = np.cumsum([0, *sizes]).tolist()
        self.descriptor = descriptor
        self.columns = Columns(
            np.frombuffer(memory, PAGE, SHARED_CAPACITY, starts[0]),
            np.frombuffer(memory, REST, SHARED_CAPACITY, starts[1]),
            np.frombuffer(memory, np.int8, SHARED_CAPACITY, starts[3]),
        )
        # The column of verdicts takes no memory until a verdict is written, and none is written unless some
        # clients have credentials of their own.
        verdicts = np.frombuffer(memory, VERDICT, SHARED_CAPACITY, starts[2])
        self._verdicts, self._verdict_slots = verdicts, 0
        self._verdict_stamps = verdicts["stamp"].data
        self._verdicts_until_s = cast("memoryview[float]", verdicts["until_s"].data)
        # An entry is slot + 1, because memory that was never written is 0, which means "no slot".
        self._shown = np.frombuffer(memory, _WHERE, _BUCKETS * _WAYS, starts[4]).data
        lease = np.frombuffer(memory, _TIME, 1, starts[4] + buckets_bytes)
        self.lease = cast("memoryview[float]", lease.data)
        """Memory of one f64: the last time that was passed to ``show_lease``; 0.0 before the first call."""

    @classmethod
    def create(cls) -> "Share":
        """Return new shared memory, for the process that writes it. Raises OSError."""
        return cls(os.memfd_create("shadeproxy-residents", os.MFD_CLOEXEC), writable=True)

    def close(self) -> None:
        """Close the descriptor. The columns stay mapped as long as they are used."""
        os.close(self.descriptor)

    def show(self, slot: int, object_hash: int, number: int) -> None:
        """Enter a slot's page into the hash table, so that workers find it."""
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
        """Remove a slot's page from the hash table, if it is there."""
        first = _bucket(object_hash, number)
        for place in range(first, first + _WAYS):
            if self._shown[place] == slot + 1:
                self._shown[place] = 0

    def candidates(self, object_hash: int, number: int) -> list[int]:
        """Return the slots in which the page may be. The caller compares their columns with the page."""
        first = _bucket(object_hash, number)
        return [slot - 1 for slot in self._shown[first : first + _WAYS] if slot]

    def show_verdict(self, slot: int, stamp: int, until_s: float) -> None:
        """Show workers a verdict on the page of a slot (see ``VERDICT``). When the slot's stamp changes, the
        verdict is void.
        """
        if self._verdict_stamps[slot] != stamp:
            # Clear the old time before writing the new stamp: a reader that sees the new stamp must not see
            # the old time.
            self._verdicts_until_s[slot] = 0.0
            self._verdict_stamps[slot] = stamp
            # ``hide_verdicts`` clears only the slots below this number. The memory of the slots above was
            # never written.
            self._verdict_slots = max(self._verdict_slots, slot + 1)
        self._verdicts_until_s[slot] = until_s

    def verdict_until_s(self, slot: int, stamp: int) -> float:
        """Return the Unix time until which the verdict on the page at ``stamp`` is valid; 0.0 if there is no
        verdict.
        """
        return self._verdicts_until_s[slot] if self._verdict_stamps[slot] == stamp else 0.0

    def hide_verdicts(self) -> None:
        """Void the verdicts of all slots."""
        self._verdicts["until_s"][: self._verdict_slots] = 0.0
        self._verdict_slots = 0

    def show_lease(self, until_s: float) -> None:
        """Show workers the end of this process's lease, in seconds since boot. Until then the process may
        answer from its cache. Only needed where several proxies share a cache. The store is one aligned word,
        so no reader sees half of it.
        """
        self.lease[0] = until_s

    def retire(self) -> None:
        """Make the shared columns invalid for ever, because the table has moved to private columns."""
        self.columns.rest["stamp"][:] = _RETIRED
        self.columns.tier[:] = NO_TIER
        np.frombuffer(self._shown, _WHERE)[:] = 0


def _bucket(object_hash: int, number: int) -> int:
    return page_hash(object_hash, number) % _BUCKETS * _WAYS
