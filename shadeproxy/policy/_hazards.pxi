# The compiled loops and constants of policy/history.py and policy/hazard.py. ``learn_constants`` compares
# the constants.
cdef enum:
    AGE_BINS = 40
    GAP_OCTAVES = 20
    RATIOS = 3
    STATES = 181  # 1 + 3 counts * GAP_OCTAVES * RATIOS
    GAP_GROUPS = 8  # 1 + (GAP_OCTAVES + 2) // 3
    MOST_READS = 9

cdef double[41] EDGES


def learn_constants(double[::1] edges not None, Py_ssize_t states, Py_ssize_t gap_groups, Py_ssize_t most_reads):
    """Set the bounds of the age bins. Return whether this module fits the constants."""
    cdef Py_ssize_t at
    if len(edges) != AGE_BINS + 1 or states != STATES or gap_groups != GAP_GROUPS or most_reads != MOST_READS:
        return False
    for at in range(AGE_BINS + 1):
        EDGES[at] = edges[at]
    return True


cdef inline Py_ssize_t age_bin(double age) noexcept nogil:
    """See ``policy.history.age_bin``."""
    cdef int exponent
    frexp(age * age, &exponent)
    return min(max(exponent - 1, 0), AGE_BINS - 1)


cdef inline Py_ssize_t gap_group(Py_ssize_t state) noexcept nogil:
    """See ``policy.history.gap_group``."""
    return 0 if state == 0 else 1 + (state - 1) // RATIOS % GAP_OCTAVES // 3


def expose(double[:, ::1] exposure not None, double[::1] expected not None, double[::1] hazards not None,
           Py_ssize_t[::1] prefixes not None, Py_ssize_t[::1] states not None, double[::1] since not None,
           double[::1] until not None):
    """Add the ticks that pages waited, and the reads that were promised; see ``policy.hazard.Evidence``."""
    cdef Py_ssize_t count = len(since), rows = exposure.shape[0], at, row, bin, last, left, kept
    if (exposure.shape[1] != AGE_BINS or len(hazards) != rows * AGE_BINS
            or len(expected) * STATES != rows * GAP_GROUPS):
        raise ValueError("tables of different prefixes")
    if len(prefixes) != count or len(states) != count or len(until) != count:
        raise ValueError("columns of different lengths")
    for at in range(count):
        if not (0 <= states[at] < STATES and 0 <= prefixes[at] and (prefixes[at] + 1) * STATES <= rows):
            raise IndexError("no such prefix or state")
    cdef Py_ssize_t* on = <Py_ssize_t*>malloc(count * sizeof(Py_ssize_t) + 1)
    if on == NULL:
        raise MemoryError()
    with nogil:
        for at in range(count):
            on[at] = at
        # All pages in their first bin, then those that reach the next one: sums depend on the order.
        left, kept = count, 0
        bin = 0
        while left:
            kept = 0
            for at in range(left):
                kept += add_wait(on, at, kept, bin, exposure, prefixes, states, since, until)
            left = kept
            bin += 1
        for at in range(count):
            row = prefixes[at] * STATES + states[at]
            expected[prefixes[at] * GAP_GROUPS + gap_group(states[at])] += (
                hazards[row * AGE_BINS + age_bin(since[at])] * (until[at] - since[at])
            )
    free(on)


cdef inline bint add_wait(Py_ssize_t* on, Py_ssize_t at, Py_ssize_t kept, Py_ssize_t further,
                          double[:, ::1] exposure, Py_ssize_t[::1] prefixes, Py_ssize_t[::1] states,
                          double[::1] since, double[::1] until) noexcept nogil:
    """Add the part of a wait in one bin, ``further`` bins after its first. Keep the page's place in ``on`` if
    its wait goes on, and return whether it does.
    """
    cdef Py_ssize_t page = on[at], bin = age_bin(since[page]) + further, last = age_bin(until[page])
    cdef double start = EDGES[bin] if further else since[page]
    cdef double stop = EDGES[bin + 1] if bin < last else until[page]
    exposure[prefixes[page] * STATES + states[page], bin] += stop - start
    if bin < last:
        on[kept] = page
        return True
    return False


cdef inline bint fits(double[:, ::1] table, Py_ssize_t rows) noexcept nogil:
    return table.shape[0] == rows and table.shape[1] == AGE_BINS


def gittins(double[:, ::1] survives not None, double[:, ::1] held not None, double[::1] prices not None,
            double[:, ::1] best not None, double[:, ::1] repaid not None):
    """Write the largest (read / waited) and ((read - price) / waited) of each row and age bin to ``best`` and
    ``repaid``; see ``policy.hazard.gittins``.
    """
    cdef Py_ssize_t count = len(prices), row, age, stop
    cdef double alive, waited, read, most, most_repaid
    if not (fits(survives, count) and fits(held, count) and fits(best, count) and fits(repaid, count)):
        raise ValueError("tables of different lengths")
    with nogil:
        for row in range(count):
            for age in range(AGE_BINS):
                alive, waited = 1.0, 0.0
                most = most_repaid = -INFINITY
                for stop in range(age, AGE_BINS):
                    waited += alive * held[row, stop]
                    alive *= survives[row, stop]
                    read = 1 - alive
                    most = max(most, read / waited)
                    most_repaid = max(most_repaid, (read - prices[row]) / waited)
                best[row, age] = most
                repaid[row, age] = most_repaid
