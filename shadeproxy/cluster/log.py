"""The port to a cluster's log: the server, Redis or Valkey, that carries leases, views, events and blobs.

The log may lose everything at any time. Each of its lives has an *incarnation*, and a new life starts closed:
it grants no lease and has no view until a node opens it. Whatever was lost is published again by the nodes.

The log is not trusted. Facts of nodes, events and names are sealed above this port (``signed.py``), and a
blob is checked against its digest here. Every call is bounded by a timeout, and raises ``ClusterUnavailable``
and nothing else.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shadeproxy.telemetry.counters import ClusterCounters

BLOB_BYTES = 512 * 1024
"""The most bytes of one blob. Longer content is put in pieces, so that no call occupies the loop for long."""

BEGINNING = "0-0"
"""The position before the first event of a stream."""


class ViewId(NamedTuple):
    """The name of a view: the incarnation of the log in which it was proposed, and its number there."""

    inc: str
    number: int


class Seat(NamedTuple):
    """One node of a view, as the log keeps it.

    ``facts``: sealed, opaque to the log. ``away``: the node's lease is over, and other nodes act for it until
    it is back.
    """

    node: str
    facts: bytes
    away: bool = False


class ViewRecord(NamedTuple):
    """A numbered list of nodes, sorted by node. Number 0 has no nodes: the log has no view yet."""

    number: int
    seats: tuple[Seat, ...]


NO_VIEW = ViewRecord(0, ())


class Beat(NamedTuple):
    """The periodic request of a node for a lease. ``boot``: a random name of this life of the node's process.
    ``acked``: the view that the node has adopted. ``inc``: the incarnation that the node knows; "" before its
    first answer. ``kept``: the incarnation before, if the node had a lease of it when it first saw ``inc``.
    """

    node: str
    boot: str
    acked: ViewId | None
    inc: str = ""
    kept: str = ""


@dataclass(frozen=True, slots=True, order=True)
class NodeRecord:
    """The log's record of one node of the views that count.

    ``count`` changes with every beat that was granted and when the node enters a view, and is never used
    twice in an incarnation. ``acked``: number of the newest view that the node has adopted. ``retired``:
    another node proved that the lease is over. ``forgotten``: an operator removed the node.
    """

    node: str
    count: int
    acked: int
    retired: bool
    forgotten: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatAnswer:
    """The log's state at one instant. It is adopted whole, or not at all.

    ``time_s``: the server's Unix time. ``closed``: the incarnation grants nothing yet, and all fields below
    are empty. ``seat_kept``: the incarnation is open, and keeps the seat for the process that had it in
    the incarnation before. The node must beat again, because only now it knows the incarnation; all fields
    below are empty. ``token``: the name of the granted lease, "" if none was granted. It changes when a lease
    was over before the beat. ``taken``: the lease belongs to another process with the same node id.
    ``forgotten``: an operator removed this node. ``settled``: the newest view for which no node can still act
    by an older one. ``nodes``: records of all nodes of the views from ``settled`` to ``view``, sorted.
    """

    inc: str
    time_s: float = 0.0
    closed: bool = False
    seat_kept: bool = False
    token: str = ""
    taken: bool = False
    forgotten: bool = False
    view: ViewRecord = NO_VIEW
    settled: ViewRecord = NO_VIEW
    nodes: tuple[NodeRecord, ...] = ()


class Event(NamedTuple):
    """One entry of a stream. ``position`` grows within a stream, and means nothing after the log lost it."""

    stream: str
    position: str
    body: bytes


class ClusterLog(Protocol):
    """Leases and views, then streams, names and blobs, of one cluster. ``counters``: counts the calls."""

    counters: ClusterCounters

    async def peek(self) -> ViewRecord:
        """Return the newest view, and change nothing. Only a diagnosis may use it, because the view may be of
        an incarnation that is over.
        """
        ...

    async def beat(self, beat: Beat) -> BeatAnswer:
        """Ask for a lease. Only nodes of the current view get one. Also record the acknowledgement, and
        settle the view if each node that must acknowledge it has done so or is retired.
        """
        ...

    async def open(self, inc: str) -> None:
        """Open the incarnation. Does nothing if the log is in another one by now."""
        ...

    async def retire(self, inc: str, node: str, count: int) -> bool:
        """End a lease, if the node's count is still ``count`` (compare and set); return whether it ended.

        The caller must know that the lease is over: by its own clock, or because it is its own.
        """
        ...

    async def propose(self, base: ViewId, seats: Sequence[Seat], *, kept: str = "") -> ViewId | None:
        """Replace the view ``base`` (compare and set); return the new view's id, or None if the log has
        another view or incarnation by now, or is closed. ``base.number`` 0: the log must have no view.

        ``kept``: the incarnation before, in which this was the settled view when it ended. The incarnation
        must still be closed. It is opened, and each seat is kept for the process that had it before, until
        another node retires it.
        """
        ...

    async def forget(self, inc: str, node: str) -> None:
        """Mark the node as removed by an operator. A restart of the node's process lifts the mark."""
        ...

    async def append(self, stream: str, body: bytes) -> str:
        """Append an event, and return its position. The log drops the oldest events of a long stream."""
        ...

    async def read(self, after: Mapping[str, str], wait_s: float) -> list[Event]:
        """Return events of the streams after the given positions, in order within a stream; at most a few
        hundred. Waits up to ``wait_s`` for the first, then returns an empty list.
        """
        ...

    async def claim(self, name: str, value: bytes, *, instead_of: bytes | None = None) -> bytes:
        """Give ``name`` a value if it has none, or has ``instead_of``; return the value that it has then."""
        ...

    async def release(self, name: str, value: bytes) -> bool:
        """Remove ``name`` if it has this value; return whether it had."""
        ...

    async def names(self) -> dict[str, bytes]:
        """Return all claimed names with their values."""
        ...

    async def put_blob(self, digest: str, data: bytes) -> None:
        """Store at most ``BLOB_BYTES`` for a day. ``digest`` is ``digest_of(data)``."""
        ...

    async def get_blob(self, digest: str) -> bytes | None:
        """Return the bytes, and keep them for another day; None if the log lacks them, or has other bytes
        than those of the digest.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def digest_of(data: bytes) -> str:
    """Return the cryptographic digest by which a blob is named: BLAKE2b, 256 bits, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()
