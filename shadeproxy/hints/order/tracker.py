"""Order tracker: the announced order of one job, and the job's place in it.

Laws: ``next_at`` holds for each sample its earliest place that is not over. When the job reads that place, or
passes it unread, the next place of the same id is stored. A read matches only a place near the cursor (the
job's place). So one unannounced read moves nothing, and reads contradict a false order soon. Event loop only.
"""

from itertools import compress

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints import job_state
from shadeproxy.hints.datasets import Bits, Ids
from shadeproxy.hints.job_state import TrackerState
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.accuracy import Match, OrderAccuracy, UnannouncedReads
from shadeproxy.hints.order.build import Built, OrderColumns, Tail
from shadeproxy.hints.order.liveness import Liveness
from shadeproxy.hints.order.pace import JobPace
from shadeproxy.hints.order.page_places import PagePlaces
from shadeproxy.hints.order.sequence import (
    LEAST_NEAR,
    NEVER,
    Epoch,
    OrderSequence,
    goes_on,
    near_of,
)

_SETTLED_LEAST = 8  # The median of so many reads of a slow job is hardly ever an unannounced read.
_LATE_QUANTILE = 50
_LATE_KEPT = 0.95
_LATE_MARGIN = 64
_MOST_PASSED = 65_536  # Most places passed at a time: more would block the event loop.
_MOST_REPEATS = 8
_RESTARTED_S = 2.0  # Shortest pause that a restart can make: no process restarts faster.
_FAR = 1 << 29  # Places begin at 0 again before they are too large for their columns.


class OrderTracker(TrackerState):
    """The order of one job, and the job's place in it. ``restored``: it was announced before a restart."""

    __slots__ = (
        "_done", "_last", "_late", "_left_until", "_links", "_mine", "_next", "_paced", "_skipped_to",
        "_stops_at", "_sure", "_unannounced", "accuracy", "columns", "floor", "job", "liveness", "lookup",
        "page_places", "series", "tail",
    )  # fmt: skip

    def __init__(self, job: Job, built: Built, now_s: float, *, restored: bool = False) -> None:
        self.job = job
        self.lookup = built.lookup
        self.pace = JobPace(now_s)
        self.liveness = Liveness(now_s, restored=restored)
        self.accuracy = OrderAccuracy()
        self.left = 0
        """Number of places that are not over."""
        self.origin = self.series = 0
        """A place plus ``origin`` stays the same when the order is built again, until ``series`` changes."""
        self.cursor = 0
        """Approximate place of the job: the median of its latest reads."""
        self.floor = 0
        """Every place below the floor is over."""
        self._log: list[Ids] | None = None
        self._read: list[int] = []  # Places that were read since the cursor moved, in order.
        self._surprises, self._unannounced = 0, UnannouncedReads()
        self._paced = 0  # How many of ``_read`` and ``_surprises`` were already added to the pace.
        self._late = self._skipped_to = 0
        self._sure = 0  # The cursor at the last time that most reads were announced near it.
        self._left_until = 0  # Places before it are over, because the job has left their epoch.
        self._epoch_now: int | None = None  # The epoch that the latest read named, if the job has begun it.
        self.tail = Tail()
        self._near_now = LEAST_NEAR
        self._chance = 0.0  # Share of an epoch's reads that would be found near the cursor in any order.
        self._set(built)

    # ------------------------------------------------------------------ announcements

    @property
    def sequence(self) -> OrderSequence:
        return self.columns.sequence

    @property
    def unsettled(self) -> int:
        """Number of announced reads since the cursor moved."""
        return len(self._read)

    def begin(self) -> OrderColumns:
        """Return the columns from which the next order is built, and start to log reads for ``finish``."""
        self._log = []
        return self.columns._replace(done=self.columns.done.copy())

    def finish(self, built: Built) -> None:
        """Replace the order by ``built``, and apply the reads logged since ``begin``."""
        before, log = self.sequence, self._log or []
        self._log = None
        # The log has all reads, also those since the cursor moved. Only ``accuracy`` must still count those.
        self.accuracy.heard(len(self._read), self._surprises)
        self._paced -= len(self._read) + self._surprises
        self._read, self._surprises = [], 0
        left, place = before.epoch_at(self._sure), self._sure
        if built.shift is None or abs(self.origin) > _FAR:
            self.origin, self.series = 0, self.series + 1
        else:
            self.origin += built.shift
        self._set(built)
        at = self.sequence.epoch_at(self.cursor)
        if built.is_elsewhere and left is not None and at is not None and at.number > left.number:
            self.tail.left(left, place)
        reads = np.concatenate([*log, np.empty(0, dtype=np.int64)])
        # Apply the reads in batches: one by one, a few hundred would block the event loop for 50 us each; all
        # at once, reads beyond the cursor's range would be lost.
        for start in range(0, len(reads), together := max(self._near_now // 2, 1)):
            self._consume(reads[start : start + together])
            self._follow()
        if built.is_elsewhere:
            self._unannounced.found(self.accuracy)
        if built.is_elsewhere or not goes_on(before, self.sequence):
            self.accuracy.forget()

    def give_up(self) -> None:
        """Stop logging reads, because the new order could not be built."""
        self._log = None

    @property
    def most_together(self) -> int:
        """Most reads to note before the cursor moves, so that they are still near it."""
        return min(job_state.SETTLED_TOGETHER, self._near_now // job_state.SETTLED_SHARE)

    @property
    def is_lost(self) -> bool:
        """True if the job is probably at another place in its order than the cursor."""
        return self._log is None and self._unannounced.are_many(self.accuracy)

    @property
    def is_to_be_cut(self) -> bool:
        """True if the position at which the job leaves epochs has changed since the order was built."""
        return self._log is None and self.tail.stops_at != self._stops_at

    def unannounced(self) -> tuple[Ids | None, int]:
        """Return the unannounced reads of a lost job, and in how many places to search for them."""
        if not self.is_lost:
            return None, 0
        return self._unannounced.take(self.accuracy, self._near_now), 2 * self._near_now

    def has_lapsed(self, now_s: float) -> bool:
        """Return whether the announced order has lapsed: the job is silent, expired, or has ended."""
        return not self.job.in_use or self.liveness.silence(now_s).has_lapsed

    def begins_again(self, epoch: int, rank: int, offset: int, now_s: float) -> bool:
        """Return whether this announcement shows that the job was restarted: it names an earlier epoch than
        the present one; or, after a pause, the start of the present epoch although the job is well into it.
        """
        at = self.sequence.epoch_at(self.cursor)
        if at is None or epoch != at.number:
            return at is not None and epoch < at.number
        well_into = self.cursor > at.start + self._near_now
        return well_into and rank in at.ranks and not offset and now_s - self.pace.last_s >= _RESTARTED_S

    def _set(self, built: Built) -> None:
        self.columns, self.lookup, self._stops_at = built.columns, built.lookup, built.stops_at
        columns, self._mine = built.columns, built.columns.mine
        self.bind(columns.next_at, columns.last_read, columns.sequence.next, columns.done.view(np.uint8))
        self.cursor = self._skipped_to = self._sure = built.cursor
        done = columns.done
        self.floor = len(done) if done.all() else int(np.argmin(done))
        self.left = len(done) - int(np.count_nonzero(done))
        self._next, self._last = columns.next_at.data, columns.last_read.data
        self._links, self._done = columns.sequence.next.data, done.data
        self.page_places = PagePlaces(self.lookup, columns)
        self._near_now = near_of(self.sequence.epoch_at(self.cursor))
        self._epoch_now = None
        if built.is_of_other_share:
            self._skipped_to += self._near_now
        at = self.sequence.epoch_at(self.cursor)
        self._chance = columns.share_near(at, self.floor, self.cursor, self._near_now)
        self._late = self._late or self._near_now // 4
        self._left_until = 0 if at is None or self.tail.stops_at is None else at.start

    # ------------------------------------------------------------------ reads

    def read_few(
        self, samples: list[int], epoch: int | None, now_s: float, *, certain: bool
    ) -> tuple[Match, bool]:
        """Note a few reads, but no sign of life. Return how they match, and whether the cursor moved."""
        if epoch != self._epoch_now and not self._is_of_order(epoch):
            self.pace.note(len(samples), now_s)
            return Match([False] * len(samples), 0, 0), False
        left, chance, others, again = self.left, self._chance, 0, 0
        found = self._take(samples)
        if False in found:
            far = [one for one, is_near in zip(samples, found, strict=True) if not is_near]
            before, mine = self.cursor - self._near_now, self._mine
            unannounced = [one for one in far if self._last[one] < before and (mine is None or mine[one])]
            again = len(far) - len(unannounced)
            if certain:
                self._surprises += len(unannounced)
                self._unannounced.note(unannounced)
                others = len(unannounced) if left else 0
        if self._log is not None:
            self._log.append(np.array(samples, np.int64))
        if self.lookup.pages and True in found:
            self.page_places.touch(np.array(list(compress(samples, found))))
        return Match(found, others, again, chance), self.settle_in_time(len(samples), now_s)

    def settle_in_time(self, reads: int, now_s: float) -> bool:
        """Settle if that is due after ``reads`` more reads, and keep the pace. Return whether it was due."""
        waiting = len(self._read) + self._surprises
        due = waiting >= self.most_together or reads >= job_state.SETTLED_MANY
        if now_s - self.pace.last_s >= job_state.SETTLED_AFTER_S:
            due = due or waiting >= _SETTLED_LEAST
            self._keep_pace(now_s)
        if due:
            self.settle(now_s)
        return due

    def _take(self, samples: list[int]) -> list[bool]:
        """Mark each sample's next place as over, if it is near the cursor. Return for each whether it is."""
        next_at, last, links, done, read = self._next, self._last, self._links, self._done, self._read
        limit, found = self.cursor + self._near_now, []
        for sample in samples:
            if is_near := (place := next_at[sample]) <= limit:
                self.left -= not done[place]
                done[place] = True
                next_at[sample], last[sample] = links[place], place
                read.append(place)
            found.append(is_near)
        return found

    def read_many(self, samples: Ids, epoch: int | None, now_s: float, *, certain: bool) -> Match:
        """Note reads, oldest first. ``epoch``: the epoch that they name. ``certain``: surely of this job."""
        found, others, again, by_chance = np.zeros(len(samples), dtype=np.bool_), 0, 0, 0.0
        if not self._is_of_order(epoch):
            self.pace.note(len(samples), now_s)
            return Match(found, 0, 0)
        if self._log is not None:
            self._log.append(samples)
        start = 0
        while start < len(samples):
            stop, left = start + self._near_now // job_state.SETTLED_SHARE, self.left
            mine = samples[start:stop]
            by_chance += self._chance * len(mine)
            found[start:stop] = seen = self._consume(mine)
            if self._read:
                self.hear(now_s)
            far = mine[~seen]
            unannounced = far[self.columns.last_read[far] < self.cursor - self._near_now]
            if self._mine is not None:
                unannounced = unannounced[self._mine[unannounced]]
            again += len(far) - len(unannounced)
            if certain:
                self._surprises += len(unannounced)
                others += len(unannounced) if left else 0
                self._unannounced.note(unannounced.tolist())
            self.settle(now_s)
            start = stop
        return Match(found, others, again, by_chance / max(len(samples), 1))

    def hear(self, now_s: float) -> None:
        """Count an announced read as a sign of life if the order is believed. A read that names no job may be
        of another reader of the same data, and match a false order by chance.
        """
        if self.accuracy.believed and self.job.in_use:
            self.liveness.hear(now_s)

    def _is_of_order(self, epoch: int | None) -> bool:
        """Return whether the order has ``epoch``, or ``epoch`` is None. A later epoch moves the cursor."""
        if epoch is None or epoch == self._epoch_now:
            return True
        if (announced := self.sequence.find(epoch)) is None:
            return False
        self.begin_epoch(announced)
        self._epoch_now = epoch
        return True

    def begin_epoch(self, epoch: Epoch) -> None:
        """Move to ``epoch``, because the job names it: the rest of earlier epochs will not be read."""
        if epoch.start <= self.cursor + self._near_now:
            return
        before = self.sequence.epoch_at(self.cursor)
        if before is not None and self.accuracy.proven:
            self.tail.left(before, self.cursor)
        self.skip_to(epoch.start)
        self._left_until = epoch.start
        self._follow()

    def _consume(self, samples: Ids) -> Bits:
        """Mark the places near the cursor that match ``samples`` as over. Return which samples matched."""
        columns, limit = self.columns, self.cursor + self._near_now
        found, at = np.zeros(len(samples), dtype=np.bool_), np.arange(len(samples))
        for _ in range(_MOST_REPEATS):
            at = at[columns.next_at[samples[at]] <= limit]
            if not len(at):
                break
            firsts = np.sort(np.unique(samples[at], return_index=True)[1])
            ids = samples[at[firsts]]
            places = columns.next_at[ids]
            self.left -= len(places) - int(np.count_nonzero(columns.done[places]))
            columns.done[places] = True
            columns.next_at[ids] = columns.sequence.next[places]
            columns.last_read[ids] = places
            self.page_places.touch(ids)
            self._read += places.tolist()
            found[at[firsts]] = True
            at = np.delete(at, firsts)
        return found

    def settle(self, now_s: float) -> None:
        """Count waiting reads in pace and accuracy. Move the cursor, and mark places far behind as over."""
        self._keep_pace(now_s)
        found, surprises = len(self._read), self._surprises
        if found or surprises:
            self.accuracy.heard(found, surprises)
        self._follow()
        if found > surprises:
            self._sure = self.cursor
        elif surprises > 2 * found and self.accuracy.proven and self._log is None:
            self._follow_unannounced()
        self._paced = 0

    def _follow_unannounced(self) -> None:
        """Move to the next epoch if the latest unannounced reads are among the first of that epoch."""
        before = self.sequence.epoch_at(self._sure)
        after = None if before is None else self.sequence.epoch_at(before.stop)
        if before is None or after is None or after.start < before.stop or after.stop <= self.cursor:
            return
        reads = self._unannounced.begin(self.sequence, after, self.columns.next_at, self._near_now)
        if reads is None:
            return
        self.tail.left(before, self._sure)
        self._unannounced.found(self.accuracy)
        self.skip_to(after.start)
        self._left_until = self._skipped_to = after.start
        self._follow()
        self._consume(reads)
        self._follow()
        self._sure = self.cursor

    def _keep_pace(self, now_s: float) -> None:
        """Add waiting reads to the pace, so that a slow job does not seem silent until its cursor moves."""
        waiting = len(self._read) + self._surprises
        self.pace.note(waiting - self._paced, now_s)
        self._paced = waiting

    def _follow(self) -> None:
        """Move the cursor to the latest reads, and mark the places far behind it as over."""
        read, self._read, self._surprises = self._read, [], 0
        if read:
            read.sort()
            self.cursor = max(self.cursor, read[len(read) // 2])
            late = self.cursor - read[len(read) // _LATE_QUANTILE]
            kept = _LATE_KEPT ** (len(read) / job_state.SETTLED_TOGETHER)
            self._late = max(int(self._late * kept), late)
        at = self.sequence.epoch_at(self.cursor)
        if read and at is not None:
            self.tail.read_to(at, self.cursor)
        self._near_now = near_of(at)
        # Leave no place open further behind than ``_near_now``: reads would match a false order there.
        late = self.cursor - min(2 * self._late + _LATE_MARGIN, self._near_now)
        self._pass(max(late, self._left_until))
        self._chance = self.columns.share_near(at, self.floor, self.cursor, self._near_now)

    def skip_to(self, place: int) -> None:
        """Move the cursor to ``place``, which the job reported. Places far behind do not count as missed."""
        if place > self.cursor:
            if place > self.cursor + self._near_now:
                self._skipped_to = place
            self.cursor = place
            self._near_now = near_of(self.sequence.epoch_at(self.cursor))

    def _pass(self, stop: int) -> None:
        start, stop = self.floor, min(stop, self.floor + _MOST_PASSED)
        if stop <= start:
            return
        if job_state.COMPILED and not self.lookup.pages:
            missed = self.pass_over(self.sequence.ids, start, stop)
        else:
            missed, late = self.columns.pass_over(start, stop)
            self.page_places.touch(late)
        self.left -= missed
        self.floor = stop
        if start >= self._skipped_to:
            self.accuracy.passed(stop - start - missed, missed)

    # ------------------------------------------------------------------ coming reads

    def coming(self, count: int, skip: int) -> NDArray[np.uint32]:
        """Return announced ids that are still to be read, soonest first; see Upcoming."""
        done, wanted, span = self.columns.done, skip + count, skip + count + 2 * self._near_now
        left = np.flatnonzero(~done[self.floor : self.floor + span])
        while len(left) < wanted and self.floor + span < len(done):
            span *= 2
            left = np.flatnonzero(~done[self.floor : self.floor + span])
        found: NDArray[np.uint32] = self.sequence.ids[self.floor + left[skip:wanted]]
        return found

    def places_of(self, samples: list[int]) -> list[int]:
        """Return the place of each sample's next announced read plus ``origin``, or NEVER."""
        places = map(self._next.__getitem__, samples)
        return [NEVER if place == NEVER else place + self.origin for place in places]
