"""Index of the objects of many datasets. It finds the dataset that has an object, and the object's sample
there.

Without the index, searching a hundred datasets for an object would cost a hundred times as much as searching
one. The index takes 20 to 24 bytes of memory an object. It leaves out a dataset that shares objects with an
earlier dataset of the list; callers search such a dataset by itself. Law: a DatasetIndex never changes, so
any thread may make it and read it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.datasets import Bits, Dataset, Groups, Hashes, Ids

_OWNER_BITS = np.uint64(32)
_SAMPLE = (1 << 32) - 1
_TOGETHER = 100_000
"""Largest number of values that one numpy call reorders. No other thread runs during such a call, so a longer
call would hold up the event loop.
"""


class DatasetIndex:
    """Index of ``datasets``, in which each sample is a whole object of its own. ``indexed``: those of the
    datasets that the index has. An *owner* is the position of a dataset in ``indexed``.
    """

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = datasets
        self.indexed = list(datasets)
        hashes, owned = _sorted(self.indexed)
        while len(again := np.flatnonzero(hashes[1:] == hashes[:-1])):
            pairs: set[int] = set()  # Each pair of owners as one number, because numpy sorts numbers fast.
            for start in range(0, len(again), _TOGETHER):
                some, count = again[start : start + _TOGETHER], np.uint64(len(self.indexed))
                owners, others = owned[some] >> _OWNER_BITS, owned[some + 1] >> _OWNER_BITS
                pairs.update(np.unique(owners * count + others).tolist())
            left_out: set[int] = set()
            for one, other in (divmod(pair, len(self.indexed)) for pair in sorted(pairs)):
                if one not in left_out:
                    left_out.add(other)
            self.indexed = [one for owner, one in enumerate(self.indexed) if owner not in left_out]
            hashes, owned = _sorted(self.indexed)
        self.owner_of = {id(one): owner for owner, one in enumerate(self.indexed)}
        """The owner of each indexed dataset, by ``id(dataset)``."""
        self._groups = Groups(hashes, owned, None)

    def find(self, object_hashes: Hashes) -> tuple[Ids, Ids]:
        """Return the owner and the sample of each object. The owner is -1 if no indexed dataset has the
        object.
        """
        found = self._groups.find(object_hashes)
        owned = self._groups.first(found)
        return np.where(found < 0, -1, owned >> 32), owned & _SAMPLE

    def has(self, object_hashes: Hashes) -> Bits:
        """Return for each object whether an indexed dataset has it: bool[k]."""
        if len(object_hashes) == 1:
            return np.array([self._groups.find_one(object_hashes.item()) >= 0])
        return self._groups.find(object_hashes) >= 0

    def find_one(self, object_hash: int) -> tuple[int, int]:
        """Return the owner and the sample of one object; (-1, -1) if no indexed dataset has the object."""
        owned = self._groups.find_one(object_hash)
        return (-1, -1) if owned < 0 else (owned >> 32, owned & _SAMPLE)


def _sorted(datasets: Sequence[Dataset]) -> tuple[Hashes, Hashes]:
    """Return the hashes of all objects, ascending; and for each hash the owner and the sample, packed into
    one number.
    """
    none = np.empty(0, np.uint64)
    hashes = np.concatenate([none, *(one.groups.hashes for one in datasets)])
    owned = np.concatenate(
        [none]
        + [
            one.groups.members.astype(np.uint64) | np.uint64(owner) << _OWNER_BITS
            for owner, one in enumerate(datasets)
        ]
    )
    # The hashes of each dataset are ascending already, so a stable sort only merges the datasets.
    order = np.argsort(hashes, kind="stable")
    return _gathered(hashes, order), _gathered(owned, order)


def _gathered(column: Hashes, order: NDArray[np.intp]) -> Hashes:
    gathered = np.empty_like(column)
    for start in range(0, len(order), _TOGETHER):
        gathered[start : start + _TOGETHER] = column[order[start : start + _TOGETHER]]
    return gathered
