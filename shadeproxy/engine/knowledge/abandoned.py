"""Data sets of jobs that are gone: their pages leave first, the least recent first.

A job that falls silent loses the rank that announcing gave its pages. When it stays away for longer, or has
ended, they must not go on holding places against reads of others for as long as its epochs took. Laws: the
cost is bounded, however many jobs are gone; a data set that a job in use still reads is not abandoned.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shadeproxy.engine.knowledge.book import Book
from shadeproxy.engine.knowledge.datasets import Bits, Dataset, Hashes
from shadeproxy.engine.knowledge.jobs import Job

_MOST = 8  # each costs every ranking of victims a look-up
_REGISTERED_LATELY_S = 300.0


class Abandoned(NamedTuple):
    """The data set of job ``job``, which was last heard of at ``since_s``; 0 when it has ended."""

    job: str
    since_s: float
    dataset: Dataset

    def holds(self, object_hashes: Hashes) -> Bits:
        """Which objects are in it."""
        inside: Bits = self.dataset.groups.find(object_hashes) >= 0
        return inside


def abandoned_by(books: Iterable[Book], jobs: Iterable[Job], now_s: float) -> Sequence[Abandoned]:
    """The data sets of jobs that are gone, those that were left last first."""
    gone = {book.job.name: book for book in books if book.is_gone(now_s)}
    if not gone:
        return ()
    used = {
        job.dataset
        for job in jobs
        if job.name not in gone and job.in_use and now_s - job.seen_s < _REGISTERED_LATELY_S
    }
    latest = sorted(gone.values(), key=lambda book: -book.liveness.last_s)
    found = {
        book.job.dataset: Abandoned(
            book.job.name, book.liveness.last_s if book.job.in_use else 0.0, book.lookup.dataset
        )
        for book in reversed(latest)
        if book.job.dataset not in used
    }
    return tuple(reversed(list(found.values())))[:_MOST]
