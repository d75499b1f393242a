"""The port to ownership: whether this process may answer for an object, where several proxies share a cache.

Only one proxy of a cluster caches an object (ADR 38), and only for as long as its lease lasts (ADR 39). A
proxy that is alone has no ``Ownership``: the engine then gets None, and asks nothing.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from shadeproxy.core.types import ObjectRef


class Standing(Enum):
    """The right of this process to answer reads of an object."""

    OWN = auto()
    """It answers from its cache, by the freshness rule."""
    CHECK = auto()
    """It answers from its cache after a check with the origin that began after the read did."""
    FOREIGN = auto()
    """Another proxy caches the object, or none does now: this cache neither answers nor stores it."""


Here = frozenset[ObjectRef] | None
"""The objects of a write that this process sends to the origin; all others are sent to the proxies that own
them. None: all objects are written here.
"""


class Began(NamedTuple):
    """The instant before a read of the origin: the trust epoch, and seconds since boot."""

    epoch: int
    at_s: float


class Ownership(Protocol):
    """The part of a cluster's protocol that the engine asks. Plain defs do not wait.

    At each rise of the trust epoch, ``Engine.distrust`` is called before any other code runs. Between two
    rises, an object stops being OWN by time alone (``own_for_s``).
    """

    def standing(self, ref: ObjectRef) -> Standing:
        """Return the standing at this instant. Reads the clock: a lease ends by time alone."""
        ...

    def own_for_s(self, ref: ObjectRef) -> float:
        """Return for how many seconds from now the object stays OWN, unless the epoch rises; 0.0 if it is not
        OWN. Page handles answer for that long without asking again.
        """
        ...

    def begin(self) -> Began:
        """Return this instant. Take it before the origin is asked, and pass it to ``trusts``."""
        ...

    def trusts(self, ref: ObjectRef, began: Began) -> bool:
        """Return whether the answer to a read that ``began`` then may serve later readers by the freshness
        rule. It may if the object was OWN at that instant, is OWN now, and no rise of the epoch in between
        concerns it. Other answers are stored as pages that must be checked once.
        """
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

    async def distrust_bucket(self, bucket: str, namespace: str) -> None:
        """Return when every proxy of the cluster distrusts what it holds of a bucket, because a write changed
        the bucket itself: its rights, or its existence. Raises ShadeProxyError if that cannot be made sure.
        """
        ...


def validated_s(ownership: Ownership | None, ref: ObjectRef, began: Began | None, now_s: float) -> float:
    """Return the time of validation of an answer of the origin that came at ``now_s`` (Unix time); 0.0 if the
    answer must be checked once. ``began``: the result of ``Ownership.begin`` before the origin was asked.
    """
    if ownership is None or (began is not None and ownership.trusts(ref, began)):
        return now_s
    return 0.0
