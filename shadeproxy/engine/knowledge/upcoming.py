"""The seams around announced orders: what eviction asks of them, and what prefetching does.

Both sides live on the event loop and ask plain questions; answers describe this moment only. Whoever
answers guarantees: a sample that was read since its announcement is not named again for that occurrence;
an order that reads have contradicted is not used; nothing here waits.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.knowledge.datasets import Hashes, Sample
from shadeproxy.policy.base import Column


class NextUses(Protocol):
    """What eviction asks."""

    def next_use_s(self, object_hashes: Hashes, numbers: NDArray[np.uint32]) -> Column:
        """Seconds until the earliest announced read of each page, over all live jobs: f64[k].

        ``object_hashes`` and ``numbers`` (both of shape (k,)) name the pages. inf where none is announced;
        0 where it is due.
        """
        ...


class Outlook(NamedTuple):
    """One live job whose announced order is believed.

    ``rate_per_s``: samples a second, over the ranks that were announced here; nan until measured.
    ``left``: announced samples yet to be read, over all epochs.
    """

    job: str
    rate_per_s: float
    left: int


class Upcoming(Protocol):
    """What prefetching asks."""

    def outlooks(self) -> list[Outlook]:
        """Every live job with an order."""
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
