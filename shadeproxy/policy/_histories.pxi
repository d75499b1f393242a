# The compiled loops of engine/placement/histories.py.
@cython.final
cdef class HistoryKernels:
    """The work of ``PageHistories`` on many pages, in its columns and those of its ghosts."""

    cdef GhostKernels ghosts
    cdef double[::1] last, gap
    cdef Py_ssize_t[::1] reads, state

    def __init__(self, GhostKernels ghosts not None):
        self.ghosts = ghosts

    def bind(self, double[::1] last not None, double[::1] gap not None, Py_ssize_t[::1] reads not None,
             Py_ssize_t[::1] state not None):
        """Set the columns, by slot; call it again whenever they move."""
        if not len(last) == len(gap) == len(reads) == len(state):
            raise ValueError("columns of different lengths")
        self.last, self.gap, self.reads, self.state = last, gap, reads, state

    cdef int check(self, const Py_ssize_t[:] slots, Py_ssize_t stop) except -1:
        cdef Py_ssize_t at
        stop = min(stop, len(self.last))
        for at in range(slots.shape[0]):
            if not 0 <= slots[at] < stop:
                raise IndexError("no such slot")
        return 0

    cdef inline void put(self, Py_ssize_t slot, History* one) noexcept nogil:
        self.last[slot], self.gap[slot] = one.last, one.gap
        self.reads[slot], self.state[slot] = one.reads, one.state

    def rates(self, const Py_ssize_t[:] slots not None, Py_ssize_t displacing, double tick,
              const int32_t[:] groups not None, Py_ssize_t[::1] prefix_of not None, const double[::1] rates not None,
              const double[::1] candidates not None):
        """Return the rates of resident pages; see ``PageHistories.rates``. ``groups``: by slot."""
        cdef Py_ssize_t count = slots.shape[0], at, slot, place
        found = np.empty(count)
        cdef double[::1] into = found
        if rates.shape[0] != candidates.shape[0]:
            raise ValueError("columns of different lengths")
        self.check(slots, groups.shape[0])
        for at in range(count):
            slot = slots[at]
            into[at] = 0.0
            if self.reads[slot] > 0:
                place = prefix_of_group(groups[slot], prefix_of) * STATES + self.state[slot]
                place = place * AGE_BINS + age_bin(tick - self.last[slot])
                if not 0 <= place < rates.shape[0]:
                    raise IndexError("no such prefix or state")
                into[at] = candidates[place] if at < displacing else rates[place]
        return found

    def enter(self, const Py_ssize_t[:] slots not None, const uint64_t[:] object_hashes not None,
              const uint32_t[:] numbers not None, double tick):
        """Give slots the histories that the ghosts of their new pages kept."""
        cdef Py_ssize_t count = slots.shape[0], at
        cdef History one
        if not count == object_hashes.shape[0] == numbers.shape[0]:
            raise ValueError("columns of different lengths")
        self.check(slots, len(self.last))
        for at in range(count):
            self.ghosts.look(object_hashes[at] + numbers[at] * ODD, tick, &one)
            self.put(slots[at], &one)

    def exchange(self, const Py_ssize_t[:] slots not None, const uint64_t[:] object_hashes not None,
                 const uint32_t[:] numbers not None, double tick, const uint64_t[:] old_hashes not None,
                 const uint32_t[:] old_numbers not None, const int32_t[:] groups not None,
                 Py_ssize_t[::1] prefix_of not None):
        """Keep the histories of the pages in ``slots`` as ghosts, and give the slots those of their new pages.
        ``old_hashes``, ``old_numbers``, ``groups``: of the old pages, by slot.
        """
        cdef Py_ssize_t count = slots.shape[0], at, slot
        cdef History one
        cdef Py_ssize_t stop = min(old_hashes.shape[0], old_numbers.shape[0], groups.shape[0])
        if not count == object_hashes.shape[0] == numbers.shape[0]:
            raise ValueError("columns of different lengths")
        self.check(slots, stop)
        cdef History* before = <History*>malloc(count * sizeof(History) + 1)
        if before == NULL:
            raise MemoryError()
        # Look before anything is stored, because that may displace the ghost of a new page.
        for at in range(count):
            self.ghosts.look(object_hashes[at] + numbers[at] * ODD, tick, before + at)
        for at in range(count):
            slot = slots[at]
            if self.reads[slot] > 0:
                one.last, one.gap = self.last[slot], self.gap[slot]
                one.reads, one.state = self.reads[slot], self.state[slot]
                one.prefix = prefix_of_group(groups[slot], prefix_of)
                self.ghosts.store(old_hashes[slot] + old_numbers[slot] * ODD, &one)
        for at in range(count):
            self.put(slots[at], before + at)
        free(before)
