"""``FlyingFetches``: the fetches of a prefetcher that are under way."""

from itertools import count
from typing import NamedTuple

from shadeproxy.engine.read.flight import Flight
from shadeproxy.prefetch.walk import Wanted


class Flying(NamedTuple):
    """A fetch under way. ``size_bytes``: the length of its page, or a guess. ``wanted``: None if no order
    announced the page.
    """

    flight: Flight
    size_bytes: int
    began_s: float
    wanted: Wanted | None


class FlyingFetches:
    """The fetches under way, by key."""

    def __init__(self) -> None:
        self._fetches: dict[int, Flying] = {}
        self._keys = count()
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

    def add(self, key: int, flying: Flying) -> None:
        """Note that a fetch has begun."""
        self._fetches[key] = flying
        self.bytes += flying.size_bytes

    def remove(self, key: int) -> Flying:
        """Note that a fetch has ended, and return it."""
        flying = self._fetches.pop(key)
        self.bytes -= flying.size_bytes
        return flying
