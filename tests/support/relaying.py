"""The proxies of a cluster in one process: real engines and listeners over one origin in memory.

A test decides on the views.
"""

import asyncio
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shadeproxy.api.s3 import Authenticator, ClientKey, FastLane, S3Handler, S3Server
from shadeproxy.api.s3.auth.peers import PeerAuthenticator
from shadeproxy.api.s3.peer_handler import PeerHandler
from shadeproxy.cluster.peer_reads import PeerReads
from shadeproxy.cluster.peers import Peers
from shadeproxy.cluster.relay_counts import RelayCounts, RelayEnd
from shadeproxy.cluster.relaying_origin import RelayingOrigin
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.ownership import Began, Standing
from shadeproxy.engine.rules import Rule
from shadeproxy.engine.storage.page_cache import Medium
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from tests.support.listener_engine import make_engine
from tests.support.s3.clients import ACCESS, SECRET
from tests.support.s3.scripted import Answered, Client

CLUSTER, CLUSTER_SECRET = "trainers", "a secret of the cluster"
PAGE = 4096


class Requests:
    """An observer that keeps the requests which a listener has answered."""

    def __init__(self) -> None:
        self.ended: list[dict[str, Any]] = []

    def on_request(self, **request: Any) -> None:
        self.ended.append(request)

    def on_job(self, _job: object) -> None:
        """Ignore the job."""


def boot_of(node: str) -> str:
    """Return the boot number that the facts of a node have."""
    return f"{node}1"


class Log:
    def debug(self, _event: str, **_fields: object) -> None:
        """Ignore the event."""

    warning = debug

    def exception(self, event: str, **_fields: object) -> None:
        raise AssertionError(event)


class FixedView:
    """Implements ``Ownership`` and ``Routes`` for one node.

    The first letter of a key names the object's owner, unless a test sets ``owner_of``. ``facts`` has the
    facts of the nodes by name. ``hindered`` is the answer of ``Routes.is_hindered``.
    """

    def __init__(self, node: str, facts: dict[str, NodeFacts]) -> None:
        self.node = node
        self.facts = facts
        self.owner_of: Callable[[ObjectRef], str] = lambda ref: ref.key[:1]
        self.hindered = False

    def standing(self, ref: ObjectRef) -> Standing:
        return Standing.OWN if self.owner_of(ref) == self.node else Standing.FOREIGN

    def may_store(self, ref: ObjectRef) -> bool:
        return self.standing(ref) is not Standing.FOREIGN

    def own_for_s(self, ref: ObjectRef) -> float:
        return 60.0 if self.mine(ref) else 0.0

    def begin(self) -> Began:
        return Began(0, 0.0)

    def trusts(self, ref: ObjectRef, _began: Began) -> bool:
        return self.mine(ref)

    async def distrust_bucket(self, _bucket: str, _namespace: str) -> None:
        """Do nothing: no test here changes a bucket."""

    def mine(self, ref: ObjectRef) -> bool:
        return self.owner_of(ref) == self.node

    writes_here = mine

    async def wait_until_mine(self, refs: Iterable[ObjectRef]) -> bool:
        return all(map(self.mine, refs))

    def reader(self, ref: ObjectRef) -> NodeFacts | None:
        return None if self.mine(ref) else self.facts.get(self.owner_of(ref))

    writer = reader

    def is_hindered(self) -> bool:
        return self.hindered


@dataclass
class Node:
    """One proxy. Clients connect to ``port``, whose listener is ``server``. Other nodes connect to
    ``peer_port``.
    """

    name: str
    view: FixedView
    engine: Engine
    counts: RelayCounts
    requests: Requests
    peer_requests: Requests
    port: int = 0
    peer_port: int = 0
    peers: Peers = field(kw_only=True)
    relays: PeerReads | None = field(kw_only=True)
    handler: S3Handler = field(kw_only=True)
    peer_handler: PeerHandler = field(kw_only=True)
    server: S3Server = field(kw_only=True)
    _peer_server: S3Server = field(kw_only=True)
    _clients: list[Client] = field(default_factory=list)

    async def client(self, *, peer: bool = False) -> Client:
        client = await Client.open(f"127.0.0.1:{self.peer_port if peer else self.port}")
        self._clients.append(client)
        return client

    async def ask(
        self, path: str, *fields: str, method: str = "GET", body: bytes = b"", peer: bool = False
    ) -> Answered:
        """Send one request, and return the answer."""
        client = await self.client(peer=peer)
        client.ask(path, *fields, method=method, body=body)
        return await client.answer(bodiless=method == "HEAD")

    def results(self) -> dict[str, int]:
        """Return, for each result, how many requests to other nodes ended with it."""
        found: dict[str, int] = {}
        for row in self.counts.rows():
            found[str(row.result)] = found.get(str(row.result), 0) + row.requests
        return found

    async def stop_listening_for_peers(self) -> None:
        await self._peer_server.shutdown(1.0)

    async def end(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def listening(serve: Any) -> AsyncIterator[str]:
    """Serve connections by ``serve``, which is no proxy. Yield the address."""
    tasks: set[Any] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        _of_others.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_tasks_before: list[set[Any]] = []
"""The tasks that ran before each open cluster began, one set for each cluster."""
_of_others: weakref.WeakSet[Any] = weakref.WeakSet()
"""Tasks of servers that are no proxies. These tasks may end after the cluster."""


def counted(*results: RelayEnd) -> dict[str, int]:
    return {str(result): results.count(result) for result in results}


@asynccontextmanager
async def cluster(
    directory: Path,
    *names: str,
    origin: Any = None,
    rules: tuple[Rule, ...] = (),
    secrets: dict[str, tuple[str, ...]] | None = None,
    patience_s: float = 1.0,
    interim_every_s: float = 0.0,
    clients: tuple[ClientKey, ...] = (ClientKey(ACCESS, SECRET),),
    fast: bool = True,
    compiled: bool = False,
    send_bytes: int = 0,
) -> AsyncIterator[list[Node]]:
    """Start proxies over one origin, one for each name.

    ``secrets``: the secrets of those nodes that do not have the cluster's.
    ``fast``: whether plain reads are relayed by callbacks.
    ``compiled``: whether the compiled request cache answers.
    ``send_bytes``: the size of the send buffers of the listeners' connections.

    At the end, no request to another node may be under way. If the test has no other cluster open, no task
    may be left either. ``_quiescent`` of tests/conftest.py checks the engines.
    """
    _tasks_before.append(asyncio.all_tasks())
    origin = origin if origin is not None else MemoryOrigin(chunk_bytes=1000)
    facts: dict[str, NodeFacts] = {}
    try:
        async with AsyncExitStack() as stack:
            nodes = []
            for name in names:
                known = (secrets or {}).get(name, (CLUSTER_SECRET,))
                node = await _start(
                    stack,
                    directory / name,
                    name,
                    facts,
                    origin=origin,
                    rules=rules,
                    secrets=known,
                    patience_s=patience_s,
                    interim_every_s=interim_every_s,
                    clients=clients,
                    fast=fast,
                    compiled=compiled,
                    send_bytes=send_bytes,
                )
                facts[name] = NodeFacts(
                    node=name, weight=1.0, peer=f"127.0.0.1:{node.peer_port}", boot=boot_of(name)
                )
                nodes.append(node)
            yield nodes
            asked = [peer for node in nodes for peer in node.peers._peers.values()]
    finally:
        before = _tasks_before.pop() | {asyncio.current_task()}
    assert {peer.node: peer._users for peer in asked if peer._users} == {}
    assert _tasks_before or asyncio.all_tasks() - set(_of_others) <= before


async def _start(
    stack: AsyncExitStack,
    directory: Path,
    name: str,
    facts: dict[str, NodeFacts],
    *,
    origin: Any,
    rules: tuple[Rule, ...],
    secrets: tuple[str, ...],
    patience_s: float,
    interim_every_s: float,
    clients: tuple[ClientKey, ...],
    fast: bool,
    compiled: bool,
    send_bytes: int,
) -> Node:
    clock, stats, ledger, counts = SystemClock(), Stats(), Ledger(1 << 24), RelayCounts()
    view = FixedView(name, facts)
    peers = Peers(name, CLUSTER, secrets, clock=clock, least_patience_s=patience_s)
    past = RelayingOrigin(origin, routes=view, peers=peers, counts=counts, clock=clock)
    tier = SegmentStore("ram", directory, 1 << 22, segment_bytes=1 << 22)
    engine, cache = await make_engine(
        Medium(tier, Source.RAM),
        origin,
        rules=rules,
        ledger=ledger,
        stats=stats,
        clock=clock,
        page_size=PAGE,
        ownership=view,
        past=past,
    )
    stack.push_async_callback(asyncio.to_thread, cache.close)
    stack.push_async_callback(past.aclose)
    stack.push_async_callback(engine.aclose)
    requests, peer_requests = Requests(), Requests()
    relays = PeerReads(routes=view, peers=peers, counts=counts, clock=clock) if fast else None
    handler = S3Handler(
        engine,
        Authenticator(clients, anonymous=True, clock=clock),
        begins=engine,
        relays=relays,
        clock=clock,
        observer=requests,
        log=Log(),
        verbose=False,
    )
    peer_handler = PeerHandler(
        engine,
        PeerAuthenticator(name, CLUSTER, secrets, clock=clock, boot=boot_of(name)),
        ownership=view,
        begins=engine,
        interim_every_s=interim_every_s,
        clock=clock,
        observer=peer_requests,
        log=Log(),
        verbose=False,
    )
    servers, ports = [], []
    own = engine.hits if compiled else None
    for one, seen, reads in ((handler, requests, relays), (peer_handler, peer_requests, None)):
        lane = FastLane(engine, one, clock=clock, jobs=seen, pace=one.pace, relays=reads, own=own)
        server = S3Server(one, lane)
        stack.push_async_callback(server.shutdown, 1.0)
        sock = socket.create_server(("127.0.0.1", 0))
        if send_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        await server.accept(sock)
        servers.append(server)
        ports.append(sock.getsockname()[1])
    node = Node(
        name,
        view,
        engine,
        counts,
        requests,
        peer_requests,
        *ports,
        peers=peers,
        relays=relays,
        handler=handler,
        peer_handler=peer_handler,
        server=servers[0],
        _peer_server=servers[1],
    )
    stack.push_async_callback(node.end)
    return node
