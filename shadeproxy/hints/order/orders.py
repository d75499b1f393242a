"""Announced orders of all jobs, and the reads that confirm or contradict them.

Implements Upcoming (upcoming.py) for prefetching. Laws: the time is the latest ``now_s`` of any call. The
order of one job never changes the order of another. After a changed announcement the caller builds the new
order (``begin``, ``Build.run``, ``finish``); until then the old order is used. An order has the samples that
ranks read here. If this proxy owns a share of the objects, it has the samples of all ranks in the share.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import Conflict
from shadeproxy.core.types import JobContext
from shadeproxy.hints.datasets import Bits, Dataset, Hashes, Ids, Sample
from shadeproxy.hints.jobs import Job, Jobs, Progress
from shadeproxy.hints.order.accuracy import JobMatch, Match
from shadeproxy.hints.order.announcements import Announcement, Announcements, order_name, unknown_order
from shadeproxy.hints.order.build import Build, Built
from shadeproxy.hints.order.prepared import Prepared
from shadeproxy.hints.order.sequence import NEVER
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.hints.order.state import OrderState, state_of
from shadeproxy.hints.order.tracker import OrderTracker
from shadeproxy.hints.order.upcoming import Outlook

Dirty = Callable[[str, str], None]


class Orders:
    """Orders of all jobs. ``dataset`` returns a dataset by name. ``dirty`` is called with (kind, name) of
    changed state. ``on_lost`` is called with these orders and the name of a job whose order must be built
    again: its reads no longer match it, or the share has changed. ``on_change`` is called whenever an order
    came or went, or a job read on; it must be cheap.
    """

    def __init__(
        self,
        jobs: Jobs,
        dataset: Callable[[str], Dataset],
        *,
        page_size: int,
        dirty: Dirty,
        on_lost: Callable[["Orders", str], None],
        on_change: Callable[[], None],
        announcements: Announcements | None = None,
    ) -> None:
        self._jobs = jobs
        self._dataset = dataset
        self._page_size = page_size
        self._dirty = dirty
        self.announced = announcements or Announcements()
        self.share: OwnedShare | None = None
        self.part = 1.0
        """The approximate part of all reads that this proxy answers."""
        self.trackers: dict[str, OrderTracker] = {}
        """The trackers by job. It is public, so that a read can test without a call that it is empty."""
        self._resumed: dict[str, Progress] = {}
        self._over: set[str] = set()  # Jobs whose run is over, until they announce again.
        self._unsettled: dict[str, int | None] = {}
        self._restored: set[str] = set()
        self._on_lost = on_lost
        self._changed = on_change
        self.now_s = -math.inf
        self._lapsed: set[str] = set()

    # ------------------------------------------------------------------ announcements

    def put(self, new: Announcement, now_s: float) -> None:
        """Store checked ids; they are used once the order is built. Raises the errors of ``check``.

        A job that announces an earlier epoch than its present one begins there again. So does a job that was
        restarted within an epoch, or that runs again after a run that is over.
        """
        job = self.check(new)
        self.hear(now_s)
        self.announced.put(new)
        self._dirty("orders", order_name(new.job, new.epoch, new.rank))
        if self.announced.is_elsewhere(new.job, new.rank):
            return
        tracker = self.trackers.get(job.name)
        again = job.name in self._over or (
            tracker is not None and tracker.begins_again(new.epoch, new.rank, new.offset, self.now_s)
        )
        if again:
            self._over.discard(job.name)
            self._resumed.pop(job.name, None)
        if tracker is not None:
            tracker.liveness.announce(now_s, begins=again)
        self._restored.discard(job.name)
        self._unsettle(job.name, new.epoch if again else None)

    def check(self, new: Announcement) -> Job:
        """Return the job. Raises InvalidRequest, Conflict (also when the job has another dataset by now)."""
        job = self._jobs.get(new.job)
        if job.dataset is None or self._dataset(job.dataset).digest != new.digest:
            raise Conflict(f"job {job.name!r} was registered again meanwhile", hint="send the order again")
        self.announced.check(new)
        return job

    def move(self, job: str, rank: int, *, elsewhere: bool) -> bool:
        """Note whether a rank reads through another proxy. The job's order has only ranks that read through
        this one. Return whether the order must be built again.
        """
        moved = self.announced.move(job, rank, elsewhere=elsewhere) and job in self.announced
        if moved:
            self._unsettle(job, None)
        return moved

    def set_share(self, share: OwnedShare | None) -> None:
        """Use the orders of all ranks, for samples in ``share`` alone; None: whole orders of the ranks that
        read here. If the share changes, all orders must be built again; until then the old ones are used.
        """
        if share is self.share or (share and self.share and share.number == self.share.number):
            return
        self.share, self.announced.everywhere = share, share is not None
        self.part = 1.0 if share is None else share.part
        for job in {*self.announced.jobs(), *self.trackers}:
            self._unsettle(job, None)
            self._on_lost(self, job)

    def withdraw(self, job: str, epoch: int, rank: int | None, now_s: float) -> None:
        """Forget the announcements of an epoch. Raises UnknownName."""
        self.check_withdrawal(job, epoch, rank)
        self.hear(now_s)
        self._gone(job, self.announced.drop(job, epoch, rank))
        self._unsettle(job, None)

    def check_withdrawal(self, job: str, epoch: int, rank: int | None) -> None:
        """Raise UnknownName if ``withdraw`` would."""
        ranks = self.announced.ranks(self._jobs.get(job).name, epoch)
        if not (ranks if rank is None else rank in ranks):
            raise unknown_order(job, epoch)

    def end(self, job: str, rank: int) -> None:
        """Forget the announcements of an ended rank, which will not read them."""
        gone = self.announced.drop(job, rank=rank)
        if gone:
            self._gone(job, gone)
            self._unsettle(job, None)
        if not self._jobs.get(job).in_use:
            self.end_run(job)
        self._look_for_silence()
        self._changed()

    def end_run(self, job: str) -> None:
        """Forget the place of a job, for its next run; but if it has announcements, one rank may go on."""
        if job not in self.announced:
            self._over.add(job)
            self._resumed.pop(job, None)
            self._dirty("positions", job)

    def forget(self, job: str) -> None:
        """Forget the orders and places of a deleted job."""
        self._gone(job, self.announced.drop(job))
        self._restored.discard(job)
        self._over.discard(job)
        self._unsettled.pop(job, None)
        self._resumed.pop(job, None)
        self._dirty("positions", job)
        if self.trackers.pop(job, None) is not None:
            self._look_for_silence()
            self._changed()

    def progress(self, job: str, rank: int, progress: Progress, now_s: float) -> None:
        """Move a job's place in its order to the position that a rank reports, unless the job is beyond it
        already. A rank that reads through another proxy moves nothing here.
        """
        self.hear(now_s)
        if self.announced.is_elsewhere(job, rank):
            self._gone(job, self.announced.drop_before(job, progress.epoch, rank))
            return
        if self.share is not None:
            self._gone(job, self.announced.drop_before(job, progress.epoch, rank))
        tracker = self.trackers.get(job)
        if tracker is not None:
            tracker.liveness.advance(rank, progress, now_s)
        epoch = None if tracker is None else tracker.sequence.find(progress.epoch)
        if tracker is not None and epoch is not None:
            tracker.begin_epoch(epoch)
            tracker.skip_to(epoch.place(progress.position))
            tracker.settle(now_s)
            self.read_on(tracker)

    # ------------------------------------------------------------------ building order trackers

    def begin(self, job: str) -> Prepared | None:
        """Return the order to build now; None if there is none. A job has only one build at a time."""
        if job not in self._unsettled:
            return None
        back_to = self._unsettled.pop(job)
        registered, parts = self._jobs.get(job), self.announced.of(job)
        assert registered.dataset is not None, "checked before ids are taken in"
        dataset, tracker = self._dataset(registered.dataset), self.trackers.get(job)
        if tracker is None and not parts:
            return None  # All ranks of the job read through other proxies.
        lookups = (other.lookup for other in self.trackers.values() if other.lookup.dataset is dataset)
        unannounced, near = (None, 0) if tracker is None else tracker.unannounced()
        build = Build(
            parts,
            dataset,
            self._page_size,
            lookup=next(lookups, None),
            before=None if tracker is None else tracker.begin(),
            cursor=0 if tracker is None else tracker.cursor,
            back_to=back_to,
            resumed=self._resumed.get(job),
            unannounced=unannounced,
            near=near,
            stops_at=None if tracker is None else tracker.tail.stops_at,
            share=self.share,
        )
        return Prepared(registered, tracker, build)

    def finish(self, prepared: Prepared, built: Built) -> None:
        """Put a built order to use, if its job still exists."""
        job, tracker = prepared.job, prepared.tracker
        if job.name not in self._jobs or self._jobs.get(job.name) is not job:
            return
        if len(built.columns.sequence.ids):
            self._resumed.pop(job.name, None)
        elif (place := self.position(job.name)) is not None:
            self._resumed[job.name] = place  # Keep the place: the order may have samples in the next share.
        if tracker is None:
            restored = job.name in self._restored
            self.trackers[job.name] = OrderTracker(job, built, self.now_s, restored=restored)
        else:
            tracker.finish(built)
        self._changed()

    def settle(self, *jobs: str) -> None:
        """Build the waiting orders, or those of ``jobs``. It holds the thread: for tests only."""
        for job in jobs or list(self._unsettled):
            if (prepared := self.begin(job)) is not None:
                self.finish(prepared, prepared.build.run())

    # ------------------------------------------------------------------ reads

    def note_read(
        self, object_hash: int, offset: int, job: JobContext | None, now_s: float
    ) -> list[JobMatch]:
        """Note a demand read that begins at byte ``offset`` of an object. Return how the read matches the
        order of each job that may have made it.
        """
        self.hear(now_s)
        matches = []
        for tracker, certain in self._readers(job, now_s):
            if (sample := tracker.lookup.find_one(object_hash, offset)) >= 0:
                epoch = None if job is None else job.epoch
                heard = self.note_few(tracker, [sample], epoch, now_s, certain=certain)
                if True in heard.found:
                    tracker.hear(now_s)
                matches.append(JobMatch(tracker.job.name, certain, heard))
        return matches

    def note_few(
        self, tracker: OrderTracker, samples: list[int], epoch: int | None, now_s: float, *, certain: bool
    ) -> Match:
        """Note demand reads, oldest first, of samples of one order."""
        self.hear(now_s)
        heard, moved = tracker.read_few(samples, epoch, now_s, certain=certain)
        if moved:
            self.read_on(tracker)
        return heard

    def note_reads(
        self, object_hashes: Hashes, offsets: Ids, job: JobContext | None, now_s: float
    ) -> list[JobMatch]:
        """Note many demand reads of one job, oldest first; columns of shape (k,)."""
        self.hear(now_s)
        matches = []
        for tracker, certain in self._readers(job, now_s):
            samples = tracker.lookup.find(object_hashes, offsets)
            at = np.flatnonzero(samples >= 0)
            if len(at):
                epoch = None if job is None else job.epoch
                heard = tracker.read_many(samples[at], epoch, now_s, certain=certain)
                self.read_on(tracker)
                found = np.zeros(len(samples), dtype=np.bool_)
                found[at] = heard.found
                matches.append(JobMatch(tracker.job.name, certain, heard._replace(found=found)))
        return matches

    def _readers(self, job: JobContext | None, now_s: float) -> Iterator[tuple[OrderTracker, bool]]:
        """Yield each order whose job may have made the read, and whether that job surely made it."""
        if job is not None:
            tracker = self.trackers.get(job.job)
            if tracker is not None:
                tracker.liveness.hear(now_s)
                yield tracker, True
            return
        if self.trackers:
            users = Counter(other.dataset for other in self._jobs if other.in_use)
            for tracker in self.trackers.values():
                yield tracker, users[tracker.job.dataset] == 1

    def read_on(self, tracker: OrderTracker) -> None:
        name = tracker.job.name
        self._dirty("positions", name)
        over = [epoch for epoch in tracker.sequence.epochs if epoch.stop <= tracker.floor]
        if self.share is not None:
            # An epoch of which this share has no more samples may go on at other proxies. If the share
            # changes, its announcements are needed.
            at = tracker.sequence.epoch_at(min(tracker.cursor, len(tracker.sequence.ids) - 1))
            over = [epoch for epoch in over if at is not None and epoch.number < at.number]
        for epoch in over:
            # Drop announcements of epochs that are over; the sequence keeps their ids until the next build.
            self._gone(name, self.announced.drop(name, epoch.number) if name not in self._unsettled else [])
        if (tracker.is_lost or tracker.is_to_be_cut) and name not in self._unsettled:
            self._unsettle(name, None)
            self._on_lost(self, name)
        self._changed()

    # ------------------------------------------------------------------ next uses

    def tracker(self, job: str) -> OrderTracker | None:
        """Return the order tracker of a job; None if it announced nothing."""
        return self.trackers.get(job)

    def announces(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Bits:
        """Return which pages a believed order of a live job announces; see NextUses."""
        found = np.zeros(len(object_hashes), dtype=np.bool_)
        for tracker in self._believed():
            found |= tracker.page_places.find(object_hashes, numbers) != NEVER
        return found

    def _believed(self) -> Iterator[OrderTracker]:
        for tracker in self.trackers.values():
            if tracker.left and tracker.accuracy.believed and not tracker.has_lapsed(self.now_s):
                yield tracker

    # ------------------------------------------------------------------ methods of upcoming.Upcoming

    def outlooks(self) -> list[Outlook]:
        seen = [(one, one.lookup.dataset.digest) for one in self._believed()]
        return [Outlook(one.job.name, one.pace.rate_per_s, one.left, digest) for one, digest in seen]

    def coming(self, job: str, count: int, *, skip: int = 0) -> NDArray[np.uint32]:
        tracker = self.trackers.get(job)
        return np.empty(0, dtype=np.uint32) if tracker is None else tracker.coming(count, skip)

    def samples(self, job: str, ids: NDArray[np.uint32]) -> list[Sample]:
        tracker = self.trackers.get(job)
        return [] if tracker is None else tracker.lookup.dataset.pick(ids)

    # ------------------------------------------------------------------ display and durable state

    def state(self, job: str) -> OrderState | None:
        """Return the state of a job's order; None if it announced nothing."""
        tracker = self.trackers.get(job)
        return None if tracker is None else state_of(tracker, self.now_s)

    def position(self, job: str) -> Progress | None:
        """Return the epoch and the position of a job in its order; None if its run is over."""
        state = None if job in self._over else self.state(job)
        if state is None or state.epoch is None or state.position is None:
            return self._resumed.get(job)
        return Progress(state.epoch, state.position)

    def restore(self, announcement: Announcement) -> None:
        """Restore a stored announcement. Call ``settle`` after the last one. Raises the errors of ``put``."""
        self.announced.put(announcement)
        self._unsettled[announcement.job] = None
        self._restored.add(announcement.job)

    def resume(self, job: str, progress: Progress) -> None:
        """Restore the place of a job, for the next build."""
        self._resumed[job] = progress

    # ------------------------------------------------------------------ inside

    def tick(self, now_s: float) -> None:
        """Advance the time by which silence is judged, and renew the sign of life of jobs that only read."""
        self.hear(now_s)
        for tracker in self.trackers.values():
            if self.share is not None:
                tracker.liveness.hear_of(tracker.job.seen_s)
            tracker.job.seen_s = max(tracker.job.seen_s, tracker.liveness.last_s)
        self._look_for_silence()

    def _look_for_silence(self) -> None:
        lapsed = {name for name, tracker in self.trackers.items() if tracker.has_lapsed(self.now_s)}
        if lapsed != self._lapsed:
            self._lapsed = lapsed
            self._changed()

    def hear(self, now_s: float) -> None:
        self.now_s = max(now_s, self.now_s)

    def _unsettle(self, job: str, back_to: int | None) -> None:
        known = self._unsettled.get(job)
        self._unsettled[job] = min((at for at in (known, back_to) if at is not None), default=None)

    def _gone(self, job: str, epochs: list[tuple[int, int]]) -> None:
        for epoch, rank in epochs:
            self._dirty("orders", order_name(job, epoch, rank))
