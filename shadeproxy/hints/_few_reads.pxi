# The state of jobs and of shared columns, and noting a few reads of one job.
cdef extern from *:
    void __builtin_prefetch(const void*) nogil

cdef enum:
    MOST = 64  # Most reads of one call.
    NO_JOB = 0
    ALL_KNOWN = 255
    AHEAD = 16  # The processor fetches the data of pages this many pages ahead.

cdef int EXPLAINED = 1  # A bit of the result of ``FewReads.note``: order or scores explain the reads.
cdef int DUE = 2  # A bit of it: the tracker may have to settle, and shared columns have not been told.

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


cdef class ReaderState:
    """The fields of ``JobReader``, and notes of a few reads. ``tracker``, ``scores``: None if the job has none."""

    cdef public object job, scores, tracker, whole
    cdef public ActivityState _activity
    cdef TrackerState order
    cdef tuple scores_of
    cdef Py_ssize_t count

    def prepare(self):
        """Prepare for ``note``, once all fields are set."""
        self.order = self.tracker
        self.count = self.whole.count
        self.scores_of = (self.scores, self.count)

    cpdef int note(self, list samples, epoch, double now_s, double tick, UsesState uses) except -2:
        """Note reads of whole objects, if each was announced near the job's place, or the job has no order. Return
        the bits EXPLAINED and DUE. Return -1, and change nothing, if Python must note the reads.

        uses: the shared columns of the dataset; None if there are none.
        """
        cdef ActivityState activity = self._activity
        cdef TrackerState order = self.order
        cdef Py_ssize_t at, sample, number = NO_JOB, size = len(samples), most = SETTLED_TOGETHER
        cdef int32_t ids[MOST]
        cdef int32_t place
        cdef int result = 0
        if order is not None:
            most = min(most, order._near_now // SETTLED_SHARE)
        if not 0 < size <= most:
            return -1
        for at in range(size):
            sample = samples[at]
            if not 0 <= sample < self.count:
                return -1
            ids[at] = sample
        if order is not None:
            self.tracker.liveness.hear(now_s)
            if order._log is not None or (epoch is not None and epoch != order._epoch_now):
                return -1
            if order.next_at.shape[0] < self.count:
                return -1
            if uses is not None:
                if uses.known.shape[0] < self.count:
                    return -1
                number = uses.numbers.get(<size_t><void*>self.job, NO_JOB)
            if not order.take(ids, size):
                return -1
            if activity._order > TRUSTED_ORDER and self.job.in_use:
                result |= EXPLAINED
            activity.ordered(size, order._chance)
            if (
                len(order._read) + order._surprises >= most
                or size >= SETTLED_MANY
                or now_s - <double>order.pace.last_s >= SETTLED_AFTER_S
            ):
                result |= DUE
            elif number != NO_JOB:
                for at in range(size):
                    place = order.next_at[ids[at]]
                    uses.read(number, ids[at], NEVER if place == NEVER else place + <int32_t>order.origin)
        activity.read(size, tick)
        if self.scores is not None and self.scores.known:
            if activity._scores > TRUSTED_SCORES and self.job.in_use:
                result |= EXPLAINED
            activity._scores_of = self.scores_of
            activity._drawn.extend(samples)
            if len(activity._drawn) >= TOGETHER:
                activity.weigh()
        return result


def by_reader(list contexts not None, dict readers not None, dict jobs not None, dict trackers not None,
              dict scoreboard not None, double tick, Py_ssize_t many):
    """Group the indices of reads by job context. Reads of jobs that are not registered are left out. So are those of
    jobs that say nothing: they are only counted. Return two lists of groups.

    The first list has the groups of less than ``many`` reads of a job on whole objects: the reader, the dataset, the
    epoch, and the indices. The second one has all other groups: their context, the reader or None, and the indices.
    The reader is None if it must be made, or if the reads name no job.
    """
    cdef dict groups = {}
    cdef list few = [], others = [], reads
    cdef Py_ssize_t at
    cdef ReaderState reader
    for at in range(len(contexts)):
        context = contexts[at]
        key = <size_t><void*>context
        group = groups.get(key)
        if group is None:
            groups[key] = group = (context, [])
        (<list>(<tuple>group)[1]).append(at)
    for group in groups.values():
        context, reads = <tuple>group
        if context is None:
            others.append((context, None, reads))
            continue
        name = context.job
        job = jobs.get(name)
        if job is None:
            continue
        reader = readers.get(name)
        if reader is not None:
            if (reader.job is not job or reader.tracker is not trackers.get(name)
                    or reader.scores is not scoreboard.get(name)):
                reader = None
            elif reader.tracker is None and (reader.scores is None or not reader.scores.known):
                reader._activity.read(len(reads), tick)
                continue
            elif reader.whole is not None and len(reads) < many:
                few.append((reader, reader.whole, context.epoch, reads))
                continue
        others.append((context, reader, reads))
    return few, others


def note_all(list groups not None, Py_ssize_t first, double now_s, double tick, list explained not None):
    """Note the reads of groups from number ``first`` on, up to a group whose reads Python must note, or after which
    Python has work to do. Return the number of this group, and the result of ``ReaderState.note`` for it. Append the
    indices of explained reads to ``explained``.

    groups: of each group the reader, the shared columns of its dataset or None, the epoch, the indices of the reads,
    and their samples.
    """
    cdef Py_ssize_t at
    cdef int result
    cdef ReaderState reader
    if first == 0:
        fetch(groups)
    for at in range(first, len(groups)):
        one, uses, epoch, reads, samples = <tuple>groups[at]
        reader = one
        result = reader.note(samples, epoch, now_s, tick, uses)
        if result > 0 and result & EXPLAINED:
            explained.extend(reads)
        if result < 0 or result & DUE:
            return at, result
    return len(groups), 0


cdef int fetch(list groups) except -1:
    """Make the processor fetch what ``note`` will touch. With many jobs, each read has its data elsewhere in memory.
    To wait for them one after the other takes longer than all other work.
    """
    cdef ReaderState reader
    cdef TrackerState order
    cdef UsesState uses
    cdef Py_ssize_t sample
    cdef int32_t place
    for group in groups:
        reader, uses = (<tuple>group)[0], (<tuple>group)[1]
        order = reader.order
        if order is None:
            continue
        for number in <list>(<tuple>group)[4]:
            sample = number
            if 0 <= sample < order.next_at.shape[0]:
                __builtin_prefetch(&order.next_at[sample])
                __builtin_prefetch(&order.last[sample])
            if uses is not None and 0 <= sample < uses.known.shape[0]:
                __builtin_prefetch(&uses.known[sample])
                __builtin_prefetch(&uses.users[sample, 0])
                __builtin_prefetch(&uses.places[sample, 0])
    for group in groups:
        order = (<ReaderState>(<tuple>group)[0]).order
        if order is None:
            continue
        for number in <list>(<tuple>group)[4]:
            sample = number
            if 0 <= sample < order.next_at.shape[0]:
                place = order.next_at[sample]
                if 0 <= place < order.links.shape[0]:
                    __builtin_prefetch(&order.links[place])
                    __builtin_prefetch(&order.done[place])
    return 0
