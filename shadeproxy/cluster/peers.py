"""The other nodes, as S3 servers to which this node sends requests. For each of them: its connections, how
long it takes to answer, and whether reads may ask it now.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np
import structlog

from shadeproxy.cluster.answer_timer import AnswerTimer
from shadeproxy.cluster.peer_requests import PEER_KEY, REGION, peer_secrets
from shadeproxy.cluster.relay_heads import RelayHeads
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.clock import Clock
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import OWN, SHARED, ObjectRef
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.pool import Timeouts
from shadeproxy.origin.s3 import S3Origin

_log = structlog.get_logger(__name__)
_LEAST_PATIENCE_S, _MOST_PATIENCE_S, _TIMES_P99 = 1.0, 10.0, 3.0
_TIMES = 512
_COMPUTE_EVERY = 64
_LEAST_MEMORY_BYTES, _SPARE_BYTES = 16 << 10, 1 << 10
MOST_MEMORY_BYTES = (1 << 20) + (16 << 10)
"""Most memory for an answer that is received as a whole. Up to this bound, the memory follows the sizes of
recent answers.
"""
_CLOSE_S = 1.0
_FAILURES, _WITHIN_S, _OPEN_S = 3, 5.0, 2.0
PEER_TIMEOUTS = Timeouts(connect_s=2.0, read_s=60.0, pool_s=2.0, dead_link_s=10.0)
"""The time limits of requests to other nodes, with the default of ``origin.timeouts.read``. If the network to
a node fails, a request to it ends after ``dead_link_s``, although the node may still be running.
"""
_LATE_ANSWER_S = 1.0
"""A node may send an answer just before its lease ends, and then die. This is how long that answer may take
to arrive.
"""


def peer_timeouts(origin_read_s: float) -> Timeouts:
    """Return the time limits of requests to other nodes. ``origin_read_s``: ``origin.timeouts.read``, which
    should be the same at all nodes.

    A node may wait for its origin before it answers a write, so its answer may take twice as long.
    """
    return PEER_TIMEOUTS._replace(read_s=max(PEER_TIMEOUTS.read_s, 2 * origin_read_s))


class PeerState(NamedTuple):
    """The state of one other node. ``skipped``: reads now go past the node. ``p99_s``: the 99th percentile of
    the time to the head of an answer, over the last ``answers`` answers; 0.0 if there are none.
    """

    skipped: bool
    p99_s: float
    answers: int


NOT_ASKED = PeerState(False, 0.0, 0)


class Peer:
    """One other node at one address. ``least_patience_s``: the least time for which a read waits for an
    answer.
    """

    def __init__(
        self, node: str, address: str, origin: S3Origin, clock: Clock, least_patience_s: float
    ) -> None:
        self.node = node
        self.origin = origin
        self.heads = RelayHeads(address)
        self._gets = origin.forwards
        self._at = origin.forwards.peer_of(ObjectRef("b", "", OWN))
        self.patience_s = self._least_s = least_patience_s
        """Seconds for which a read waits for the head of this node's answer."""
        self.timer = AnswerTimer(asyncio.get_running_loop())
        """Ends the waiting of reads after ``patience_s``."""
        self.memory_bytes = 8 * _LEAST_MEMORY_BYTES
        """Memory that the head and the body of the next answer will probably need, up to the most for an
        answer that is received as a whole.
        """
        self._longest_bytes = 0
        self._clock = clock
        # Times to the heads of the last answers. A new one replaces the oldest.
        self._times_s = np.zeros(_TIMES)
        self._count = 0
        self._failed_s: deque[float] = deque(maxlen=_FAILURES)
        self._skipped_until_s = float("-inf")
        self._gone = False
        self._limits: set[asyncio.Timeout] = set()
        self._users = 0
        self._unused: asyncio.Event | None = None  # Set while ``aclose`` waits for the end of all uses.

    def take_now(self) -> Connection | None:
        """Return an idle connection, or None if none is idle. The peer keeps its connections open until the
        caller puts this one back.
        """
        connection = None if self._at is None else self._gets.pool.take_now(self._at)
        if connection is not None:
            self._users += 1
        return connection

    @property
    def has_idle(self) -> bool:
        """True if a connection is idle."""
        return self._at is not None and self._gets.pool.spare(self._at) > 0

    async def connect(self) -> None:
        """Open one more connection, which is then idle. Do nothing if the pool is full. Raises
        NotConnected.
        """
        # If the pool is full, callers may wait for a new connection. For such a caller the pool closes a
        # connection that comes back, and opens a new one in its place. Do not take that place here.
        if self._at is None or self._gets.pool.is_full:
            return
        self.enter()
        try:
            self._gets.pool.put_back(await self._gets.pool.take(self._at, fresh=True))
        finally:
            self.leave()

    def put_back(self, connection: Connection) -> None:
        """Take back a connection that ``take_now`` returned."""
        self._gets.pool.put_back(connection)
        self.leave()

    def enter(self) -> None:
        """Keep the connections open until ``leave`` is called."""
        self._users += 1

    def leave(self) -> None:
        """End one use that ``enter`` began."""
        self._users -= 1
        if not self._users and self._unused is not None:
            self._unused.set()

    @asynccontextmanager
    async def while_there(self) -> AsyncIterator[None]:
        """Raise TimeoutError out of the block if the node's lease is certainly over (``note_gone``). Writes
        need this bound. Reads do not, because they wait for ``patience_s`` only.
        """
        async with asyncio.timeout(None) as limit:
            self._limits.add(limit)
            if self._gone:
                _end_soon(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    def note_gone(self, gone: bool) -> None:
        """Note whether the node's lease is certainly over. If it is, the node can no longer confirm a
        write.
        """
        if gone != self._gone:
            for limit in self._limits:
                if gone:
                    _end_soon(limit)
                elif not limit.expired():
                    limit.reschedule(None)
        self._gone = gone

    async def aclose(self) -> None:
        """Close the connections once no request uses them. If cancelled, close them at once."""
        try:
            while self._users:
                self._unused = asyncio.Event()
                await self._unused.wait()
        finally:
            self.timer.close()
            await self.origin.aclose()

    @property
    def skipped(self) -> bool:
        """True while reads go straight to the origin, because this node failed several times."""
        return self._clock.monotonic_s() < self._skipped_until_s

    def answered(self, seconds: float, size_bytes: int = 0) -> None:
        """Note the time to the head of an answer. ``size_bytes``: bytes of head and body together, if the
        answer is short enough to be received as a whole.
        """
        self._failed_s.clear()
        self._times_s[self._count % _TIMES] = seconds
        self._count += 1
        if size_bytes > self._longest_bytes:
            self._longest_bytes = size_bytes
            self.memory_bytes = max(self.memory_bytes, _memory_for(size_bytes))
        if self._count % _COMPUTE_EVERY == 0:
            self.memory_bytes, self._longest_bytes = _memory_for(self._longest_bytes), 0
            self.patience_s = max(self._least_s, min(_TIMES_P99 * self._p99_s(), _MOST_PATIENCE_S))

    def failed(self) -> None:
        """Note that the node could not be reached, did not answer in time, or broke off an answer."""
        now_s = self._clock.monotonic_s()
        self._failed_s.append(now_s)
        if len(self._failed_s) == _FAILURES and now_s - self._failed_s[0] <= _WITHIN_S:
            self._skipped_until_s = now_s + _OPEN_S

    @property
    def state(self) -> PeerState:
        return PeerState(self.skipped, self._p99_s(), min(self._count, _TIMES))

    def _p99_s(self) -> float:
        count = min(self._count, _TIMES)
        place = count * 99 // 100
        # Sorting a list instead would cost each read a microsecond.
        return float(np.partition(self._times_s[:count], place)[place]) if count else 0.0


class Peers:
    """The other nodes of a cluster. ``node``: this node's name. ``secrets``: values of ``cluster.secret``;
    the first one signs. ``tls``: the nodes speak TLS. ``ca_file``: PEM certificates to trust instead of the
    system's.
    """

    def __init__(
        self,
        node: str,
        cluster: str,
        secrets: Sequence[str],
        *,
        clock: Clock,
        tls: bool = False,
        ca_file: str | None = None,
        timeouts: Timeouts = PEER_TIMEOUTS,
        least_patience_s: float = _LEAST_PATIENCE_S,
        max_connections: int = 256,
    ) -> None:
        """Make the object; no connection is opened yet. Raises ConfigError if no secret is given."""
        self.node = node
        self._cluster = cluster
        self._provider = StaticCredentials(_credentials(cluster, secrets))
        self._clock = clock
        self._scheme = "https" if tls else "http"
        self._ca_file = ca_file
        self._timeouts = timeouts
        self._least_patience_s = least_patience_s
        self._max_connections = max_connections
        self._peers: dict[tuple[str, str], Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def adopt(self, secrets: Sequence[str]) -> None:
        """Sign with the first of other secrets from now on. Raises ConfigError, and then changes nothing."""
        self._provider.current = _credentials(self._cluster, secrets)

    @property
    def secret(self) -> str:
        """The secret key that signs requests to other nodes."""
        assert self._provider.current is not None, "there is always a key"
        return self._provider.current.secret_key

    def find(self, facts: NodeFacts) -> Peer:
        """Return the peer with the name and the address in ``facts``."""
        key = (facts.node, facts.peer)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(
                facts.node, facts.peer, self._connect(facts.peer), self._clock, self._least_patience_s
            )
        return peer

    def retain(self, nodes: Collection[NodeFacts], *, away: Collection[str] = ()) -> None:
        """Close the connections to all nodes and addresses that are not among ``nodes``. Requests under way
        may end first. But writes stop waiting for the nodes whose connections are closed, and for the nodes
        that are ``away``.
        """
        kept = {(facts.node, facts.peer) for facts in nodes}
        for (node, _), peer in self._peers.items():
            peer.note_gone(node in away)
        for key in self._peers.keys() - kept:
            peer = self._peers.pop(key)
            peer.note_gone(True)
            task = asyncio.create_task(peer.aclose(), name=f"close {key[0]}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def skipped(self) -> dict[str, bool]:
        """Return, for each other node that this process has asked, whether reads now go past it."""
        return {peer.node: peer.skipped for peer in self._peers.values()}

    def states(self) -> dict[str, PeerState]:
        """Return the state of each other node that this process has asked."""
        return {peer.node: peer.state for peer in self._peers.values()}

    async def aclose(self) -> None:
        """Close all connections; idempotent. Requests that do not end soon are cut off: the listeners are
        closed already, so no client waits for them.
        """
        self.retain(())
        if not self._closing:
            return
        _, late = await asyncio.wait(self._closing, timeout=_CLOSE_S)
        if late:
            _log.warning("requests to other nodes were cut off", nodes=len(late))
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _connect(self, address: str) -> S3Origin:
        return S3Origin(
            f"{self._scheme}://{address}",
            credentials={SHARED: self._provider},
            region=REGION,
            addressing="path",
            timeouts=self._timeouts,
            max_connections=self._max_connections,
            ca_file=self._ca_file,
            trailing_checksums="always",
            reserved_names=(),
            # A node passes on the regions that the origin names.
            one_region=True,
            clock=self._clock,
        )


def _end_soon(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time() + _LATE_ANSWER_S)


def _memory_for(size_bytes: int) -> int:
    return max(_LEAST_MEMORY_BYTES, min(size_bytes + _SPARE_BYTES, MOST_MEMORY_BYTES))


def _credentials(cluster: str, secrets: Sequence[str]) -> Credentials:
    return Credentials(PEER_KEY, peer_secrets(cluster, secrets)[0])
