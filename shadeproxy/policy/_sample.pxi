# The compiled loops of hints/reuse/sample.py.
cdef uint64_t MIX = 0xBF58476D1CE4E5B9


cdef inline uint64_t mixed_hash(uint64_t page, uint64_t seed) noexcept nogil:
    """See ``ReuseSample._mix``."""
    page = (page ^ seed) * ODD
    page = (page ^ (page >> 30)) * MIX
    return page ^ (page >> 27)


@cython.final
cdef class SampleKernels:
    """The work of ``ReuseSample`` on many reads, in its columns."""

    cdef Py_ssize_t[::1] groups, states, reads
    cdef double[::1] last, gap, seen

    def __init__(self, Py_ssize_t[::1] groups not None, Py_ssize_t[::1] states not None,
                 Py_ssize_t[::1] reads not None, double[::1] last not None, double[::1] gap not None,
                 double[::1] seen not None):
        if not len(groups) == len(states) == len(reads) == len(last) == len(gap) == len(seen):
            raise ValueError("columns of different lengths")
        self.groups, self.states, self.reads = groups, states, reads
        self.last, self.gap, self.seen = last, gap, seen

    def observe(self, dict at not None, uint64_t seed, uint64_t most, const uint64_t[:] pages not None,
                const Py_ssize_t[:] groups not None, const double[:] ticks not None,
                const double[:] lasts not None, Py_ssize_t first, Py_ssize_t[:, ::1] found not None,
                double[:, ::1] ages not None, Py_ssize_t known):
        """Add reads from number ``first`` on, until the sample is full. Return the number of the next read, and
        how many reads were of known pages: ``known``, and those that this call found.

        at: by mixed hash of a page, its place in the columns. most: largest mixed hash of a sampled page.
        found, ages: two rows of n, filled from ``known`` on: groups and states of the known pages, and the ages
        between which they were not read.
        """
        cdef Py_ssize_t count = pages.shape[0], number, place
        cdef uint64_t page
        cdef History one
        cdef PyObject* known_place
        if not count == groups.shape[0] == ticks.shape[0] == lasts.shape[0]:
            raise ValueError("columns of different lengths")
        if not (found.shape[0] == ages.shape[0] == 2 and found.shape[1] == ages.shape[1] == count):
            raise ValueError("columns of different lengths")
        if not 0 <= known <= first <= count:
            raise IndexError("no such read")
        for number in range(first, count):
            page = mixed_hash(pages[number], seed)
            if page > most:
                continue
            key = page
            known_place = PyDict_GetItemWithError(at, key)
            if known_place == NULL:
                place = len(at)
                if place >= self.groups.shape[0]:
                    return number, known
                at[key] = place
                self.groups[place], self.seen[place], self.last[place] = groups[number], 0.0, lasts[number]
                self.gap[place], self.reads[place], self.states[place] = 0.0, 1, 0
                continue
            place = <object>known_place
            if not 0 <= place < self.groups.shape[0]:
                raise IndexError("no such page")
            one.last, one.gap = self.last[place], self.gap[place]
            one.reads, one.state = self.reads[place], self.states[place]
            found[0, known], found[1, known] = self.groups[place], one.state
            ages[0, known], ages[1, known] = self.seen[place], ticks[number] - one.last
            known += 1
            read_again(&one, ticks[number])
            self.gap[place], self.reads[place], self.states[place] = one.gap, one.reads, one.state
            self.last[place], self.seen[place] = lasts[number], 0.0
        return count, known
