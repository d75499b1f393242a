"""Ports of announced orders: eviction and prefetching ask through them for coming reads, and the engine
reports demand reads through them.

Callers and implementations run on the event loop, and no call waits. A result describes this moment only.
Implementations guarantee two things: they do not name an announced read again after it was made, and they do
not use an order that reads have contradicted.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext
from shadeproxy.hints.datasets import Bits, Hashes, Ids, Sample
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import expect


class NextUses(Protocol):
    """Next uses of pages for eviction, from orders and scores. A tick is one demand read of the proxy."""

    def expect(
        self, object_hashes: Hashes, numbers: NDArray[np.uint32], tick: float
    ) -> tuple[Column, Column]:
        """Return two columns of shape (k,). The first has the ticks from ``tick`` until the earliest
        announced read of each page, as far as its job is believed; inf if no read is announced. The second
        has a rate for each page: by how many reads per tick jobs may draw it before that announced read.

        ``object_hashes`` and ``numbers`` (both of shape (k,)) name the pages. A job's times are divided by
        its weight.
        """
        ...

    def announces(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Bits:
        """Return which pages the order of a live job announces: bool[k]."""
        ...


class ReadObserver(Protocol):
    """Receives demand reads, so that samples that were read are no longer named as upcoming."""

    @property
    def active(self) -> bool:
        """True if reads must be reported now."""
        ...

    def note_read(
        self, object_hash: int, offset: int, job: JobContext | None, now_s: float, tick: float
    ) -> bool:
        """Note a demand read that begins at byte ``offset`` of an object, before its page is ranked.

        ``job``: the job that the reader named. ``tick``: the tick of the read. Return whether an order or
        scores explain the read. Such a read teaches nothing about other reads of the page.
        """
        ...

    def note_reads(
        self,
        object_hashes: Hashes,
        offsets: Ids,
        jobs: Sequence[JobContext | None],
        now_s: float,
        tick: float,
    ) -> Bits:
        """Note many demand reads, oldest first; all three columns are of shape (k,). ``tick``: the tick of
        the latest read.

        Return bool[k]: whether an order or scores explain each read.
        """
        ...


class Outlook(NamedTuple):
    """A live job whose announced order is believed.

    ``rate_per_s``: samples a second, over the announced ranks; nan until measured. ``left``: announced
    samples still to be read, over all epochs. ``dataset``: the digest of the dataset that they are of.
    """

    job: str
    rate_per_s: float
    left: int
    dataset: str


class Upcoming(Protocol):
    """Tells prefetching which samples the jobs will read next."""

    def outlooks(self) -> list[Outlook]:
        """Return the outlook of every live job whose order is believed."""
        ...

    def coming(self, job: str, count: int, *, skip: int = 0) -> NDArray[np.uint32]:
        """Return ids of the announced samples still to be read, soonest first: at most ``count`` of them
        after the first ``skip``. Empty if the job or its order no longer exists.
        """
        ...

    def samples(self, job: str, ids: NDArray[np.uint32]) -> list[Sample]:
        """Return the places of the samples; empty if the job no longer exists."""
        ...


class NothingAnnounced:
    """Implements ``NextUses`` and ``ReadObserver`` for a proxy without orders."""

    active = False

    def expect(
        self,
        object_hashes: Hashes,
        numbers: NDArray[np.uint32],  # noqa: ARG002 - as the protocol
        tick: float,  # noqa: ARG002 - as the protocol
    ) -> tuple[Column, Column]:
        return expect([], len(object_hashes))

    def announces(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Bits:  # noqa: ARG002 - as above
        return np.zeros(len(object_hashes), dtype=np.bool_)

    def note_read(
        self,
        object_hash: int,  # noqa: ARG002 - as the protocol
        offset: int,  # noqa: ARG002 - as the protocol
        job: JobContext | None,  # noqa: ARG002 - as the protocol
        now_s: float,  # noqa: ARG002 - as the protocol
        tick: float,  # noqa: ARG002 - as the protocol
    ) -> bool:
        return False

    def note_reads(
        self,
        object_hashes: Hashes,
        offsets: Ids,  # noqa: ARG002 - as the protocol
        jobs: Sequence[JobContext | None],  # noqa: ARG002 - as the protocol
        now_s: float,  # noqa: ARG002 - as the protocol
        tick: float,  # noqa: ARG002 - as the protocol
    ) -> Bits:
        return np.zeros(len(object_hashes), dtype=np.bool_)
