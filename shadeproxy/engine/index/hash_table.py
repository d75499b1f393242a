"""Hash table of resident pages: maps a page (object hash and page number) to its slot. It takes 8 bytes a
page; a dict would take 110.

The table uses open addressing with linear probing (Knuth, TAOCP 3, 6.4, algorithms L and R). It stores slot
numbers only; two columns of ``Residents`` say which page a slot has. Internally there are 256 small tables
instead of one big table. They grow at different times, so a million entries never move at once. Doubling a
small table of 8,192 entries takes 2 ms.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.compiled import is_made_of

try:
    from shadeproxy.engine.index import _page_table
    from shadeproxy.engine.index._page_table import SOURCE, SOURCES
except ImportError:  # No compiler was found at installation, or hatch_build.py did not use it.
    COMPILED = False
else:
    COMPILED = is_made_of(SOURCE, SOURCES, __file__)

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads page numbers over the hash space.
_SHARDS_LOG2 = 8
_SHIFT = 64 - _SHARDS_LOG2
_EMPTY = -1
_FIRST = 8
# A small table doubles when its load reaches its limit. The limits of the 256 tables run from 35 to 70 %, so
# that the tables double one after another. With one common limit, all of them would double within 20,000
# insertions.
_LIMITS = [0.35 * 2.0 ** (shard / (1 << _SHARDS_LOG2)) for shard in range(1 << _SHARDS_LOG2)]


def page_hash(object_hash: int, number: int) -> int:
    """Return the 64-bit hash of page ``number`` of an object. For page 0 this is the object's hash."""
    return (object_hash + number * _ODD) & _MASK


def page_hashes(object_hashes: NDArray[np.uint64], numbers: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return ``page_hash`` of many pages; all columns have shape (n,)."""
    return object_hashes + numbers.astype(np.uint64) * np.uint64(_ODD)


def page_table() -> "PageTable | _page_table.PageTable":
    """Return an empty table. It is the compiled one if that was built: there a lookup takes a third of the
    time, and a change a tenth.
    """
    return _page_table.PageTable() if COMPILED else PageTable()


class PageTable:
    """Maps a page to its slot. Two columns, which ``bind`` sets, give the page of each slot: object hashes
    and page numbers.
    """

    def __init__(self) -> None:
        self._tables = [array("i", [_EMPTY]) * _FIRST for _ in range(1 << _SHARDS_LOG2)]
        self._counts = [0] * (1 << _SHARDS_LOG2)
        self._count = 0
        self._hashes = self._numbers = memoryview(b"")

    def __len__(self) -> int:
        return self._count

    def bind(self, hashes: memoryview, numbers: memoryview) -> None:
        """Set the two columns: object hashes u64[n] and page numbers u32[n], by slot. Call this again
        whenever the columns move in memory.
        """
        self._hashes, self._numbers = hashes, numbers

    def find(self, object_hash: int, number: int) -> int | None:
        """Return the slot of a page, or None."""
        # This line repeats ``page_hash``, because a call would take a quarter of the time of a lookup.
        key = (object_hash + number * _ODD) & _MASK if number else object_hash
        table = self._tables[key >> _SHIFT]
        mask = len(table) - 1
        place = key & mask
        slot = table[place]
        while slot >= 0:
            if self._hashes[slot] == object_hash and self._numbers[slot] == number:
                return slot
            place = (place + 1) & mask
            slot = table[place]
        return None

    def add(self, *slots: int) -> int:
        """Add slots to the table. The columns must name their pages already. Stop at the first slot whose
        page is in another slot. Return how many slots were added.
        """
        hashes, numbers, tables, counts = self._hashes, self._numbers, self._tables, self._counts
        for added, slot in enumerate(slots):
            object_hash, number = hashes[slot], numbers[slot]
            key = (object_hash + number * _ODD) & _MASK if number else object_hash
            table = tables[shard := key >> _SHIFT]
            mask = len(table) - 1
            place = key & mask
            while (other := table[place]) >= 0:
                if hashes[other] == object_hash and numbers[other] == number:
                    return added
                place = (place + 1) & mask
            table[place] = slot
            self._count += 1
            counts[shard] = count = counts[shard] + 1
            if count > _LIMITS[shard] * len(table):
                self._double(shard)
        return len(slots)

    def remove(self, *slots: int) -> None:
        """Remove slots. The columns must still name their pages."""
        hashes, numbers, tables = self._hashes, self._numbers, self._tables
        for slot in slots:
            key = (hashes[slot] + numbers[slot] * _ODD) & _MASK
            table = tables[shard := key >> _SHIFT]
            mask = len(table) - 1
            hole = key & mask
            while table[hole] != slot:
                assert table[hole] >= 0, "removed twice"
                hole = (hole + 1) & mask
            # A search stops at the first empty place, so the hole may hide entries behind it. Move each such
            # entry into the hole; its former place is the next hole.
            place = hole
            while (other := table[place := (place + 1) & mask]) >= 0:
                home = (hashes[other] + numbers[other] * _ODD) & mask
                if (place - home) & mask >= (place - hole) & mask:
                    table[hole] = other
                    hole = place
            table[hole] = _EMPTY
            self._count -= 1
            self._counts[shard] -= 1

    def _double(self, shard: int) -> None:
        old = self._tables[shard]
        table = array("i", [_EMPTY]) * (2 * len(old))
        mask = len(table) - 1
        for slot in old:
            if slot >= 0:
                place = page_hash(self._hashes[slot], self._numbers[slot]) & mask
                while table[place] >= 0:
                    place = (place + 1) & mask
                table[place] = slot
        self._tables[shard] = table
