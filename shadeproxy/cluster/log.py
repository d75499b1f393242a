"""The port to a cluster's log: the server, Redis or Valkey, that carries leases, views, events and blobs.

The log may lose everything at any time. An *incarnation* is one life of the log: from a start without data to
the next such start. A new incarnation is closed: it grants no lease and has no view until a node opens it.
The nodes then publish again the hints that the log lost.

The log is not trusted. The callers of this port seal the facts of nodes, events and names (``signed.py``),
and this port checks each blob against its digest. Every call is bounded by a timeout, and raises
``ClusterUnavailable`` and nothing else.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shadeproxy.telemetry.counters import ClusterCounters

BLOB_BYTES = 512 * 1024
"""The most bytes of one blob. Longer content is stored as several blobs, so that no call occupies the event
loop for long.
"""

BLOB_S = 86_400
"""Seconds for which the log keeps a blob of a snapshot."""
EVENT_BLOB_S = 1_800
"""Seconds for which the log keeps a blob of an order or a frozen column that was just sent. A snapshot has
blobs of its own with these hints a minute or two later.
"""
REPLACED_BLOB_S = 300
"""Seconds for which the log keeps blobs of a snapshot that was replaced: a proxy may be reading it."""

STREAM = "k"
"""The stream of all changes except scores."""
BEGINNING = "0-0"
"""The position before the first event of a stream."""


class ViewId(NamedTuple):
    """The name of a view: the incarnation of the log in which it was proposed, and its number there."""

    inc: str
    number: int


class Seat(NamedTuple):
    """One node of a view, as the log keeps it.

    ``facts``: the node's facts, sealed; the log does not read them. ``away``: the node's lease is over, and
    other nodes act for it until it is back.
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
    """The periodic request of a node for a lease. ``boot``: a random name of the node's process, new at each
    start. ``acked``: the view that the node has adopted. ``inc``: the incarnation that the node knows; ""
    before its first answer. ``kept``: the incarnation before ``inc``, if the node had a lease of that one
    when it first saw ``inc``.
    """

    node: str
    boot: str
    acked: ViewId | None
    inc: str = ""
    kept: str = ""


@dataclass(frozen=True, slots=True, order=True)
class NodeRecord:
    """The log's record of a node that has a seat in the settled view, in the newest view, or in one between.

    ``count`` changes with every granted beat, and when the node enters a view. No value of it is used twice
    in an incarnation. ``acked``: number of the newest view that the node has adopted. ``retired``: a node has
    recorded that this node's lease is over. ``forgotten``: an operator removed the node.
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
    are empty. ``seat_kept``: the incarnation is open, and keeps the node's seat for the process that had it
    in the incarnation before. The node must beat again, and name the incarnation that it has just learnt, to
    show that it is that process; all fields below are empty. ``token``: the name of the granted lease, "" if
    none was granted. The name changes if the node's lease was over before the beat. ``taken``: the lease
    belongs to another process with the same node id. ``forgotten``: an operator removed this node.
    ``settled``: the newest view for which no node can still act by an older one. ``nodes``: records of all
    nodes of the views from ``settled`` to ``view``, sorted.
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
    """One entry of a stream. ``position`` grows from entry to entry of the stream. Once the log has lost the
    stream, a position in it means nothing.
    """

    stream: str
    position: str
    body: bytes


class ClusterLog(Protocol):
    """The leases, views, streams, names and blobs of one cluster. ``counters``: counts the calls to the
    server.
    """

    counters: ClusterCounters

    async def peek(self) -> ViewRecord:
        """Return the newest view, and change nothing. Only a diagnosis may use this view, because it may
        belong to an incarnation that is over.
        """
        ...

    async def beat(self, beat: Beat) -> BeatAnswer:
        """Ask for a lease; only nodes of the current view get one. The beat also tells the log which view the
        node has adopted. The log settles a view when each node that must adopt it has adopted it or is
        retired.
        """
        ...

    async def open(self, inc: str) -> None:
        """Open the incarnation. Do nothing if the log is in another incarnation by now."""
        ...

    async def retire(self, inc: str, node: str, count: int) -> bool:
        """End the lease of ``node``, if the node's count is still ``count`` (compare and set). Return whether
        it ended.

        The caller must know that the lease is over by the caller's own clock, or the lease must be the
        caller's own.
        """
        ...

    async def propose(self, base: ViewId, seats: Sequence[Seat], *, kept: str = "") -> ViewId | None:
        """Replace the view ``base`` by a view with ``seats`` (compare and set). Return the new view's id, or
        None if the log has another view or incarnation by now, or is closed. ``base.number`` 0: the log must
        have no view.

        ``kept``: if this call restores a view, the name of the incarnation that ended with ``seats`` as its
        settled view; else "". To restore a view, the new incarnation must still be closed. The call opens it,
        and each seat is kept for the process that had it before, until another node retires the node.
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
        hundred. If there are none, wait up to ``wait_s`` for the first one, then return an empty list.
        """
        ...

    async def claim(self, name: str, value: bytes, *, instead_of: bytes | None = None) -> bytes:
        """Give ``name`` the value if it has none, or has ``instead_of``. Return the value that the name has
        afterwards.
        """
        ...

    async def release(self, name: str, value: bytes) -> bool:
        """Remove ``name`` if it has this value; return whether it had this value."""
        ...

    async def names(self) -> dict[str, bytes]:
        """Return all claimed names with their values."""
        ...

    async def put_blob(self, digest: str, data: bytes, keep_s: int = BLOB_S) -> None:
        """Store at most ``BLOB_BYTES`` for ``keep_s``. ``digest`` is ``digest_of(data)``."""
        ...

    async def get_blob(self, digest: str) -> bytes | None:
        """Return the bytes of a blob. Return None if the log lacks the blob, or has bytes that do not fit the
        digest.
        """
        ...

    async def keep_blobs(self, digests: Collection[str], keep_s: int = BLOB_S) -> bool:
        """Let the log keep blobs for ``keep_s`` from now on. Return whether it has the blobs of all
        ``digests``, of which there is at least one.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def digest_of(data: bytes) -> str:
    """Return the cryptographic digest by which a blob is named: BLAKE2b, 256 bits, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def order_of_position(position: str) -> tuple[int, ...]:
    """Return a value by which the positions of a stream can be compared."""
    return tuple(int(part) for part in position.split("-"))
