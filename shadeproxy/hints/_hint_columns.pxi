# The hints of jobs that have a dataset each, for many pages.


@cython.final
cdef class HintColumns:
    """The columns to which the rows of ``HintRows`` belong. rows: f64[m, 10], as ``HintRows`` fills them."""

    cdef double[:, ::1] rows
    cdef list next_at, scores, mine
    cdef Py_ssize_t[:, ::1] starts  # The addresses of the three columns of each row, and of how many samples.

    def __init__(self, double[:, ::1] rows not None):
        if rows.shape[1] != 10:
            raise ValueError("a row has ten values")
        self.rows = rows
        self.starts = np.zeros((rows.shape[0], 4), np.intp)
        self.next_at, self.scores, self.mine = ([None] * rows.shape[0] for _ in range(3))

    def put(self, Py_ssize_t owner, const int32_t[::1] next_at, const float[::1] scores, const uint8_t[::1] mine):
        """Set the columns of one row. A column may be None."""
        cdef Py_ssize_t* start
        if not 0 <= owner < self.rows.shape[0]:
            raise IndexError("no such owner")
        self.next_at[owner], self.scores[owner], self.mine[owner] = next_at, scores, mine
        start = &self.starts[owner, 0]
        start[0] = start[1] = start[2] = 0
        start[3] = PY_SSIZE_T_MAX
        if next_at is not None:
            start[3] = min(start[3], next_at.shape[0])
            start[0] = <Py_ssize_t>&next_at[0]
        if scores is not None:
            start[3] = min(start[3], scores.shape[0])
            start[1] = <Py_ssize_t>&scores[0]
        if mine is not None:
            start[3] = min(start[3], mine.shape[0])
            start[2] = <Py_ssize_t>&mine[0]

    def columns(self, const int64_t[::1] owners not None, const int64_t[::1] samples not None):
        """Return distances, draws, horizons and doubts: f64[n] each."""
        cdef Py_ssize_t page, owner, sample
        cdef int32_t place
        cdef double left, weight, draws
        cdef const double* row
        cdef const Py_ssize_t* start
        if owners.shape[0] != samples.shape[0]:
            raise ValueError("columns of different lengths")
        found = np.empty((4, owners.shape[0]))
        cdef double[:, ::1] out = found
        for page in range(owners.shape[0]):
            if page + AHEAD < owners.shape[0]:
                self.fetch(owners[page + AHEAD], samples[page + AHEAD])
            owner, sample = owners[page], samples[page]
            owner = owner if owner >= 0 else owner + self.rows.shape[0]
            if not 0 <= owner < self.rows.shape[0]:
                raise IndexError("no such owner")
            row, start = &self.rows[owner, 0], &self.starts[owner, 0]
            if (start[0] or start[1] or start[2]) and not 0 <= sample < start[3]:
                raise IndexError("no such sample")
            left = INFINITY
            if start[0]:
                place = (<const int32_t*>start[0])[sample]
                if place != NEVER:
                    left = fmax(place - row[6], 1.0)
            weight = 1.0
            if start[1]:
                weight = (<const float*>start[1])[sample]
                weight = 1.0 if weight != weight else fmax(weight * row[9], LEAST_WEIGHT)
            if start[2] and not (<const uint8_t*>start[2])[sample]:
                weight = 0.0
            draws = row[7] if row[7] < weight else weight
            out[0, page] = (left * row[0] + row[1]) / row[2]
            out[1, page] = draws * row[8] * row[3]
            out[2, page], out[3, page] = row[4], row[5]
        return found

    cdef void fetch(self, Py_ssize_t owner, Py_ssize_t sample) noexcept:
        cdef const Py_ssize_t* start
        if not 0 <= owner < self.rows.shape[0]:
            return
        start = &self.starts[owner, 0]
        if 0 <= sample < start[3]:
            if start[0]:
                __builtin_prefetch(&(<const int32_t*>start[0])[sample])
            if start[1]:
                __builtin_prefetch(&(<const float*>start[1])[sample])
