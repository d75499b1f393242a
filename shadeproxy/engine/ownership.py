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
"""The objects of a write that this process sends to the origin. The other objects of the write go to the
proxies that own them. None: this process sends all."""


class Began(NamedTuple):
    """The instant before a read of the origin, as a trust epoch and seconds since boot. It shows later
    whether the read may have missed a write.
    """

    epoch: int
    at_s: float


class Ownership(Protocol):
    """The part of a cluster's protocol that the engine asks. Methods that are plain defs do not wait.

    At each rise of the trust epoch, ``Engine.distrust`` is called before any other code runs. Between two
    rises, an object stops being OWN only because time passes (``own_for_s``).
    """

    def standing(self, ref: ObjectRef) -> Standing:
        """Return the standing at this instant. This reads the clock, because a lease ends without any
        call.
        """
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
        """Return whether, at this instant, this process and no other may execute writes of the object."""
        ...

    def writes_here(self, ref: ObjectRef) -> bool:
        """Return whether the newest view makes this process the executor of the object's writes. It may still
        have to wait until the view is settled.
        """
        ...

    async def wait_until_mine(self, refs: Sequence[ObjectRef]) -> bool:
        """Wait until all objects are ``mine``, for a few seconds at most; return whether they are."""
        ...

    async def distrust_bucket(self, bucket: str, namespace: str) -> None:
        """Let every proxy of the cluster distrust what it caches of a bucket, because a write changed the
        bucket itself: its rights, or its existence. Return when all have done so. Raises ShadeProxyError if
        that cannot be made sure.
        """
        ...


def validated_s(ownership: Ownership | None, ref: ObjectRef, began: Began | None, now_s: float) -> float:
    """Return the time of validation to store with an answer of the origin: ``now_s`` (Unix time), at which it
    came, or 0.0 if it must be checked once more. ``began``: the result of ``Ownership.begin`` before the
    origin was asked.
    """
    if ownership is None or (began is not None and ownership.trusts(ref, began)):
        return now_s
    return 0.0
