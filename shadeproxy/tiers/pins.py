"""Pins records whose bodies have living views. A pin costs one weak reference, and ends with the last view.

All views of a record export the buffer of one small ndarray. The buffer protocol keeps this array alive as
long as any slice of a view lives. So a location is pinned while its array is alive, and there is no call to
unpin it. All methods belong to the store's thread. The finaliser of the array may run on any thread and at
any point, so it only appends to a deque, which ``collect`` reads later.
"""

import weakref
from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shadeproxy.tiers.base import Location
from shadeproxy.tiers.location import record_bytes

_Bytes = NDArray[np.uint8]
_SWEEP_AT_LEAST = 1024


class ViewPins:
    """Knows which records have living views of their bodies, by location."""

    def __init__(self) -> None:
        self._arrays: dict[Location, weakref.ref[_Bytes]] = {}
        self._released: dict[Location, weakref.ref[_Bytes]] = {}
        self.unpinned: deque[Location] = deque()
        """Locations that the next ``collect`` returns."""

        self._sweep_at = _SWEEP_AT_LEAST

    def __len__(self) -> int:
        """Return the number of released locations that still have living views."""
        return len(self._released)

    @property
    def released_bytes(self) -> int:
        """Bytes of the records of these locations."""
        return int(record_bytes(np.array([*self._released], np.int64)).sum())

    def find(self, location: Location) -> _Bytes | None:
        """Return the array behind the living views of ``location``, so that another view can be made. Return
        None if no view lives.
        """
        reference = self._arrays.get(location)
        return None if reference is None else reference()

    def forget(self, location: Location) -> bool:
        """Forget ``location``, unless a view of it lives. Return whether ``location`` is forgotten."""
        reference = self._arrays.get(location)
        if reference is None:
            return True
        if reference() is not None:
            return False
        del self._arrays[location]
        return True

    def add(self, location: Location, body: _Bytes) -> None:
        """Watch ``body``, the array whose views are about to be handed out."""
        if len(self._arrays) >= self._sweep_at:
            self._arrays = {place: ref for place, ref in self._arrays.items() if ref() is not None}
            # The next sweep comes at twice the number of living arrays, so the cost of each pin stays
            # constant.
            self._sweep_at = max(_SWEEP_AT_LEAST, 2 * len(self._arrays))
        self._arrays[location] = weakref.ref(body)

    def release(self, location: Location) -> bool:
        """Release ``location``. Return True if it has no living view. Otherwise ``collect`` returns it
        later.
        """
        reference = self._arrays.pop(location, None)
        body = None if reference is None else reference()
        if body is None:
            return True
        unpinned = self.unpinned
        self._released[location] = weakref.ref(body, partial(_note, unpinned, location))
        return False

    def collect(self) -> list[Location]:
        """Return the released locations that lost their last view since the last call."""
        gone: list[Location] = []
        while self.unpinned:
            location = self.unpinned.popleft()
            del self._released[location]
            gone.append(location)
        return gone


def _note(unpinned: deque[Location], location: Location, _: object) -> None:
    unpinned.append(location)
