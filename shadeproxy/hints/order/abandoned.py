"""Datasets of jobs that are gone: their pages are evicted first, least recently used first.

A silent job loses the rank that its announcement gave its pages. When it stays silent for longer, or has
ended, its pages must not keep their places until its epochs would be over. Laws: the cost is bounded, however
many jobs are gone; a dataset that another job in use still reads is not abandoned.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shadeproxy.hints.datasets import Bits, Dataset, Hashes
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.tracker import OrderTracker

_MOST = 8  # each adds a lookup to every ranking of eviction candidates
_REGISTERED_LATELY_S = 300.0


class Abandoned(NamedTuple):
    """A dataset that job ``job`` left. ``since_s``: the last sign of life, or 0 when the job has ended."""

    job: str
    since_s: float
    dataset: Dataset

    def holds(self, object_hashes: Hashes) -> Bits:
        """Return for each object hash whether the object is in this dataset."""
        inside: Bits = self.dataset.groups.find(object_hashes) >= 0
        return inside


def abandoned_by(trackers: Iterable[OrderTracker], jobs: Iterable[Job], now_s: float) -> Sequence[Abandoned]:
    """Return the datasets of jobs that are gone, the latest left first, at most ``_MOST``."""
    gone = {tracker.job.name: tracker for tracker in trackers if tracker.is_gone(now_s)}
    if not gone:
        return ()
    used = {
        job.dataset
        for job in jobs
        if job.name not in gone and job.in_use and now_s - job.seen_s < _REGISTERED_LATELY_S
    }
    latest = sorted(gone.values(), key=lambda tracker: -tracker.liveness.last_s)
    found = {
        tracker.job.dataset: Abandoned(
            tracker.job.name, tracker.liveness.last_s if tracker.job.in_use else 0.0, tracker.lookup.dataset
        )
        for tracker in reversed(latest)
        if tracker.job.dataset not in used
    }
    return tuple(reversed(list(found.values())))[:_MOST]
