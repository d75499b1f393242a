"""A share of a cluster's objects: those that this proxy caches. This proxy answers the reads of these objects
by all ranks.

The proxy sees only the reads of its share, in the announced order. So its order tracker has only the places
of samples in the share. Places, the cursor, the pace, the numbers of reads found and missed, and ticks all
count reads at this proxy. Positions are those of the whole order (``sequence.Epoch``). Scores, frozen columns
and draws cover all samples, because each rank gets all of them.

Laws: an OwnedShare never changes; any thread may use it. Memory is one byte a sample for each dataset with an
order.
"""

from collections.abc import Callable, Hashable
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np

from shadeproxy.hints.datasets import Bits, Hashes
from shadeproxy.hints.order.lookup import Lookup

_ASKED = 4096
_LEAST_PART = 1 / _ASKED


class OwnedShare:
    """The objects that this proxy caches. ``number``: identifies the share. Two shares that have the same
    number have the same objects. ``owns``: returns for each of n object hashes (u64[n]) whether it is in the
    share (bool[n]); any thread may call it. ``owns_one``: the same for one hash, in a hundredth of the time.
    """

    def __init__(
        self,
        number: Hashable,
        owns: Callable[[Hashes], Bits],
        owns_one: Callable[[int], bool] = lambda _hashed: False,
    ) -> None:
        self.number = number
        self.owns = owns
        self.owns_one = owns_one
        self._lock = Lock()
        self._samples: WeakKeyDictionary[Lookup, Bits] = WeakKeyDictionary()
        asked = np.random.default_rng(0).integers(1 << 64, size=_ASKED, dtype=np.uint64, endpoint=False)
        self.part = max(float(np.mean(owns(asked))), _LEAST_PART)
        """The approximate part of all objects that is in the share; never 0."""

    def samples(self, lookup: Lookup) -> Bits:
        """Return which samples of a dataset are in the share: bool[n], always the same array for a lookup.

        The first call for a dataset of a million samples takes as long as ``owns`` takes for them.
        """
        with self._lock:
            found = self._samples.get(lookup)
            if found is None:
                groups = lookup.dataset.groups
                found = groups.spread(self.owns(groups.hashes))
                found.flags.writeable = False
                self._samples[lookup] = found
            return found
