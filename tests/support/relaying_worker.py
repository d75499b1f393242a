"""A worker of a node of tests/support/relaying.py, in the same process.

The worker relays reads to the other nodes itself, and passes all other requests on to the node's listener.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from shadeproxy.api.s3 import Authenticator, ClientKey, FastLane
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.worker_relays import WorkerRelays
from shadeproxy.app.worker_access import SharedReadsAuthorizer
from shadeproxy.cluster.peer_reads import PeerReads
from shadeproxy.cluster.peers import Peers
from shadeproxy.cluster.relay_counts import RelayCounts
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.deadline import DEFAULT_BOUNDS
from tests.support.relaying import CLUSTER, CLUSTER_SECRET, Log, Node, Requests
from tests.support.s3.clients import ACCESS, SECRET
from tests.support.s3.scripted import Answered, Client


class RelayingWorker:
    """The worker of ``node``.

    ``relayed``: the paths of the reads that it sent to other nodes.
    ``passed_on``: how many connections it opened to its own node.
    ``requests``: the requests that it answered.
    """

    def __init__(self, node: Node, *, patience_s: float, budget_bytes: int, max_connections: int) -> None:
        clock, self.requests, self.counts = SystemClock(), Requests(), RelayCounts()
        self.peers = Peers(
            node.name,
            CLUSTER,
            (CLUSTER_SECRET,),
            clock=clock,
            least_patience_s=patience_s,
            max_connections=max_connections,
        )
        self.relayed: list[str] = []
        self.passed_on = 0
        self.open: set[WorkerProtocol] = set()
        reads = PeerReads(routes=node.view, peers=self.peers, counts=self.counts, clock=clock)
        self._start = reads.start
        reads.start = self._note  # type: ignore[method-assign]
        authorizer = SharedReadsAuthorizer(
            node.engine,
            Authenticator((ClientKey(ACCESS, SECRET),), anonymous=True, clock=clock),
            observer=self.requests,
            log=Log(),
        )
        self.lane = FastLane(node.engine, authorizer, clock=clock, jobs=self.requests, relays=reads)
        self.relays = WorkerRelays(
            reads, authorizer, None, clock=clock, bounds=DEFAULT_BOUNDS, budget_bytes=budget_bytes
        )
        self.port = 0
        self._node = node
        self._clients: list[Client] = []

    def protocol(self) -> WorkerProtocol:
        return WorkerProtocol(self.lane, self._connect, self.open, keepalive_s=60.0, misses=self.relays)

    async def client(self) -> Client:
        client = await Client.open(f"127.0.0.1:{self.port}")
        self._clients.append(client)
        return client

    async def ask(self, path: str, *fields: str, method: str = "GET") -> Answered:
        """Send one request, and return the answer."""
        client = await self.client()
        client.ask(path, *fields, method=method)
        return await client.answer(bodiless=method == "HEAD")

    async def end(self) -> None:
        for client in self._clients:
            await client.close()
        while self.open:
            await asyncio.sleep(0.001)
        await self.relays.aclose()
        assert self.relays._held.taken_bytes == 0
        assert [peer._users for peer in self.peers._peers.values()] == [0] * len(self.peers._peers)
        await self.peers.aclose()

    async def _connect(self, protocol: asyncio.Protocol, _peer: str) -> None:
        self.passed_on += 1
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: protocol, "127.0.0.1", self._node.port)

    def _note(self, peer: Any, ref: Any, path: str, **options: Any) -> Any:
        connection = self._start(peer, ref, path, **options)
        if connection is not None:
            self.relayed.append(path)
        return connection


@asynccontextmanager
async def worker_of(
    node: Node, *, patience_s: float = 1.0, budget_bytes: int = 1 << 22, max_connections: int = 256
) -> AsyncIterator[RelayingWorker]:
    """Run a worker of ``node`` until the block ends."""
    worker = RelayingWorker(
        node, patience_s=patience_s, budget_bytes=budget_bytes, max_connections=max_connections
    )
    server = await asyncio.get_running_loop().create_server(worker.protocol, "127.0.0.1", 0)
    worker.port = server.sockets[0].getsockname()[1]
    try:
        yield worker
    finally:
        await worker.end()
        server.close()
