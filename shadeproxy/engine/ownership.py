"""Port to ownership: tells whether this process may answer for an object, where several proxies share a
cache.

Only one proxy of a cluster caches an object (ADR 38), and only while its lease lasts (ADR 39). A proxy
outside a cluster has no ``Ownership``: the engine gets None instead, and answers for every object.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from shadeproxy.core.types import ObjectRef


class Standing(Enum):
    """Right of this process to answer reads of an object."""

    OWN = auto()
    """This process answers from its cache, as the freshness rule allows."""
    CHECK = auto()
    """This process answers from its cache only after a check with the origin that began after the read."""
    FOREIGN = auto()
    """Another proxy caches the object, or no proxy does now. This process neither answers from its cache nor
    stores the object.
    """


Here = frozenset[ObjectRef] | None
"""The objects of a write that this process sends to the origin. The proxies that own the other objects send
these. None: this process sends the write for all objects.
"""


class Began(NamedTuple):
    """The instant before a read of the origin: the trust epoch, and the seconds since boot. With it
    ``Ownership.trusts`` tells later whether the read may have missed a write.
    """

    epoch: int
    at_s: float


class Ownership(Protocol):
    """Calls by which the engine asks the cluster. Only the ``async`` methods wait.

    At each rise of the trust epoch, ``Engine.distrust`` is called before any other code runs. Between two
    rises, an object can stop being OWN only because time passes (``own_for_s``).
    """

    def standing(self, ref: ObjectRef) -> Standing:
        """Return the standing of now. Ask again for each read, because a lease ends by the clock, without a
        call.
        """
        ...

    def may_store(self, ref: ObjectRef) -> bool:
        """Return whether this process may store pages of the object now. False if the object is FOREIGN, and
        also while this process does not know yet which objects are FOREIGN.
        """
        ...

    def own_for_s(self, ref: ObjectRef) -> float:
        """Return for how many seconds from now the object stays OWN if the trust epoch does not rise; 0.0 if
        it is not OWN. A page handle answers for this time without asking again.
        """
        ...

    def begin(self) -> Began:
        """Return the present instant. Call this before the origin is asked, and pass the result to
        ``trusts``.
        """
        ...

    def trusts(self, ref: ObjectRef, began: Began) -> bool:
        """Return whether the answer to a read of the origin, begun at ``began``, may serve later readers as
        the freshness rule allows. If not, its pages are stored, but must be checked once before they answer.

        The answer may serve them if the object was OWN at ``began`` and is OWN now. Besides, no rise of the
        trust epoch in between may concern the object.
        """
        ...

    def mine(self, ref: ObjectRef) -> bool:
        """Return whether only this process may execute writes of the object at this instant."""
        ...

    def writes_here(self, ref: ObjectRef) -> bool:
        """Return whether, by the newest view of the cluster, this process executes the object's writes. It
        may still have to wait until the view is settled.
        """
        ...

    async def wait_until_mine(self, refs: Sequence[ObjectRef]) -> bool:
        """Wait until all objects are ``mine``, but only for a few seconds. Return whether they are."""
        ...

    async def distrust_bucket(self, bucket: str, namespace: str) -> None:
        """Let every proxy of the cluster distrust its cached pages of a bucket, because a write changed the
        rights or the existence of the bucket. Return when all proxies have done so. Raises ShadeProxyError if
        a proxy may not have done so.
        """
        ...


def validated_s(ownership: Ownership | None, ref: ObjectRef, began: Began | None, now_s: float) -> float:
    """Return the time of validation to store with an answer of the origin. It is ``now_s`` (the Unix time at
    which the answer came), or 0.0 if the answer must be checked once more. ``began``: the result of
    ``Ownership.begin`` before the origin was asked.
    """
    if ownership is None or (began is not None and ownership.trusts(ref, began)):
        return now_s
    return 0.0
