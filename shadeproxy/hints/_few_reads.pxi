# Noting a few reads of each of many jobs.
cdef int EXPLAINED = 1  # A bit of the result of ``ReaderState.note``: order or scores explain the reads.
cdef int DUE = 2  # A bit of it: the tracker may have to settle, and shared columns have not been told.


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
