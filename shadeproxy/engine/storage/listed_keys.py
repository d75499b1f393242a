"""``ListedKeys``: the keys under a prefix that a listing has read, kept for the calls that continue it.

Without it, each call of a listing in parts would read the keys of all objects again. No I/O. Not thread-safe:
one call uses it at a time, on the loop or in a thread.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.storage.object_names import Hashes, are_among, distinct

MOST_KEYS = 1 << 14
"""Most keys that are kept, beside 8 bytes for each object."""
_FRESH = 1024  # Keys that are merged into the sorted ones at a time. This takes about 1 ms.

_Key = tuple[bytes, int]  # The octets of a key, by which it is ordered, and the hash of its object.


class ListedKeys:
    """The first keys of ``bucket`` under ``prefix`` that come after ``after``, and the hashes of all other
    objects whose keys were read.
    """

    def __init__(self, place: ObjectRef, after: bytes) -> None:
        self.calls = 0
        """Number of parts that were returned so far."""
        self._place = place
        self._after = after
        self._keys: list[_Key] = []  # Sorted, the first ones. All others are behind them.
        self._fresh: list[_Key] = []
        self._is_full = False  # True if other keys are behind ``_keys``.
        self._new_behind: list[int] = []
        self._behind: Hashes = np.zeros(0, np.uint64)
        self._passed: Hashes = np.zeros(0, np.uint64)

    def reaches(self, after: bytes) -> bool:
        """Return whether a listing may go on after the key ``after``."""
        return after >= self._after

    def is_known(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Return of which objects the keys need not be read: bool[n]."""
        kept = np.sort(self._hashes(0))
        return are_among(hashes, kept) | are_among(hashes, self._behind) | are_among(hashes, self._passed)

    def wants(self, ref: ObjectRef, hashed: int) -> bool:
        """Note an object whose key was just read. Return whether it is listed, now or later."""
        if not ref.is_under(*self._place):
            return False
        octets = octets_of(ref.key)
        if octets <= self._after:
            return False
        if self._is_full and octets > self._keys[-1][0]:
            self._new_behind.append(hashed)
        else:
            self._fresh.append((octets, hashed))
            if len(self._fresh) >= _FRESH:
                self._merge()
        return True

    def add_passed(self, hashes: Hashes) -> None:
        """Note objects that ``wants`` does not want. Call it when the keys of all objects were read."""
        self._merge()
        self._passed = distinct(np.concatenate((self._passed, hashes)))
        self._behind = distinct(np.concatenate((self._behind, np.array(self._new_behind, np.uint64))))
        self._new_behind = []

    def part(self, resident: Hashes, after: bytes, limit: int) -> tuple[list[ObjectRef], int] | None:
        """Return the first ``limit`` objects after ``after`` that are in ``resident``, and the number of
        those that follow. Return None if the keys do not suffice: call ``begin_at`` then.
        """
        start = bisect_right(self._keys, (after, 1 << 64))
        there = np.flatnonzero(are_among(self._hashes(start), resident)) + start
        behind = int(are_among(self._behind, resident).sum())
        if len(there) < limit and behind:
            return None
        bucket, _, namespace = self._place
        refs = [
            ObjectRef(bucket, self._keys[place][0].decode("utf-8", "surrogateescape"), namespace)
            for place in there[:limit].tolist()
        ]
        self.calls += 1
        return refs, len(there) - len(refs) + behind

    def begin_at(self, after: bytes, resident: Hashes) -> None:
        """Keep only keys after ``after``, of objects that are in ``resident``. The keys of the objects behind
        the present ones must be read again.
        """
        first = bisect_right(self._keys, (after, 1 << 64))
        self._passed = distinct(np.concatenate((self._passed, self._hashes(0)[:first])))
        there = np.flatnonzero(are_among(self._hashes(first), resident)) + first
        self._keys = [self._keys[place] for place in there.tolist()]
        self._after, self._is_full, self._behind = after, False, np.zeros(0, np.uint64)

    def _hashes(self, start: int) -> Hashes:
        keys: Sequence[_Key] = self._keys[start:]
        return np.fromiter((hashed for _, hashed in keys), np.uint64, len(keys))

    def _merge(self) -> None:
        self._keys = sorted([*self._keys, *self._fresh])
        self._fresh = []
        if len(self._keys) > MOST_KEYS:
            self._new_behind += [hashed for _, hashed in self._keys[MOST_KEYS:]]
            del self._keys[MOST_KEYS:]
            self._is_full = True


def octets_of(key: str) -> bytes:
    """Return the bytes by which keys are ordered. A key that is not valid UTF-8 is ordered by the bytes as
    received.
    """
    return key.encode("utf-8", "surrogateescape")
