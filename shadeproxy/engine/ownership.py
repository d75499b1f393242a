"""The port to ownership: whether this process may answer for an object, where several proxies share a cache.

Only one proxy of a cluster caches an object (ADR 38), and only for as long as its lease lasts (ADR 39). A
proxy that is alone has no ``Ownership``: the engine gets None instead, and answers for every object.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from shadeproxy.core.types import ObjectRef


class Standing(Enum):
    """The right of this process to answer reads of an object."""

    OWN = auto()
    """This process answers from its cache, by the freshness rule."""
    CHECK = auto()
    """This process answers from its cache after a check with the origin. The check begins after the read
    did.
    """
    FOREIGN = auto()
    """Another proxy caches the object, or none does now: this process neither answers from its cache nor
    stores.
    """


Here = frozenset[ObjectRef] | None
"""The objects of a write that this process sends to the origin. The other objects of the write go to the
proxies that own them. None: this process sends the write for all objects.
"""


class Began(NamedTuple):
    """The instant before a read of the origin, as a trust epoch and seconds since boot. From this instant
    ``Ownership.trusts`` tells later whether the read may have missed a write.
    """

    epoch: int
    at_s: float


class Ownership(Protocol):
    """The part of a cluster's protocol that the engine asks. Only the ``async`` methods wait.

    At each rise of the trust epoch, ``Engine.distrust`` is called before any other code runs. Between two
    rises, an object stops being OWN only because time passes (``own_for_s``).
    """

    def standing(self, ref: ObjectRef) -> Standing:
        """Return the standing at this instant. Ask again for each read, because a lease ends by the clock,
        without any call.
        """
        ...

    def may_store(self, ref: ObjectRef) -> bool:
        """Return whether this process may store pages of the object now. False if the object is FOREIGN, and
        while this process does not know yet which objects are.
        """
        ...

    def own_for_s(self, ref: ObjectRef) -> float:
        """Return for how many seconds from now the object stays OWN, unless the trust epoch rises; 0.0 if it
        is not OWN. Page handles answer for this time without asking again.
        """
        ...

    def begin(self) -> Began:
        """Return this instant. Call this before the origin is asked, and pass the result to ``trusts``."""
        ...

    def trusts(self, ref: ObjectRef, began: Began) -> bool:
        """Return whether the answer to a read of the origin, begun at ``began``, may serve later readers by
        the freshness rule. If not, its pages are stored as pages that must be checked once.

        The answer may serve them if the object was OWN at ``began`` and is OWN now, and if no rise of the
        trust epoch in between concerns the object.
        """
        ...

    def mine(self, ref: ObjectRef) -> bool:
        """Return whether, at this instant, this process and no other may execute writes of the object."""
        ...

    def writes_here(self, ref: ObjectRef) -> bool:
        """Return whether the newest view makes this process the executor of the object's writes. The process
        may still have to wait until the view is settled.
        """
        ...

    async def wait_until_mine(self, refs: Sequence[ObjectRef]) -> bool:
        """Wait until all objects are ``mine``, for a few seconds at most. Return whether they are."""
        ...

    async def distrust_bucket(self, bucket: str, namespace: str) -> None:
        """Let every proxy of the cluster distrust its cached pages of a bucket, because a write changed the
        rights or the existence of the bucket. Return when all proxies have done so. Raises ShadeProxyError if
        a proxy may not have done so.
        """
        ...


def validated_s(ownership: Ownership | None, ref: ObjectRef, began: Began | None, now_s: float) -> float:
    """Return the time of validation to store with an answer of the origin: ``now_s``, the Unix time at which
    the answer came, or 0.0 if it must be checked once more. ``began``: the result of ``Ownership.begin``
    before the origin was asked.
    """
    if ownership is None or (began is not None and ownership.trusts(ref, began)):
        return now_s
    return 0.0
