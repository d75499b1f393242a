# The compiled loops of hints/reuse/ghosts.py.
cdef enum:
    WAYS = 8

cdef double[256] GAPS
cdef double STEPS = 12.0
cdef uint64_t ODD = 0x9E3779B97F4A7C15
cdef int _stored
for _stored in range(256):
    GAPS[_stored] = 2.0 ** (_stored / STEPS)


cdef struct History:
    double last
    double gap
    Py_ssize_t reads
    Py_ssize_t state
    Py_ssize_t prefix


cdef inline Py_ssize_t state_of(Py_ssize_t reads, double gap, Py_ssize_t ratio) noexcept nogil:
    """See ``policy.history._state``."""
    cdef int exponent
    cdef Py_ssize_t count = 0 if reads == 2 else 1 if reads <= 4 else 2
    frexp(gap, &exponent)
    return 1 + (count * GAP_OCTAVES + min(max(exponent - 1, 0), GAP_OCTAVES - 1)) * RATIOS + ratio


cdef inline void read_again(History* one, double tick) noexcept nogil:
    """See ``policy.history.read_again`` and ``first_read``."""
    cdef double distance = tick - one.last
    cdef Py_ssize_t ratio
    if one.reads == 0:
        one.gap, one.reads, one.state = 0.0, 1, 0
    elif one.reads == 1:
        one.gap, one.reads, one.state = distance, 2, state_of(2, distance, 1)
    else:
        ratio = 0 if distance < one.gap / 8 else 2 if distance > 2 * one.gap else 1
        one.reads = min(one.reads + 1, MOST_READS)
        one.gap += (distance - one.gap) / (one.reads - 1)
        one.state = state_of(one.reads, one.gap, ratio)
    one.last = tick


cdef inline Py_ssize_t prefix_of_group(Py_ssize_t group, Py_ssize_t[::1] prefix_of) noexcept nogil:
    """See ``ReuseLearner.prefix``."""
    return prefix_of[group] if 0 <= group < prefix_of.shape[0] else 0


@cython.final
cdef class GhostKernels:
    """The work of ``Ghosts`` on many pages, in its columns."""

    cdef uint32_t[::1] tag, last
    cdef uint8_t[::1] gap, reads, state, prefix
    cdef uint64_t sets

    def __init__(self, uint32_t[::1] tag not None, uint32_t[::1] last not None, uint8_t[::1] gap not None,
                 uint8_t[::1] reads not None, uint8_t[::1] state not None, uint8_t[::1] prefix not None):
        cdef Py_ssize_t size = len(tag)
        if not (size and size % WAYS == 0
                and size == len(last) == len(gap) == len(reads) == len(state) == len(prefix)):
            raise ValueError("columns of different lengths")
        self.tag, self.last, self.gap = tag, last, gap
        self.reads, self.state, self.prefix = reads, state, prefix
        self.sets = <uint64_t>size // WAYS

    cdef inline bint look(self, uint64_t page, double tick, History* found) noexcept nogil:
        """See ``Ghosts.find``. Without a history, ``reads`` is 0."""
        cdef uint32_t tag = max(<uint32_t>page, <uint32_t>1), idle
        cdef Py_ssize_t at = <Py_ssize_t>((page >> 32) * self.sets >> 32) * WAYS, stop = at + WAYS
        while at < stop and self.tag[at] != tag:
            at += 1
        found.last, found.gap, found.reads, found.state, found.prefix = tick, 0.0, 0, 0, 0
        if at == stop:
            return False
        idle = <uint32_t><int64_t>tick - self.last[at]
        if idle > self.sets * WAYS:
            return False
        found.last, found.reads = tick - idle, self.reads[at]
        found.gap = GAPS[self.gap[at]] if found.reads > 1 else 0.0
        found.state, found.prefix = self.state[at], self.prefix[at]
        return True

    cdef inline void store(self, uint64_t page, History* one) noexcept nogil:
        """See ``Ghosts.put``."""
        cdef uint32_t tag = max(<uint32_t>page, <uint32_t>1), now = <uint32_t><int64_t>one.last
        cdef uint64_t rank, highest = 0
        cdef Py_ssize_t first = <Py_ssize_t>((page >> 32) * self.sets >> 32) * WAYS, at, place = first
        for at in range(first, first + WAYS):
            rank = now - self.last[at]  # Ticks wrap at 2^32.
            if self.tag[at] == tag:
                place = at
                break
            if self.tag[at] == 0:
                rank = <uint64_t>1 << 33
            if rank > highest:
                highest, place = rank, at
        self.tag[place], self.last[place] = tag, now
        self.gap[place] = <uint8_t>min(rint(log2(max(one.gap, 1.0)) * STEPS), 255.0)
        self.reads[place], self.state[place] = <uint8_t>one.reads, <uint8_t>one.state
        self.prefix[place] = <uint8_t>one.prefix

    def read_many(self, list reads not None, Py_ssize_t[::1] prefix_of not None):
        """Add reads, oldest first; see ``Ghosts.read_many``."""
        cdef History one
        cdef uint64_t page
        cdef double tick
        cdef Py_ssize_t group
        for read in reads:
            page, group, tick = read
            self.look(page, tick, &one)
            read_again(&one, tick)
            one.prefix = prefix_of_group(group, prefix_of)
            self.store(page, &one)

    def find_many(self, const uint64_t[:] pages not None, double tick):
        """Return the columns of ``GhostColumns``."""
        cdef Py_ssize_t count = pages.shape[0], at
        cdef History one
        times, counts = np.empty((2, count)), np.empty((3, count), np.intp)
        cdef double[:, ::1] into = times
        cdef Py_ssize_t[:, ::1] whole = counts
        for at in range(count):
            self.look(pages[at], tick, &one)
            into[0, at], into[1, at] = one.last, one.gap
            whole[0, at], whole[1, at], whole[2, at] = one.reads, one.state, one.prefix
        return *times, *counts

    def put_many(self, const uint64_t[:] pages not None, const double[:] last not None,
                 const double[:] gap not None, const Py_ssize_t[:] reads not None,
                 const Py_ssize_t[:] state not None, const Py_ssize_t[:] prefix not None):
        """Store histories in this order; see ``Ghosts.put_many``."""
        cdef Py_ssize_t count = pages.shape[0], at
        cdef History one
        if not (count == last.shape[0] == gap.shape[0] == reads.shape[0] == state.shape[0]
                and count == prefix.shape[0]):
            raise ValueError("columns of different lengths")
        for at in range(count):
            one.last, one.gap, one.reads = last[at], gap[at], reads[at]
            one.state, one.prefix = state[at], prefix[at]
            self.store(pages[at], &one)

    def rates(self, const uint64_t[:] object_hashes not None, const uint32_t[:] numbers not None, double tick,
              const double[::1] candidates not None):
        """Return the rates of admission candidates; see ``PageHistories.rates_of``."""
        cdef Py_ssize_t count = object_hashes.shape[0], at, place
        cdef History one
        rates = np.empty(count)
        cdef double[::1] into = rates
        if numbers.shape[0] != count:
            raise ValueError("columns of different lengths")
        for at in range(count):
            into[at] = 0.0
            if self.look(object_hashes[at] + numbers[at] * ODD, tick, &one) and one.reads > 0:
                place = (one.prefix * STATES + one.state) * AGE_BINS + age_bin(tick - one.last)
                if place >= candidates.shape[0]:
                    raise IndexError("no such prefix or state")
                into[at] = candidates[place]
        return rates
