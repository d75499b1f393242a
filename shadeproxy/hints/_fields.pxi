# The fields of jobs and of shared columns that each read touches.
cdef extern from *:
    void __builtin_prefetch(const void*) nogil

cdef enum:
    MOST = 64  # Most reads of one call.
    NO_JOB = 0
    ALL_KNOWN = 255
    AHEAD = 16  # The processor fetches the data of pages this many pages ahead.

# Set by ``learn_constants``.
cdef int32_t NEVER
cdef Py_ssize_t USES, TOGETHER, SETTLED_TOGETHER, SETTLED_MANY, SETTLED_SHARE
cdef double CLIPPED, PACE_READS, TRUST_READS, SCORE_READS, LEAST_EXPECTED, MOST_DRAWN, TRUSTED_ORDER, TRUSTED_SCORES
cdef double SETTLED_AFTER_S, LEAST_WEIGHT, NEXT


def learn_constants(int32_t never, Py_ssize_t uses, double least_weight, double next_ticks, settled, trusted, averages):
    """Set the constants. Return True."""
    global NEVER, USES, TOGETHER, SETTLED_TOGETHER, SETTLED_MANY, SETTLED_SHARE, CLIPPED, PACE_READS, TRUST_READS
    global SCORE_READS, LEAST_EXPECTED, MOST_DRAWN, TRUSTED_ORDER, TRUSTED_SCORES, SETTLED_AFTER_S, LEAST_WEIGHT, NEXT
    NEVER, USES, LEAST_WEIGHT, NEXT = never, uses, least_weight, next_ticks
    SETTLED_TOGETHER, SETTLED_MANY, SETTLED_SHARE, SETTLED_AFTER_S = settled
    TRUSTED_ORDER, TRUSTED_SCORES = trusted
    TOGETHER, CLIPPED, PACE_READS, TRUST_READS, SCORE_READS, LEAST_EXPECTED, MOST_DRAWN = averages
    return SETTLED_TOGETHER <= MOST


cdef inline double moved(Py_ssize_t reads, double memory) noexcept:
    """See ``activity._moved``."""
    return 1.0 - pow(1.0 - 1.0 / memory, <double>reads)


cdef class ActivityState:
    """The fields of ``JobActivity``."""

    cdef public Py_ssize_t reads, _waiting, _measured, _found, _ordered
    cdef public double raised, _order, _scores, _gap, _averaged, _by_chance
    cdef public object _last, _scores_of
    cdef public list _drawn
    cdef public bint _was_pause

    cdef int read(self, Py_ssize_t reads, double tick) except -1:
        cdef double last
        cdef bint is_pause
        self.reads += reads
        if self._last is None:
            self._last = self._averaged = tick
            self._gap = 1.0
            return 0
        last = self._last
        if tick > last:
            is_pause = tick - last > (CLIPPED * self._gap + CLIPPED) * reads
            if is_pause or self._was_pause or self._waiting >= TOGETHER:
                self.average(last)
            self._last, self._was_pause = tick, is_pause
        self._waiting += reads
        return 0

    cdef void average(self, double last) noexcept:
        cdef Py_ssize_t reads = self._waiting
        cdef double gap, unusual = CLIPPED * self._gap + CLIPPED
        self._waiting = 0
        if not reads or last == self._averaged:
            return
        gap = (last - self._averaged) / reads
        self._averaged = last
        if self._measured and unusual < gap:
            gap = unusual
        self._measured += reads
        self._gap += (gap - self._gap) * fmax(moved(reads, PACE_READS), <double>reads / <double>self._measured)

    cdef void ordered(self, Py_ssize_t found, double chance) noexcept:
        self._found += found
        self._ordered += found
        self._by_chance += chance * found
        if self._ordered >= TOGETHER:
            self.trust()

    cdef void trust(self) noexcept:
        cdef double chance = self._by_chance / self._ordered
        cdef double share = (<double>self._found / <double>self._ordered - chance) / (1 - chance)
        self._order += (share - self._order) * moved(self._ordered, TRUST_READS)
        self._found, self._ordered, self._by_chance = 0, 0, 0.0

    cpdef int weigh(self) except -1:
        """Do the same as ``JobActivity._weigh``."""
        cdef const float[::1] values
        cdef double factor, expected, most, excess, weight
        cdef Py_ssize_t sample
        cdef list drawn = self._drawn
        scores, count = self._scores_of
        self._drawn = []
        factor, expected, values = scores.factor, scores.drawn_weight(count), scores.values
        if expected < LEAST_EXPECTED:
            return 0
        most, excess = MOST_DRAWN * expected, expected - 1
        for number in drawn:
            sample = number
            if not 0 <= sample < values.shape[0]:
                raise IndexError("no such sample")
            __builtin_prefetch(&values[sample])
        for number in drawn:
            sample = number
            weight = values[sample]
            weight = 1.0 if factor == 0 or weight != weight else weight * factor
            weight = most if most < weight else weight
            self._scores += ((weight - 1) / excess - self._scores) / SCORE_READS
        return 0

    def scale_at(self, Py_ssize_t coming, double weight, double tick, double least_trust):
        """Return the fields of ``JobActivity.scale_at``."""
        cdef double last, trust, gap, silent = 0.0
        if self._last is not None:
            last = self._last
            self.average(last)
            if tick - last > CLIPPED * self._gap + CLIPPED:
                silent = tick - last
        if self._ordered:
            self.trust()
        gap, trust = fmax(self._gap, 1.0), fmin(fmax(self._order, 0.0), 1.0)
        return (gap, silent, weight * fmax(trust, least_trust), weight / gap, silent + coming * gap * trust, 1 - trust)


cdef class TrackerState:
    """The fields of ``OrderTracker`` that each read touches."""

    cdef public Py_ssize_t cursor, left, origin, _near_now, _surprises
    cdef public double _chance
    cdef public list _read
    cdef public object _epoch_now, _log, pace
    cdef int32_t[::1] next_at, last
    cdef const int32_t[::1] links
    cdef uint8_t[::1] done

    def bind(self, int32_t[::1] next_at not None, int32_t[::1] last_read not None, const int32_t[::1] links not None,
             uint8_t[::1] done not None):
        """Set the columns of the order."""
        if next_at.shape[0] != last_read.shape[0] or links.shape[0] != done.shape[0]:
            raise ValueError("columns of different lengths")
        self.next_at, self.last, self.links, self.done = next_at, last_read, links, done

    def pass_over(self, const uint32_t[::1] ids not None, Py_ssize_t start, Py_ssize_t stop):
        """Mark the places from ``start`` on as over. Return how many were not. ids: the sample of each place."""
        cdef Py_ssize_t place, missed = 0
        cdef uint32_t sample
        if not 0 <= start <= stop <= ids.shape[0] == self.done.shape[0]:
            raise IndexError("no such place")
        for place in range(start, stop):
            sample = ids[place]
            if sample >= self.next_at.shape[0]:
                raise IndexError("no such sample")
            missed += not self.done[place]
            self.done[place] = 1
            if self.next_at[sample] < stop:
                self.next_at[sample] = self.links[place]
        return missed

    cdef bint take(self, const int32_t* samples, Py_ssize_t count):
        """Mark each sample's next place as over. Return False, and change nothing, if one is not near the cursor."""
        cdef Py_ssize_t at, limit = self.cursor + self._near_now, left = self.left
        cdef int32_t places[MOST]
        cdef int32_t lasts[MOST]
        cdef uint8_t over[MOST]
        cdef int32_t sample, place
        for at in range(count):
            place = self.next_at[samples[at]]
            if place > limit or not 0 <= place < self.links.shape[0]:
                return False
        for at in range(count):
            sample = samples[at]
            place = places[at] = self.next_at[sample]
            if place > limit or not 0 <= place < self.links.shape[0]:
                break
            lasts[at], over[at] = self.last[sample], self.done[place]
            left -= not over[at]
            self.done[place], self.next_at[sample], self.last[sample] = 1, self.links[place], place
        else:
            self.left = left
            for at in range(count):
                self._read.append(places[at])
            return True
        # A sample that was read twice here has no second place nearby.
        while at > 0:
            at -= 1
            sample, place = samples[at], places[at]
            self.done[place], self.next_at[sample], self.last[sample] = over[at], place, lasts[at]
        return False


cdef class UsesState:
    """The fields of ``SharedColumns`` that each read touches."""

    cdef public list _short
    cdef public dict numbers
    cdef uint16_t[:, ::1] users
    cdef int32_t[:, ::1] places
    cdef uint8_t[::1] known, is_short

    def bind(self, uint16_t[:, ::1] users not None, int32_t[:, ::1] places not None, uint8_t[::1] known not None,
             uint8_t[::1] is_short not None):
        """Set the columns of the pages."""
        if not users.shape[0] == places.shape[0] == known.shape[0] == is_short.shape[0]:
            raise ValueError("columns of different lengths")
        if not users.shape[1] == places.shape[1] == USES:
            raise ValueError("columns of different numbers of uses")
        self.users, self.places, self.known, self.is_short = users, places, known, is_short

    cdef int read(self, uint16_t number, Py_ssize_t row, int32_t place) except -1:
        cdef Py_ssize_t at, found = -1, left
        left = self.known[row] - 1
        for at in range(USES):
            if self.users[row, at] == number:
                found = at
                break
            if found < 0 and self.users[row, at] == NO_JOB:
                found = at
        if found < 0:
            left = min(left, 0)
        elif place == NEVER:
            self.users[row, found] = NO_JOB
        else:
            self.users[row, found], self.places[row, found] = number, place
        if 0 <= left < ALL_KNOWN - 1:
            self.known[row] = left
            if left == 0 and not self.is_short[row]:
                self._short.append(row)
                self.is_short[row] = 1
        return 0

    def distances(self, const int64_t[::1] rows not None, const double[::1] start not None,
                  const double[::1] over not None, const double[::1] step not None, const double[::1] wait not None,
                  double passed):
        """Return the ticks until the next use of each row: f64[n]. Row -1 is the last row."""
        cdef Py_ssize_t page, at, row, user, count = self.users.shape[0], jobs = start.shape[0]
        cdef double left, soonest
        found = np.empty(rows.shape[0])
        cdef double[::1] distance = found
        if not jobs == over.shape[0] == step.shape[0] == wait.shape[0]:
            raise ValueError("columns of different lengths")
        for page in range(rows.shape[0]):
            if page + AHEAD < rows.shape[0] and 0 <= rows[page + AHEAD] < count:
                __builtin_prefetch(&self.users[rows[page + AHEAD], 0])
                __builtin_prefetch(&self.places[rows[page + AHEAD], 0])
            row = rows[page] if rows[page] >= 0 else rows[page] + count
            if not 0 <= row < count:
                raise IndexError("no such page")
            soonest = INFINITY
            for at in range(USES):
                user = self.users[row, at]
                if user >= jobs:
                    raise IndexError("no such job")
                left = self.places[row, at] - start[user]
                if left >= over[user]:
                    left = fmax(left, 1.0) * step[user] + wait[user]
                    soonest = left if left < soonest else soonest
            distance[page] = fmax(soonest - passed, NEXT)
        return found
