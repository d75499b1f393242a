"""``FlyingFetches``: the fetches under way, and whether the origin's link takes one more.

Law: a fetch that only waits at the other end of a full link brings its page no earlier, but lets every read
of other clients wait behind it. So on a full link there are only as many fetches as keep it full
(origin/link_depth.py; docs/adr/0077).
"""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from shadeproxy.engine.read.flight import Flight
from shadeproxy.origin.link_depth import LinkDepth
from shadeproxy.prefetch.walk import Wanted

_FEW_FETCHES = 2
"""Number of fetches that are always allowed. Readers have reads of their own under way beside them."""


class Flying(NamedTuple):
    """A fetch under way. ``size_bytes``: the length of its page, or a guess. ``wanted``: None if no order
    announced the page.
    """

    flight: Flight
    size_bytes: int
    began_s: float
    wanted: Wanted | None


class FlyingFetches:
    """The fetches under way. ``now_s``: returns a monotonic time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._fetches: dict[int, Flying] = {}
        self._keys = count()
        self._link = LinkDepth(now_s, few_reads=_FEW_FETCHES)
        self.bytes = 0
        """Bytes of their pages, as far as known."""

    def __len__(self) -> int:
        return len(self._fetches)

    def next_key(self) -> int:
        """Return a key for a new fetch. Another version of the same page may be under way, so the page is no
        key.
        """
        return next(self._keys)

    def keys_of(self, job: str | None) -> list[int]:
        """Return the keys of the fetches for one job; None: of all fetches."""
        of = self._fetches.items()
        return [key for key, one in of if job is None or (one.wanted is not None and one.wanted.job == job)]

    def has_room(self) -> bool:
        """Return whether the link takes one more fetch."""
        return self._link.has_room(len(self._fetches), self.bytes)

    def add(self, key: int, flying: Flying) -> None:
        """Note that a fetch has begun."""
        self._link.note(len(self._fetches), self.bytes, 0)
        self._fetches[key] = flying
        self.bytes += flying.size_bytes

    def remove(self, key: int, *, has_come: bool) -> Flying:
        """Note that a fetch has ended, and return it. ``has_come``: its page has arrived."""
        flying = self._fetches[key]
        self._link.note(len(self._fetches), self.bytes, flying.size_bytes if has_come else 0)
        del self._fetches[key]
        self.bytes -= flying.size_bytes
        return flying
