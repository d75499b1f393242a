"""The port to ownership: whether this process may answer for an object, where several proxies share a cache.

Only one proxy of a cluster caches an object (ADR 38), and only for as long as its lease lasts (ADR 39). A
proxy that is alone has no ``Ownership``: the engine then gets None, and asks nothing.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from shadeproxy.core.types import ObjectRef


class Standing(Enum):
    """The right of this process to answer reads of an object."""

    OWN = auto()
    """It answers from its cache, by the freshness rule."""
    CHECK = auto()
    """It answers from its cache after a check with the origin that began after the read did."""
    FOREIGN = auto()
    """Another proxy caches the object, or none does now: this cache neither answers nor stores it."""


class Ownership(Protocol):
    """The part of a cluster's protocol that the engine asks. No call waits, except ``wait_until_mine``."""

    def standing(self, ref: ObjectRef) -> Standing:
        """Return the standing at this instant. Reads the clock: a lease ends by time alone."""
        ...

    def mine(self, ref: ObjectRef) -> bool:
        """Return whether this process alone may execute writes of the object at this instant."""
        ...

    def writes_here(self, ref: ObjectRef) -> bool:
        """Return whether the newest view names this process as the one that executes writes of the object,
        whether or not it may do so yet.
        """
        ...

    async def wait_until_mine(self, refs: Sequence[ObjectRef]) -> bool:
        """Wait until all objects are ``mine``, for a few seconds at most; return whether they are."""
        ...
