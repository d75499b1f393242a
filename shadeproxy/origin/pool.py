"""Connections to the servers of an origin: so many at most, kept while they are of use.

Laws: a slot stands for one connection, open or being opened, and passes from hand to hand, so a newcomer
cannot slip in between; every connection handed out comes back through ``put_back`` exactly once; whoever
is cancelled leaves neither a slot taken nor a connection in use. One timer watches all connections, instead
of one for every read.
"""

import asyncio
import errno
import ssl
from collections import deque
from functools import partial
from typing import NamedTuple

from shadeproxy.core.deadline import DEFAULT_BOUNDS, ReadBounds
from shadeproxy.core.turns import granted
from shadeproxy.origin.connection import Connection

_KEEP_IDLE_S = 15.0
"""Less than servers keep them: AWS closes after 20 s or more, nginx after 75."""


class Peer(NamedTuple):
    """Where connections go."""

    host: str
    port: int
    is_tls: bool


class Timeouts(NamedTuple):
    """``connect_s``: until a connection stands, TLS included. ``read_s``: between two arrivals of bytes, and
    until the head of an answer is whole. ``bounds``: of these, the least rate of a body.

    ``pool_s``: until one of the pool is free, or may be opened.
    """

    connect_s: float = 5.0
    read_s: float = 30.0
    pool_s: float = 10.0
    bounds: ReadBounds = DEFAULT_BOUNDS


class NotConnected(Exception):
    """No connection: its cause says why; without one, none came free or stood in time."""


class _Waiter(NamedTuple):
    """``peer`` None: only a fresh connection will do. The result None is a slot to open one in."""

    peer: Peer | None
    granted: asyncio.Future[Connection | None]


class ConnectionPool:
    """At most ``max_connections``. ``tls``: for peers that want it. Single event loop."""

    def __init__(self, *, max_connections: int, timeouts: Timeouts, tls: ssl.SSLContext | None) -> None:
        self._max = max_connections
        self._timeouts = timeouts
        self._tls = tls
        self._connecting = 0
        self._peers: dict[Connection, Peer] = {}  # of every open connection
        self._given: set[Connection] = set()  # to callers, and not put back
        self._idle: dict[Peer, list[Connection]] = {}
        self._waiting: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open_now(self) -> int:
        """Slots taken: connections that are open or being opened."""
        return self._connecting + len(self._peers)

    @property
    def in_use(self) -> int:
        """Connections that are handed out or being opened for somebody."""
        return self._connecting + len(self._given)

    async def take(self, peer: Peer, *, fresh: bool = False) -> Connection:
        """A connection to ``peer``; with ``fresh`` one that was never used.

        Raises NotConnected.
        """
        idle = self._idle.get(peer)
        connection = idle.pop() if idle and not fresh else await self._wait_or_open(peer, fresh=fresh)
        self._given.add(connection)
        return connection

    async def _wait_or_open(self, peer: Peer, *, fresh: bool) -> Connection:
        if self.open_now < self._max:
            self._connecting += 1
        else:
            granted = await self._queue(None if fresh else peer)
            if granted is not None:
                return granted
        try:
            connection = await self._connect(peer)
        except BaseException:
            self._connecting -= 1
            self._grant_slot()
            raise
        self._connecting -= 1
        self._peers[connection] = peer
        if self._timer is None:
            self._watch()
        return connection

    def put_back(self, connection: Connection) -> None:
        """The exchange is over, or given up: keep the connection, or close it."""
        self._given.discard(connection)
        peer = self._peers.get(connection)
        if peer is None:
            return  # it was lost, and its slot is another's already
        if self._closed or not connection.reusable:
            connection.abort()
        elif self._waiting:
            self._grant(peer, connection)
        else:
            self._idle.setdefault(peer, []).append(connection)

    async def aclose(self) -> None:
        """Close idle connections; those in use are closed as they come back. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in [one for idle in self._idle.values() for one in idle]:
            connection.abort()
        # Transports close in the loop's next turn.
        await asyncio.sleep(0)

    # ------------------------------------------------------------------ slots

    async def _queue(self, peer: Peer | None) -> Connection | None:
        """Wait for a connection to ``peer``, or for a slot (then counted as connecting)."""
        waiter = _Waiter(peer, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        # One that idles for others, or too long in use for who wants a fresh one.
        spare = next((one for idle in self._idle.values() for one in idle), None)
        if spare is not None:
            self._remove_idle(spare)
            spare.abort()
        give, withdraw = partial(self._hand_on, waiter), partial(self._waiting.remove, waiter)
        if not await granted(waiter.granted, self._timeouts.pool_s, give=give, withdraw=withdraw):
            raise NotConnected
        return waiter.granted.result()

    def _hand_on(self, waiter: _Waiter) -> None:
        """What a waiter was granted who is not there any more."""
        connection = waiter.granted.result()
        if connection is not None:
            self.put_back(connection)
        else:
            self._connecting -= 1
            self._grant_slot()

    def _grant(self, peer: Peer, connection: Connection) -> None:
        """Hand a connection, or by closing it its slot, to who waits longest."""
        if self._waiting[0].peer != peer:
            connection.abort()
        else:
            self._waiting.popleft().granted.set_result(connection)

    def _grant_slot(self) -> None:
        if self._waiting and self.open_now < self._max:
            self._connecting += 1
            self._waiting.popleft().granted.set_result(None)

    def _lost(self, connection: Connection) -> None:
        # Not there: it was lost while it was being opened, which ``take`` deals with.
        if connection in self._peers:
            self._remove_idle(connection)
            del self._peers[connection]
            self._grant_slot()

    def _remove_idle(self, connection: Connection) -> None:
        peer = self._peers[connection]
        idle = self._idle.get(peer, [])
        if connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[peer]

    async def _connect(self, peer: Peer) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await loop.create_connection(
                    partial(Connection, loop, self._lost, self._timeouts.bounds),
                    peer.host,
                    peer.port,
                    ssl=self._tls if peer.is_tls else None,
                )
        except TimeoutError:
            raise NotConnected from None
        except OSError as error:
            raise NotConnected from error
        if not connection.reusable:
            raise NotConnected from ConnectionResetError(errno.ECONNRESET, "closed at once")
        return connection

    # ------------------------------------------------------------------ time

    def _watch(self) -> None:
        """End what is silent or idle for too long, and look again when the next one may be."""
        loop = asyncio.get_running_loop()
        now_s, read_s = loop.time(), self._timeouts.read_s
        # What begins meanwhile cannot be due before that.
        next_s = now_s + min(read_s, self._timeouts.bounds.window_s, _KEEP_IDLE_S)
        idle = {one for kept in self._idle.values() for one in kept}
        for connection in list(self._peers):
            if connection in idle:
                due_s = connection.since_s + _KEEP_IDLE_S
                if due_s <= now_s:
                    connection.abort()
            elif connection.waiting:
                due_s = connection.since_s + min(read_s, connection.patience_s)
                if due_s <= now_s:
                    connection.time_out()
            else:
                continue
            if due_s > now_s:
                next_s = min(next_s, due_s)
        self._timer = loop.call_at(next_s, self._watch) if self._peers and not self._closed else None
