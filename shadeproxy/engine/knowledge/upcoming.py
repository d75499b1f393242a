"""The seams around announced orders: what eviction asks, what prefetching asks, and what they are told of.

All sides live on the event loop and ask plain questions; answers describe this moment only. Whoever answers
guarantees: a sample that was read since its announcement is not named again for that occurrence; an order
that reads have contradicted is not used; nothing here waits.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext
from shadeproxy.engine.knowledge.abandoned import Abandoned
from shadeproxy.engine.knowledge.datasets import Hashes, Ids, Sample
from shadeproxy.policy.base import Column


class NextUses(Protocol):
    """Next uses, for eviction.

    ``abandoned``: data sets of jobs that are gone; empty nearly always.
    """

    @property
    def abandoned(self) -> Sequence[Abandoned]: ...

    def next_use_s(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Column:
        """Seconds until the earliest announced read of each page, over all jobs that still speak: f64[k].

        ``object_hashes`` and ``numbers`` (both of shape (k,)) name the pages. inf where none is announced;
        0 where it is due. A job's seconds are divided by its weight. Orders that no read has confirmed yet
        are left out.
        """
        ...


class NotesReads(Protocol):
    """Who is told of demand reads, so that what was read is not named again."""

    @property
    def active(self) -> bool:
        """Whether it wants to be told."""
        ...

    def note_read(self, object_hash: int, offset: int, job: JobContext | None, now_s: float) -> None:
        """A demand read that begins at byte ``offset`` of an object, told before its page is ranked.

        ``job``: whose the reader said it is.
        """
        ...

    def note_reads(
        self, object_hashes: Hashes, offsets: Ids, jobs: Sequence[JobContext | None], now_s: float
    ) -> None:
        """Many demand reads, oldest first; all three of shape (k,)."""
        ...


class Outlook(NamedTuple):
    """One job that still speaks, and whose announced order is believed.

    ``rate_per_s``: samples a second, over the ranks that were announced here; nan until measured.
    ``left``: announced samples yet to be read, over all epochs.
    """

    job: str
    rate_per_s: float
    left: int


class Upcoming(Protocol):
    """What prefetching asks."""

    def outlooks(self) -> list[Outlook]:
        """Every such job with an order."""
        ...

    def coming(self, job: str, count: int, *, skip: int = 0) -> NDArray[np.uint32]:
        """Ids of the announced samples yet to be read, soonest first: at most ``count`` of them after the
        first ``skip``. Empty when the job or its order is gone.
        """
        ...

    def samples(self, job: str, ids: NDArray[np.uint32]) -> list[Sample]:
        """Where the samples are; empty when the job is gone."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever an order came or went, or a job read on; it must be cheap."""
        ...


class NothingAnnounced:
    """Implements ``NextUses`` and ``NotesReads`` for who has no orders."""

    active = False
    abandoned: Sequence[Abandoned] = ()

    def next_use_s(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Column:  # noqa: ARG002 - as NextUses
        return np.full(len(object_hashes), np.inf)

    def note_read(self, object_hash: int, offset: int, job: JobContext | None, now_s: float) -> None: ...

    def note_reads(
        self, object_hashes: Hashes, offsets: Ids, jobs: Sequence[JobContext | None], now_s: float
    ) -> None: ...
