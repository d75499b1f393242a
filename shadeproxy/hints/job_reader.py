"""Job readers: each holds one job, its hints and its activity, so that noting a read of the job takes one
look-up.

Law: a job reader belongs to one registration of its job, one order and one score column. When one of these
three is replaced, ``JobReads`` makes a new job reader.
"""

from itertools import compress

from shadeproxy.hints import job_state
from shadeproxy.hints.datasets import Bits, Dataset
from shadeproxy.hints.job_state import DUE, EXPLAINED, ReaderState
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.activity import JobActivity
from shadeproxy.hints.order.orders import Orders
from shadeproxy.hints.order.tracker import OrderTracker
from shadeproxy.hints.scoreboard import ScoreColumn
from shadeproxy.hints.shared_columns import SharedColumns

_MOST = 64


class JobReader(ReaderState):
    """Notes the reads of one job. ``whole``: its dataset if each sample is a whole object, otherwise None."""

    __slots__ = ("_orders",)

    def __init__(
        self,
        job: Job,
        activity: JobActivity,
        tracker: OrderTracker | None,
        scores: ScoreColumn | None,
        *,
        whole: Dataset | None,
        orders: Orders,
    ) -> None:
        self.job = job
        self.tracker = tracker
        self.whole = whole
        self._activity = activity
        self.scores = scores
        self._orders = orders
        if job_state.COMPILED and whole is not None:
            self.prepare()

    @property
    def says_anything(self) -> bool:
        """True if the job has announced an order or posted scores."""
        return self.tracker is not None or (self.scores is not None and self.scores.known > 0)

    @property
    def most_together(self) -> int:
        """Most reads for one call of ``note_few``. With more reads, the last ones could lie beyond the places
        that count as near the job's place, and would seem unannounced.
        """
        return _MOST if self.tracker is None else self.tracker.most_together

    def count(self, reads: int, tick: float) -> None:
        """Count reads in the job's activity, without comparing them with its order and its scores."""
        self._activity.read(reads, tick)

    def note_few(
        self,
        samples: list[int],
        epoch: int | None,
        now_s: float,
        tick: float,
        shared: SharedColumns | None,
    ) -> list[bool]:
        """Note a few reads of whole objects, by their samples. The sample -1 stands for an object outside the
        dataset: its read counts for the job's activity alone. ``shared``: the shared columns of the dataset,
        if it has any. Return which reads the job's order or scores explain.
        """
        told = self.note(samples, epoch, now_s, tick, shared)
        if told < 0:
            return self._note_few(samples, epoch, now_s, tick, shared)
        if told & DUE:
            self.settle(samples, now_s, shared)
        return [bool(told & EXPLAINED)] * len(samples)

    def settle(self, samples: list[int], now_s: float, shared: SharedColumns | None) -> None:
        """Do what is due after ``note`` has noted reads, but has not told the shared columns of them."""
        tracker = self.tracker
        assert tracker is not None, "only an order settles"
        if tracker.settle_in_time(len(samples), now_s):
            self._orders.read_on(tracker)
        if shared is not None:
            shared.read(self.job, samples, tracker.places_of(samples))

    def _note_few(
        self,
        samples: list[int],
        epoch: int | None,
        now_s: float,
        tick: float,
        shared: SharedColumns | None,
    ) -> list[bool]:
        """Do the same as ``note_few``, in Python."""
        job, activity, tracker, scores = self.job, self._activity, self.tracker, self.scores
        count, again, explains = len(samples), 0, False
        mine = samples if min(samples) >= 0 else [sample for sample in samples if sample >= 0]
        found: Bits | list[bool] = []
        if tracker is not None:
            tracker.liveness.hear(now_s)
            if mine:
                explains = activity.order_explains and job.in_use
                heard, moved = tracker.read_few(mine, epoch, now_s, certain=True)
                if moved:
                    self._orders.read_on(tracker)
                found, others, again, chance = heard
                ordered = sum(found)
                activity.ordered(ordered, others, chance)
                if shared is not None and ordered:
                    used = mine if ordered == len(mine) else list(compress(mine, found))
                    shared.read(job, used, tracker.places_of(used))
        if count > again:
            activity.read(count - again, tick)
        if scores is not None and scores.known and mine and self.whole is not None:
            drawn = activity.scores_explain and job.in_use
            activity.drawn_by(scores, self.whole.count, mine)
            if drawn:
                return [sample >= 0 for sample in samples]
        if not explains:
            return [False] * count
        each = iter(found)
        return list(found) if mine is samples else [sample >= 0 and bool(next(each)) for sample in samples]
