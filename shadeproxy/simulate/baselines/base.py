"""Port of a baseline: a cache of whole objects, which is read and decides by itself."""

from typing import Protocol


class Baseline(Protocol):
    """A cache of a fixed capacity in bytes. ``used_bytes`` never exceeds it.

    The size of a page is the same in all of its reads.
    """

    @property
    def used_bytes(self) -> int: ...

    def __contains__(self, page: object) -> bool:
        """Return whether the page is resident."""
        ...

    def read(self, page: int, size: int) -> bool:
        """Read a page of ``size`` bytes; return whether it was resident."""
        ...
