"""The interface and the names of the baselines, and the replay of a trace through a baseline.

A baseline is a policy of the literature with its own cache: it holds whole objects, and decides what it
keeps.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shadeproxy.simulate.baselines.arc import Arc
from shadeproxy.simulate.baselines.s3fifo import S3Fifo
from shadeproxy.simulate.baselines.sieve import Sieve
from shadeproxy.simulate.baselines.tinylfu import WTinyLfu
from shadeproxy.simulate.baselines.two_queue import TwoQueue
from shadeproxy.simulate.trace import Trace


class Baseline(Protocol):
    """A cache with a fixed capacity in bytes. ``used_bytes`` never exceeds the capacity.

    A page has the same size in all of its reads.
    """

    @property
    def used_bytes(self) -> int: ...

    def __contains__(self, page: object) -> bool:
        """Return whether the page is resident."""
        ...

    def read(self, page: int, size: int) -> bool:
        """Read a page of ``size`` bytes; return whether it was resident."""
        ...


BASELINES: Mapping[str, Callable[[int, int], Baseline]] = MappingProxyType({
    "s3-fifo": lambda capacity_bytes, _pages: S3Fifo(capacity_bytes),
    "w-tinylfu": WTinyLfu,
    "arc": lambda capacity_bytes, _pages: Arc(capacity_bytes),
    "2q": lambda capacity_bytes, _pages: TwoQueue(capacity_bytes),
    "sieve": lambda capacity_bytes, _pages: Sieve(capacity_bytes),
})  # fmt: skip
"""The baselines by name. A value makes a cache from its capacity in bytes, and from the number of pages of
mean size that fit.
"""


def baseline_hits(name: str, trace: Trace, capacity_bytes: int) -> NDArray[np.bool_]:
    """Return which reads of the trace are hits in the cache of the baseline ``name``, as bool[n]."""
    pages = capacity_bytes * trace.objects // max(trace.total_bytes, 1)
    read = BASELINES[name](capacity_bytes, pages).read
    if trace.sizes is None:
        hits = [read(page, 1) for page in trace.ids.tolist()]
    else:
        sizes = trace.sizes[trace.ids].tolist()
        hits = [read(page, size) for page, size in zip(trace.ids.tolist(), sizes, strict=True)]
    return np.array(hits, dtype=np.bool_)
