"""Memory of the table of resident pages: private, or shared with workers that read hits themselves.

Laws: only one process writes. When a page comes, moves, leaves or is marked stale, its slot gets another
stamp *before* any byte is touched. A stamp is one aligned store of 8 bytes. A reader reads the stamp, then
the location, then copies the bytes, then reads the stamp again. If the stamp is unchanged, the copy is the
page. So a table that is torn, stale or wrong costs only a miss. The protocol needs stores to be seen in
order. x86-64 guarantees this, and other processors do not.
"""

import mmap
import os
import struct
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.index.hash_table import page_hash

NO_TIER = -1
# The fields for finding and ranking a page fill one cache line. So ranking 1,024 random pages of a million
# fetches one line a page instead of seven.
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
"""The layout of a row of PAGE, to write the row with one call."""
REST = np.dtype(
    [
        ("body_bytes", np.int64),
        ("validated_s", np.float64),
        ("generation", np.int64),  # Raised by one for every page that the slot gets.
        # A slot's stamp changes whenever its page comes, moves, leaves or is marked stale.
        ("stamp", np.int64),
        ("position", np.int32),  # Position among the members of its tier.
        ("unverified", np.bool_),  # True if the body hash was not checked since recovery.
        ("pinned", np.bool_),  # True if the page is never evicted for other pages.
    ],
    align=True,
)
REST_HEAD = struct.Struct("@qdq")
"""The first three fields of a row of REST."""
VERDICT = np.dtype([("stamp", np.int64), ("until_s", np.float64)])
"""A verdict of the origin about one page. While the slot's stamp is ``stamp``, and until ``until_s`` (Unix
time), the page may be sent to clients that share the proxy's upstream.
"""
# Memory that was never written takes no room, so columns for two million pages cost nothing until pages come.
# Moving a million rows to a longer column would block the event loop for 30 ms.
COLUMN_CAPACITY = 1 << 21
# Shared columns cannot move: a table that outgrows them is no longer shared.
SHARED_CAPACITY = 1 << 23
_WAYS = 8
# The table of buckets takes 16 MiB. The kernel allocates all of it sooner or later, because cached pages are
# spread over the table by their hash.
_BUCKETS = 1 << 19
_RETIRED = -1
_WHERE = np.dtype(np.int32)
_TIME = np.dtype(np.float64)


class NewRows(NamedTuple):
    """Pages that need slots, in columns of shape (n,). All pages have the same ``tick``."""

    object_hash: NDArray[np.uint64]
    number: NDArray[np.uint32]
    etag: NDArray[np.uint64]
    group: NDArray[np.intp]
    record_bytes: NDArray[np.int64]
    body_bytes: NDArray[np.int64]
    validated_s: NDArray[np.float64]
    tick: float


class Columns(NamedTuple):
    """The columns of the table of resident pages, by slot."""

    pages: NDArray[np.void]
    rest: NDArray[np.void]
    tier: NDArray[np.int8]


def private_columns() -> Columns:
    """Return columns in memory of this process alone."""
    tier = np.full(COLUMN_CAPACITY, NO_TIER, np.int8)
    return Columns(np.zeros(COLUMN_CAPACITY, PAGE), np.zeros(COLUMN_CAPACITY, REST), tier)


class Share:
    """Columns in an unnamed file, and a hash table of the slots that workers may read.

    A bucket of the hash table holds eight slots. If the bucket of a page is full, the page is not shown to
    workers, and the coordinator answers its reads.
    """

    def __init__(self, descriptor: int, *, writable: bool = False) -> None:
        """Map the table behind ``descriptor``. Only the process that writes the table sets ``writable``."""
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
        # Verdicts take no memory until one is written. None is written unless clients have own upstreams.
        verdicts = np.frombuffer(memory, VERDICT, SHARED_CAPACITY, starts[2])
        self._verdicts, self._verdict_slots = verdicts, 0
        self._verdict_stamps = verdicts["stamp"].data
        self._verdicts_until_s = cast("memoryview[float]", verdicts["until_s"].data)
        # Store slot + 1, so that memory never written means "none".
        self._shown = np.frombuffer(memory, _WHERE, _BUCKETS * _WAYS, starts[4]).data
        lease = np.frombuffer(memory, _TIME, 1, starts[4] + buckets_bytes)
        self.lease = cast("memoryview[float]", lease.data)
        """The last time that was passed to ``show_lease``, as memory of one f64; 0.0 before the first
        call.
        """

    @classmethod
    def create(cls) -> "Share":
        """Return a new table for the process that writes it. Raises OSError."""
        return cls(os.memfd_create("shadeproxy-residents", os.MFD_CLOEXEC), writable=True)

    def show(self, slot: int, object_hash: int, number: int) -> None:
        """Enter a slot's page into the hash table, where workers find it."""
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
        """Undo ``show``; do nothing if the slot is not shown."""
        first = _bucket(object_hash, number)
        for place in range(first, first + _WAYS):
            if self._shown[place] == slot + 1:
                self._shown[place] = 0

    def candidates(self, object_hash: int, number: int) -> list[int]:
        """Return the slots in which the page can be."""
        first = _bucket(object_hash, number)
        return [slot - 1 for slot in self._shown[first : first + _WAYS] if slot]

    def show_verdict(self, slot: int, stamp: int, until_s: float) -> None:
        """Show workers a verdict (see ``VERDICT``). Any change of the slot's stamp voids the verdict."""
        if self._verdict_stamps[slot] != stamp:
            # Write the time before the stamp: a reader that finds the new stamp must not find the old time.
            self._verdicts_until_s[slot] = 0.0
            self._verdict_stamps[slot] = stamp
            # ``hide_verdicts`` clears the slots below this number; memory beyond was never written.
            self._verdict_slots = max(self._verdict_slots, slot + 1)
        self._verdicts_until_s[slot] = until_s

    def verdict_until_s(self, slot: int, stamp: int) -> float:
        """Return until when the verdict for the page at ``stamp`` is valid (Unix time); 0.0 if there is no
        verdict.
        """
        return self._verdicts_until_s[slot] if self._verdict_stamps[slot] == stamp else 0.0

    def hide_verdicts(self) -> None:
        """Void the verdicts of all slots."""
        self._verdicts["until_s"][: self._verdict_slots] = 0.0
        self._verdict_slots = 0

    def show_lease(self, until_s: float) -> None:
        """Show workers the end of this process's lease, in seconds since boot. Until then the process may
        answer from its cache. Needed only where several proxies share a cache. The store is one aligned word,
        so no reader sees half of it.
        """
        self.lease[0] = until_s

    def retire(self) -> None:
        """Mark the shared columns as invalid for ever, because the table has moved to longer columns."""
        self.columns.rest["stamp"][:] = _RETIRED
        self.columns.tier[:] = NO_TIER
        np.frombuffer(self._shown, _WHERE)[:] = 0


def _bucket(object_hash: int, number: int) -> int:
    return page_hash(object_hash, number) % _BUCKETS * _WAYS
