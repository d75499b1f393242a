"""A worker that fetches pages, and its coordinator, in one process."""

import asyncio
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.otel_handler import OtelRequests
from shadeproxy.api.s3.otel_worker_misses import OtelWorkerMisses
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.timeout_answers import TimeoutAnswers
from shadeproxy.api.s3.worker_misses import SentKeys, WorkerMisses
from shadeproxy.app.origins import build_origin, read_bounds
from shadeproxy.app.reloadable import build_reloadable
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.types import SHARED, ObjectMeta, ObjectRef
from shadeproxy.engine.read.body_files import BodyFiles
from shadeproxy.engine.read.fill_memory import FillExtents, FillMemory
from shadeproxy.engine.read.fill_messages import Outbox
from shadeproxy.engine.read.worker_fills import WorkerFills
from shadeproxy.telemetry.otel import OtelTracer
from tests.support.s3.scripted import PAGE, Client, Setup

FILL_BYTES = 16 * PAGE


class Wire:
    """Carries the messages between worker and coordinator in order, one turn of the event loop later.

    ``rng``: delays some messages at random, if given.
    ``is_cut``: True when the worker is dead.
    ``hold``: stops the worker, so that neither side hears the other.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng
        self.is_cut = False
        self.behind = 0
        self.frames: list[bytes] = []
        self._is_held = False
        self._deliver: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Deliver no message until ``go_on``."""
        self._is_held = True

    def go_on(self) -> None:
        """Deliver the messages that wait, and all later ones."""
        self._is_held = False
        for deliver in self._deliver:
            asyncio.get_running_loop().call_soon(deliver)

    def _is_stopped(self, waiting: deque[bytes]) -> bool:
        """Return whether no message may be delivered now. If the worker is dead, waiting messages
        are lost.
        """
        if self.is_cut:
            waiting.clear()
        return self.is_cut or self._is_held

    def outbox(self, hear: Callable[[], Callable[[bytes], None]]) -> Outbox:
        """Return an outbox. ``hear()`` returns the function that gets its messages."""
        waiting: deque[bytes] = deque()

        def deliver() -> None:
            if self._is_stopped(waiting):
                return
            if self.rng is not None and self.rng.random() < 0.6:
                asyncio.get_running_loop().call_later(self.rng.random() * 0.004, deliver)
            elif waiting:
                hear()(waiting.popleft())
                if waiting:
                    asyncio.get_running_loop().call_soon(deliver)

        def say(frame: bytes) -> bool:
            if self.is_cut:
                return False
            self.frames.append(frame)
            waiting.append(frame)
            if len(waiting) == 1:
                asyncio.get_running_loop().call_soon(deliver)
            return True

        def behind() -> None:
            self.behind += 1

        self._deliver.append(deliver)
        return Outbox(say, behind)


class KnowsNothing:
    """A stand-in for the reads of a worker, in which no object is cached."""

    def cacheable(self, _ref: ObjectRef) -> bool:
        return True

    def usable_now(self, _request: Any) -> ObjectMeta | None:
        return None

    find_now = usable_now

    def find_handle(self, *_: Any) -> None:
        return None

    def take(self, *_: Any) -> None:
        return None

    take_slices = take


class Silent:
    """An observer that ignores all calls, as that of a worker does."""

    def on_job(self, _job: Any) -> None: ...

    def on_request(self, **_facts: Any) -> None: ...


class _Connection(WorkerProtocol):
    """A client's connection. If it is accepted after the worker has died, it ends, as the kernel would end
    it.
    """

    def __init__(self, wire: Wire, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._wire = wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._wire.is_cut:
            self.cut()


class FetchingWorker:
    """A worker of the proxy of ``setup``. ``begun``: paths of the fills that the coordinator has allowed."""

    def __init__(
        self,
        setup: Setup,
        *,
        wire: Wire | None = None,
        fill_bytes: int = FILL_BYTES,
        most_orders: int = 0,
        tracer: OtelTracer | None = None,
    ) -> None:
        """Make a worker that gets at most ``most_orders`` prefetches at a time.

        If ``tracer`` is given, it makes otel spans of the worker's reads.
        """
        settings, clock = setup.settings, SystemClock()
        self.setup = setup
        self.wire = wire or Wire()
        self.memory = FillMemory.create(fill_bytes)
        theirs = FillMemory(os.dup(self.memory.descriptor))
        self.theirs = theirs
        provider = setup.reads.gets._provider_of(SHARED)
        self.fills = WorkerFills(
            setup.engine,
            self.memory,
            self.wire.outbox(lambda: self.misses.hear),
            slots=setup.reads.limited,
            counts=setup.reads.counted,
            provider=lambda: provider,
            clock=clock,
            bounds=read_bounds(settings),
            on_job=lambda _job: None,
            most_orders=most_orders,
        )
        if most_orders:
            setup.engine.prefetch_port._reads = lambda: self.fills if self.fills.takes_orders else None
        keys = SentKeys()
        gets = build_origin(
            settings, clock=clock, providers={SHARED: keys}, instance=setup.reads.gets.instance
        ).gets
        assert gets is not None
        self.gets = gets
        self.extents = FillExtents(theirs)
        reloadable = build_reloadable(settings)
        reads: Any = KnowsNothing()
        self.spans = None if tracer is None else OtelRequests(tracer, Silent())
        authorizer = RequestAuthorizer(
            reads,
            Authenticator(reloadable.clients, anonymous=reloadable.anonymous, clock=clock),
            observer=self.spans or Silent(),
            log=structlog.get_logger("test"),
        )
        self.late = TimeoutAnswers(authorizer, clock=clock, bounds=read_bounds(settings))
        self.coordinator = setup.proxy.s3_address
        """The address of the coordinator, to which the worker relays requests."""
        make: Callable[..., WorkerMisses] = WorkerMisses
        if self.spans is not None:
            make = partial(OtelWorkerMisses, tracer=tracer, spans=self.spans)
        self.misses = make(
            gets,
            keys,
            self.extents,
            self.wire.outbox(lambda: self.fills.hear),
            reports=authorizer,
            late=self.late,
            clock=clock,
            page_size=PAGE,
            bodies=BodyFiles(theirs, settings.cache.ram.path),
        )
        self.fast = FastLane(reads, authorizer, clock=clock, jobs=Silent())
        self.connections: set[WorkerProtocol] = set()
        self.begun: list[str] = []
        start = self.misses.reads.start

        def started(wanted: Any, *rest: Any) -> Any:
            read = start(wanted, *rest)
            if read is not None:
                self.begun.append(f"/{wanted.ref.bucket}/{wanted.ref.key}")
            return read

        self.misses.reads.start = started  # type: ignore[method-assign]
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Accept clients."""
        loop = asyncio.get_running_loop()

        async def connect(protocol: asyncio.Protocol, _peer: str) -> None:
            host, _, port = self.coordinator.rpartition(":")
            await loop.create_connection(lambda: protocol, host, int(port))

        def accept() -> WorkerProtocol:
            return _Connection(
                self.wire,
                self.fast,
                connect,
                self.connections,
                keepalive_s=3600.0,
                misses=self.misses,
                late=self.late,
            )

        self._server = await loop.create_server(accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def client(self, *, receive_bytes: int = 0) -> Client:
        """Return a client that is connected to the worker."""
        client = await Client.open(self.address, receive_bytes=receive_bytes)
        self.setup.clients.append(client)
        return client

    async def warm(self, connections: int = 2) -> None:
        """Open connections to the server, and keep them idle."""
        peer = self.gets.peer_of(ObjectRef("b", "warm"))
        assert peer is not None
        pool = self.gets.pool
        taken = [await pool.take(peer, fresh=True) for _ in range(connections)]
        for connection in taken:
            connection.exchanges = 1
            pool.put_back(connection)

    def lose(self) -> None:
        """Die: hear, send, fetch and accept nothing from now on."""
        self.wire.is_cut = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.cut()
        for fill in list(self.misses._fills.values()):
            fill._abort()
        self.fills.close()
        self.fills.ended()

    @property
    def held(self) -> dict[str, int]:
        """Return how many resources of each kind the worker holds.

        After all work has ended, each count must be 0: otherwise a release was forgotten.
        """
        return {
            "fills": len(self.fills),
            "misses": len(self.misses),
            "extents": self.extents.taken,
            "connections": self.gets.pool.in_use,
        }

    async def settle(self) -> None:
        """Wait until nothing is under way. Check that worker and coordinator hold no resource any more."""
        deadline_s = asyncio.get_running_loop().time() + 5
        while not self.wire.is_cut and any(self.held.values()):
            await asyncio.sleep(0.001)
            assert asyncio.get_running_loop().time() < deadline_s, self.held
        assert len(self.fills) == 0
        await self.setup.settle()
        if self.wire.is_cut:
            return
        while any(task.done() for task in self.misses._connecting):
            await asyncio.sleep(0)  # A task is forgotten by a callback, one turn later.
        assert not self.misses._connecting
        assert self.wire.behind == 0

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        assert self._server is not None
        self._server.close()
        for connection in list(self.connections):
            connection.cut()
        await asyncio.sleep(0)
        self.fills.close()
        self.fills.ended()
        await self.misses.aclose()
        self.memory.close()
        self.theirs.close()


@asynccontextmanager
async def fetching(setup: Setup, **options: Any) -> AsyncIterator[FetchingWorker]:
    """Run a worker of the proxy of ``setup`` until the block ends."""
    worker = FetchingWorker(setup, **options)
    await worker.listen()
    try:
        yield worker
    finally:
        await worker.close()
