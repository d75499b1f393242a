"""Reads of a worker's clients that other nodes of the cluster answer.

Law: the worker passes on only plain answers. If the other node's answer is not plain, or does not come, the
worker relays the request to the coordinator as if it had just come. If that node does not answer the
coordinator either, the coordinator asks the origin.
"""

import asyncio
from contextlib import aclosing, suppress
from typing import Protocol

from shadeproxy.api.s3.exchange import Asked, ReadReports
from shadeproxy.api.s3.relay_read import RelayRead
from shadeproxy.api.s3.relay_stream import RelayStream
from shadeproxy.api.s3.worker_fill import WorkerFill, WorkerOutlet
from shadeproxy.cluster.peer_reads import PeerReads, PendingAnswer
from shadeproxy.cluster.peers import Peer
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import ReadBounds
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import SHARED
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.pool import NotConnected
from shadeproxy.origin.s3transport import body_of

_MOST_CONNECTING = 8
_MOST_UNWANTED_BYTES = 16 << 10
"""Longest body that is read to its end although no client wants it, so that its connection can be used again.
It is mostly an error message.
"""


class WorkerLaneRead(Protocol):
    """A read that a worker answers. The client's connection (relay.py) calls these methods."""

    def look(self) -> None:
        """Continue to write the answer, because the client has taken enough of the bytes sent so far."""
        ...

    def cancel(self) -> None:
        """Leave the read, because the client has gone. Later calls do nothing."""
        ...

    def relay(self) -> None:
        """Relay the request to the coordinator, because ``LaneOutlet.go_on_by_task`` was called."""
        ...

    def relayed(self) -> None:
        """Note that the coordinator now answers the request."""
        ...


class BeginsLaneReads(Protocol):
    """Begins the reads of a worker's clients."""

    def begin(self, outlet: WorkerOutlet, asked: Asked) -> WorkerLaneRead | None:
        """Begin the read that ``asked`` describes. Return None if it must be relayed to the coordinator."""
        ...


class BeginsFills(Protocol):
    """Begins reads by fetching their pages. worker_misses.py implements it."""

    def begin(self, outlet: WorkerOutlet, asked: Asked) -> WorkerFill | None:
        """Begin the read that ``asked`` describes. Return None if it must be relayed to the coordinator."""
        ...


class WorkerRelayRead:
    """One read that another node answers. Implements ``WorkerLaneRead``."""

    def __init__(self, relays: "WorkerRelays", outlet: WorkerOutlet, read: RelayRead) -> None:
        self._relays = relays
        self._outlet = outlet
        self._now: RelayRead | RelayStream | None = read

    def look(self) -> None:
        """Continue to write the answer, because the client has taken enough of the bytes sent so far."""
        if self._now is not None:
            self._now.look()

    def cancel(self) -> None:
        """Leave the read, because the client has gone. Later calls do nothing."""
        if self._now is not None:
            self._now.cancel()
            self._now = None

    def relay(self) -> None:
        """Relay the request to the coordinator. A long plain answer is streamed to the client instead. If the
        client has left, do nothing.
        """
        read, self._now = self._now, None
        if not isinstance(read, RelayRead):
            return
        begun = read.take()
        if begun is not None and begun.is_plain:
            self._now = self._relays.stream(self._outlet, read, begun)
            return
        if begun is not None:
            self._relays.drop(begun)
        self._outlet.relay()

    def relayed(self) -> None:
        """Do nothing, because ``relay`` has left the read already."""


class WorkerRelays:
    """Begins the reads of a worker's clients, where several proxies share a cache. Implements
    ``BeginsLaneReads``.

    ``reads``: asks other nodes. ``reports``: gets the report when a read has ended. ``fills``: fetches pages
    of objects that this node owns; None: the coordinator fetches them. ``budget_bytes``: memory for answers
    that are held whole.
    """

    def __init__(
        self,
        reads: PeerReads,
        reports: ReadReports,
        fills: BeginsFills | None,
        *,
        clock: Clock,
        bounds: ReadBounds,
        budget_bytes: int,
    ) -> None:
        self._reads = reads
        self._reports = reports
        self._fills = fills
        self._clock = clock
        self._bounds = bounds
        self._held = Ledger(budget_bytes)
        self._connecting: set[asyncio.Task[None]] = set()
        self._emptying: set[asyncio.Task[None]] = set()

    def begin(self, outlet: WorkerOutlet, asked: Asked) -> WorkerLaneRead | None:
        """Begin the read that ``asked`` describes: at another node, or by fetching its page. Return None if
        it must be relayed to the coordinator.
        """
        peer = asked.peer
        if peer is None:
            return None if self._fills is None else self._fills.begin(outlet, asked)
        # Requests of a client with its own upstream are always relayed to the coordinator.
        if asked.call.identity.upstream != SHARED:
            return None
        read = RelayRead(
            outlet,
            self._reports,
            self._reads,
            asked,
            peer,
            clock=self._clock,
            held=self._held,
            bounds=self._bounds,
        )
        if read.start():
            return WorkerRelayRead(self, outlet, read)
        if not peer.has_idle:
            self._connect_soon(peer)
        return None

    def stream(self, outlet: WorkerOutlet, read: RelayRead, begun: PendingAnswer) -> RelayStream:
        """Send to the client the long answer whose head ``read`` has received."""
        return RelayStream(outlet, self._reports, self._reads, read, begun, clock=self._clock)

    def drop(self, begun: PendingAnswer) -> None:
        """Release the connection of an answer that no client gets. The rest of a short answer is read first,
        so that the connection can be used again. Otherwise each GET of a missing object would cost a
        connection.
        """
        if begun.connection is None or begun.head is None:
            begun.peer.failed()
        elif begun.head.length_given and (begun.head.length or 0) <= _MOST_UNWANTED_BYTES:
            task = asyncio.get_running_loop().create_task(_empty(begun.connection))
            self._emptying.add(task)
            task.add_done_callback(self._emptying.discard)
            task.add_done_callback(lambda _task: begun.close())
        else:
            begun.close()

    async def aclose(self) -> None:
        """Stop making connections, and stop reading answers that no client gets."""
        tasks = self._connecting | self._emptying
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connect_soon(self, peer: Peer) -> None:
        """Open one more connection to ``peer``, for later reads."""
        if len(self._connecting) < _MOST_CONNECTING:
            task = asyncio.get_running_loop().create_task(_connect(peer))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)


async def _empty(connection: Connection) -> None:
    # If the answer breaks off, its connection cannot be used again, and ``close`` drops it.
    with suppress(ShadeProxyError, OSError):
        async with aclosing(body_of(connection)) as pieces:
            async for _ in pieces:
                pass


async def _connect(peer: Peer) -> None:
    try:
        await peer.connect()
    except NotConnected as error:
        # An error without a cause only says that all connections are in use: the node has not failed.
        if error.__cause__ is not None:
            peer.failed()
