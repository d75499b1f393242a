"""Ports around announced orders: questions of eviction and prefetching, and reports of reads.

All sides run on the event loop, and no call waits; answers describe this moment only. Implementations
guarantee: a sample that was read since its announcement is not named again for that occurrence; an order that
reads have contradicted is not used.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext
from shadeproxy.hints.datasets import Hashes, Ids, Sample
from shadeproxy.hints.order.abandoned import Abandoned
from shadeproxy.policy.base import Column


class NextUses(Protocol):
    """Next uses, for eviction.

    ``abandoned``: datasets of jobs that are gone; nearly always empty.
    """

    @property
    def abandoned(self) -> Sequence[Abandoned]: ...

    def next_use_s(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Column:
        """Return the seconds until the earliest announced read of each page, over all live jobs: f64[k].

        ``object_hashes`` and ``numbers`` (both of shape (k,)) name the pages. inf where none is announced; 0
        where it is due. A job's seconds are divided by its weight. Orders that no read has confirmed yet are
        left out.
        """
        ...


class ReadObserver(Protocol):
    """A receiver of demand reads, so that samples that were read are not named again."""

    @property
    def active(self) -> bool:
        """True if reads must be reported."""
        ...

    def note_read(self, object_hash: int, offset: int, job: JobContext | None, now_s: float) -> None:
        """Note a demand read that begins at byte ``offset`` of an object, before its page is ranked.

        ``job``: the job that the reader named.
        """
        ...

    def note_reads(
        self, object_hashes: Hashes, offsets: Ids, jobs: Sequence[JobContext | None], now_s: float
    ) -> None:
        """Note many demand reads, oldest first; all three of shape (k,)."""
        ...


class Outlook(NamedTuple):
    """A live job whose announced order is believed.

    ``rate_per_s``: samples a second, over the ranks that were announced here; nan until measured. ``left``:
    announced samples yet to be read, over all epochs.
    """

    job: str
    rate_per_s: float
    left: int


class Upcoming(Protocol):
    """Upcoming reads, for prefetching."""

    def outlooks(self) -> list[Outlook]:
        """Return the outlook of every live job whose order is believed."""
        ...

    def coming(self, job: str, count: int, *, skip: int = 0) -> NDArray[np.uint32]:
        """Return ids of the announced samples yet to be read, soonest first: at most ``count`` of them
        after the first ``skip``. Empty when the job or its order is gone.
        """
        ...

    def samples(self, job: str, ids: NDArray[np.uint32]) -> list[Sample]:
        """Return the samples' objects and places; empty when the job is gone."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever an order came or went, or a job read on; it must be cheap."""
        ...


class NothingAnnounced:
    """Implements ``NextUses`` and ``ReadObserver`` without any order."""

    active = False
    abandoned: Sequence[Abandoned] = ()

    def next_use_s(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Column:  # noqa: ARG002 - as NextUses
        return np.full(len(object_hashes), np.inf)

    def note_read(self, object_hash: int, offset: int, job: JobContext | None, now_s: float) -> None: ...

    def note_reads(
        self, object_hashes: Hashes, offsets: Ids, jobs: Sequence[JobContext | None], now_s: float
    ) -> None: ...
