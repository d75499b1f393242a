"""Keeps a limited number of connections to the servers of an origin, as long as they are useful.

Laws: each connection takes one slot, from the moment when it begins to be opened. A free slot passes straight
to the next waiter, so that a newer caller cannot take it first. A caller gives every connection back by
``put_back``, exactly once. A cancelled caller leaves neither a slot taken nor a connection in use. One timer
watches all connections, so that reads need no timers.
"""

import asyncio
import errno
import math
import ssl
from collections import deque
from contextvars import Context
from functools import partial
from typing import NamedTuple

from shadeproxy.core.deadline import DEFAULT_BOUNDS, ReadBounds
from shadeproxy.core.fair_queue import granted
from shadeproxy.origin.addressing import Peer
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import BadAnswer
from shadeproxy.origin.link_watch import LinkWatch, ask_when_idle
from shadeproxy.origin.tunnel import open_tunnel, too_slow

_REST_S = 0.05
"""Seconds for which a connection rests after an answer to a HEAD, or a 304. Some servers wrongly send a body,
which could be taken for the next answer. If a byte comes in this time, the connection is closed.
"""
_RESTS = 32
"""Number of rests without a byte after which connections to a server rest no more."""

MOST_PEERS = 1024
"""The pool remembers at most this many servers. If each bucket has a host name of its own, clients can name
any number of servers.
"""


class Timeouts(NamedTuple):
    """Time limits. ``connect_s``: until a connection is open, including TLS. ``read_s``: between two arrivals
    of bytes, and until the head of an answer is complete. ``bounds``: the least rate of bodies.

    ``pool_s``: until a connection of the pool is free, or may be opened. ``idle_s``: for how long a
    connection without a request is kept. Firewalls forget silent connections after minutes. Servers close
    them after 20 s or more. The pool notices this, and a request that was on its way is sent again.
    ``dead_link_s``: for how long a server's machine may acknowledge nothing (link_watch.py); 0.0 means no
    limit.
    """

    connect_s: float = 5.0
    read_s: float = 30.0
    pool_s: float = 10.0
    idle_s: float = 60.0
    bounds: ReadBounds = DEFAULT_BOUNDS
    dead_link_s: float = 0.0


class NotConnected(Exception):
    """Raised if there is no connection. The error's cause is the reason. Without a cause, no connection
    became free or open in time.
    """


class _Waiter(NamedTuple):
    """A caller that waits. ``peer``: None if it needs a new connection. ``granted``: a future with a
    connection. If the result is None, the caller has a slot, and must open a connection itself.
    """

    peer: Peer | None
    granted: asyncio.Future[Connection | None]


class ConnectionPool:
    """Keeps at most ``max_connections`` connections. ``tls``: used for peers with TLS. ``kind``: the class of
    the connections. ``http_proxy``: opens the way to all peers; None if they are reached without it. Single
    event loop.
    """

    def __init__(
        self,
        *,
        max_connections: int,
        timeouts: Timeouts,
        tls: ssl.SSLContext | None,
        kind: type[Connection] = Connection,
        http_proxy: Peer | None = None,
    ) -> None:
        self._kind = kind
        self._http_proxy = http_proxy
        self._max = max_connections
        self._timeouts = timeouts
        self._tls = tls
        self._connecting = 0
        self._peers: dict[Connection, Peer] = {}  # The peer of each open connection.
        self._given: set[Connection] = set()  # Connections that callers have not put back yet.
        self._idle: dict[Peer, list[Connection]] = {}
        self._rests: dict[Peer, float] = {}  # How many more rests of connections to a server must be silent.
        self._resting: set[Connection] = set()
        self._waiting: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        dead_link_s = timeouts.dead_link_s
        self._links = LinkWatch(dead_link_s, self._peers.keys()) if dead_link_s else None

    @property
    def open_now(self) -> int:
        """Number of slots taken, by connections that are open or being opened."""
        return self._connecting + len(self._peers)

    @property
    def in_use(self) -> int:
        """Number of connections that callers have, or that are being opened for them."""
        return self._connecting + len(self._given)

    @property
    def is_full(self) -> bool:
        """True if all slots are taken."""
        return self.open_now >= self._max

    async def take(self, peer: Peer, *, fresh: bool = False) -> Connection:
        """Return a connection to ``peer``. With ``fresh``, it was never used before. Raises NotConnected."""
        idle = self._idle.get(peer)
        connection = idle.pop() if idle and not fresh else await self._wait_or_open(peer, fresh=fresh)
        self._given.add(connection)
        return connection

    def take_now(self, peer: Peer) -> Connection | None:
        """Return an idle connection to ``peer``. Return None if there is none; ``take`` would then have to
        wait, or to open one.
        """
        idle = self._idle.get(peer)
        if not idle or not idle[-1].reusable:
            return None
        connection = idle.pop()
        self._given.add(connection)
        return connection

    def spare(self, peer: Peer) -> int:
        """Return the number of idle connections to ``peer``."""
        return len(self._idle.get(peer, ()))

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
        if self._links is not None:
            self._links.watch()
        return connection

    def put_back(self, *connections: Connection) -> None:
        """Take connections back after their exchanges. They are kept for other exchanges, given to waiters,
        or closed.
        """
        for connection in connections:
            self._given.discard(connection)
            peer = self._peers.get(connection)
            if peer is None:
                continue  # The connection was lost, and a waiter has its slot.
            if self._closed or not connection.reusable:
                connection.abort()
            elif connection.bodiless and self._rests.get(peer, _RESTS) > 0:
                self._rest(peer, connection)
            elif self._waiting:
                self._grant(peer, connection)
            else:
                self._idle.setdefault(peer, []).append(connection)

    def _rest(self, peer: Peer, connection: Connection) -> None:
        self._resting.add(connection)
        loop = asyncio.get_running_loop()
        # Let the loop read once more after the time is over: bytes that came while the loop was busy may wait
        # in the kernel, and uvloop calls timers before it reads.
        loop.call_later(_REST_S, loop.call_soon, loop.call_soon, self._end_rest, peer, connection)

    def _end_rest(self, peer: Peer, connection: Connection) -> None:
        self._resting.discard(connection)
        if len(self._rests) >= MOST_PEERS:
            self._rests.clear()  # Then connections to all servers rest again for a while.
        if isinstance(connection.failure, BadAnswer):
            self._rests[peer] = math.inf
        else:
            self._rests[peer] = self._rests.get(peer, _RESTS) - 1
            connection.bodiless = False
        self.put_back(connection)

    async def aclose(self) -> None:
        """Close idle connections. Connections in use are closed when they are put back. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._links is not None:
            self._links.close()
        for connection in [*self._resting, *(one for idle in self._idle.values() for one in idle)]:
            connection.abort()
        # A transport is closed only in the next turn of the loop.
        await asyncio.sleep(0)

    # ------------------------------------------------------------------ slots

    async def _queue(self, peer: Peer | None) -> Connection | None:
        """Wait for a connection to ``peer``, or for a slot, for which None is returned. The slot then counts
        as a connection that is being opened.
        """
        waiter = _Waiter(peer, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        # All slots are taken. If another peer has an idle connection, close it to free its slot.
        spare = next((one for idle in self._idle.values() for one in idle), None)
        if spare is not None:
            self._remove_idle(spare)
            spare.abort()
        give, withdraw = partial(self._hand_on, waiter), partial(self._waiting.remove, waiter)
        if not await granted(waiter.granted, self._timeouts.pool_s, give=give, withdraw=withdraw):
            raise NotConnected
        return waiter.granted.result()

    def _hand_on(self, waiter: _Waiter) -> None:
        """Pass on what a cancelled waiter was granted: put its connection back, or give its slot to the next
        waiter.
        """
        connection = waiter.granted.result()
        if connection is not None:
            self.put_back(connection)
        else:
            self._connecting -= 1
            self._grant_slot()

    def _grant(self, peer: Peer, connection: Connection) -> None:
        """Give a connection to the first waiter. If this waiter needs another peer, close the connection to
        free its slot.
        """
        if self._waiting[0].peer != peer:
            connection.abort()
        else:
            self._waiting.popleft().granted.set_result(connection)

    def _grant_slot(self) -> None:
        if self._waiting and self.open_now < self._max:
            self._connecting += 1
            self._waiting.popleft().granted.set_result(None)

    def _lost(self, connection: Connection) -> None:
        # A connection that is lost while it is being opened is not in the table. ``take`` handles this case.
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
            self._idle.pop(peer, None)

    async def _connect(self, peer: Peer) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                # Use an empty context: the connection will also serve other requests than the one that opens
                # it, and must not keep the context variables of this one.
                transport, connection = await loop.create_task(self._open(peer), context=Context())
                link = transport.get_extra_info("socket")  # None if the connection was lost at once.
                if self._timeouts.dead_link_s and link is not None:
                    ask_when_idle(link, self._timeouts.dead_link_s)
        except TimeoutError:
            raise NotConnected from too_slow(self._http_proxy)
        except OSError as error:
            raise NotConnected from error
        if link is None or not connection.reusable:
            raise NotConnected from ConnectionResetError(errno.ECONNRESET, "closed at once")
        return connection

    async def _open(self, peer: Peer) -> tuple[asyncio.Transport, Connection]:
        """Open a connection, through the HTTP proxy if there is one. Raises OSError."""
        loop = asyncio.get_running_loop()
        new = partial(self._kind, loop, self._lost, self._timeouts.bounds)
        tls = self._tls if peer.is_tls else None
        if self._http_proxy is None:
            return await loop.create_connection(new, peer.host, peer.port, ssl=tls)
        tunnel = await open_tunnel(self._http_proxy, peer)
        try:
            name = peer.host if peer.is_tls else None
            return await loop.create_connection(new, sock=tunnel, ssl=tls, server_hostname=name)
        except BaseException:
            tunnel.close()
            raise

    # ------------------------------------------------------------------ time

    def _watch(self) -> None:
        """End connections that were silent or idle for too long, and set the timer for the next check."""
        loop = asyncio.get_running_loop()
        now_s, read_s, idle_s = loop.time(), self._timeouts.read_s, self._timeouts.idle_s
        # A connection that begins to wait after this check cannot be due before ``next_s``.
        next_s = now_s + min(read_s, self._timeouts.bounds.window_s, idle_s)
        idle = {one for kept in self._idle.values() for one in kept}
        for connection in list(self._peers):
            if connection in idle:
                due_s = connection.since_s + idle_s
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
