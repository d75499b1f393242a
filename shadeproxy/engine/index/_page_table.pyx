# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled form of ``PageTable``: same calls, same results as in hash_table.py, which explains the table.

Laws: nothing of shadeproxy is imported. ``add`` and ``remove`` check their slots. ``bind`` checks that the
columns have a row for every slot that was ever added. No other access to a column is checked.
"""

cimport cython
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cdef enum:
    SHARDS = 256
    SHIFT = 56
    FIRST = 8

cdef uint64_t ODD = 0x9E3779B97F4A7C15
cdef double[SHARDS] LIMITS
cdef int _shard
for _shard in range(SHARDS):
    LIMITS[_shard] = 0.35 * 2.0 ** (_shard / <double>SHARDS)


cdef struct Table:
    int32_t* slots
    uint64_t mask
    Py_ssize_t count


@cython.final
cdef class PageTable:
    """Maps a page to its slot; see hash_table.py."""

    cdef Table[SHARDS] tables
    cdef const uint64_t[:] hashes
    cdef const uint32_t[:] numbers
    cdef Py_ssize_t count
    cdef Py_ssize_t stop  # Greater than every slot that was ever added.

    def __cinit__(self):
        cdef int shard
        for shard in range(SHARDS):
            self.tables[shard].slots = made(FIRST)
            self.tables[shard].mask = FIRST - 1

    def __dealloc__(self):
        cdef int shard
        for shard in range(SHARDS):
            free(self.tables[shard].slots)

    def __len__(self):
        return self.count

    def bind(self, const uint64_t[:] hashes not None, const uint32_t[:] numbers not None):
        """Set the two columns: object hashes u64[n] and page numbers u32[n], by slot. Call this again
        whenever the columns move in memory. Raises ValueError if the columns are too short.
        """
        if hashes.shape[0] < self.stop or numbers.shape[0] < self.stop:
            raise ValueError("a slot in the table is not in the columns")
        self.hashes, self.numbers = hashes, numbers

    def find(self, uint64_t object_hash, uint64_t number):
        """Return the slot of a page, or None."""
        cdef uint64_t key = object_hash + number * ODD
        cdef Table* table = &self.tables[key >> SHIFT]
        cdef uint64_t place = key & table.mask
        cdef int32_t slot = table.slots[place]
        while slot >= 0:
            if self.hashes[slot] == object_hash and self.numbers[slot] == number:
                return slot
            place = (place + 1) & table.mask
            slot = table.slots[place]
        return None

    cdef inline uint64_t key(self, int32_t slot) noexcept:
        return self.hashes[slot] + self.numbers[slot] * ODD

    cdef int check(self, Py_ssize_t slot) except -1:
        if not 0 <= slot < min(self.hashes.shape[0], self.numbers.shape[0], <Py_ssize_t>1 << 31):
            raise IndexError("no such slot")
        return 0

    def add(self, *slots):
        """Add slots to the table. The columns must name their pages already. Stop at the first slot whose
        page is in another slot. Return how many slots were added.
        """
        cdef Py_ssize_t added = 0, slot
        cdef uint64_t key, place
        cdef int32_t other
        cdef Table* table
        for slot in slots:
            self.check(slot)
            key = self.key(slot)
            table = &self.tables[key >> SHIFT]
            place = key & table.mask
            while (other := table.slots[place]) >= 0:
                if self.hashes[other] == self.hashes[slot] and self.numbers[other] == self.numbers[slot]:
                    return added
                place = (place + 1) & table.mask
            table.slots[place] = slot
            added += 1
            self.count += 1
            self.stop = max(self.stop, slot + 1)
            table.count += 1
            if table.count > LIMITS[key >> SHIFT] * (table.mask + 1):
                self.double(table)
        return added

    def remove(self, *slots):
        """Remove slots. The columns must still name their pages."""
        cdef Py_ssize_t slot
        cdef uint64_t key, hole, place, home
        cdef int32_t other
        cdef Table* table
        for slot in slots:
            self.check(slot)
            key = self.key(slot)
            table = &self.tables[key >> SHIFT]
            hole = key & table.mask
            while table.slots[hole] != slot:
                if table.slots[hole] < 0:
                    raise AssertionError("removed twice")
                hole = (hole + 1) & table.mask
            # A search stops at the first empty place, so the hole may hide entries behind it. Move each such
            # entry into the hole; its former place is the next hole.
            place = (hole + 1) & table.mask
            while (other := table.slots[place]) >= 0:
                home = self.key(other) & table.mask
                if ((place - home) & table.mask) >= ((place - hole) & table.mask):
                    table.slots[hole] = other
                    hole = place
                place = (place + 1) & table.mask
            table.slots[hole] = -1
            self.count -= 1
            table.count -= 1

    cdef int double(self, Table* table) except -1:
        cdef uint64_t length = table.mask + 1, at, place, mask = 2 * length - 1
        cdef int32_t* slots = made(2 * length)
        for at in range(length):
            if table.slots[at] >= 0:
                place = self.key(table.slots[at]) & mask
                while slots[place] >= 0:
                    place = (place + 1) & mask
                slots[place] = table.slots[at]
        free(table.slots)
        table.slots, table.mask = slots, mask
        return 0


cdef int32_t* made(uint64_t length) except NULL:
    """Return an empty table."""
    cdef int32_t* slots = <int32_t*>malloc(length * sizeof(int32_t))
    cdef uint64_t at
    if slots == NULL:
        raise MemoryError()
    for at in range(length):
        slots[at] = -1
    return slots
