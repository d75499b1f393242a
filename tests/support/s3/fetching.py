"""A worker that fetches pages, in the same process as its coordinator: both sides, without processes."""

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
    """The frames between worker and coordinator: delivered in order, one turn of the loop later. ``rng``:
    delays some of them at random.

    ``is_cut``: the worker is dead. ``hold``: it is stopped, and neither half hears the other.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng
        self.is_cut = False
        self.behind = 0
        self.frames: list[bytes] = []
        self._is_held = False
        self._deliver: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Deliver nothing until ``go_on``."""
        self._is_held = True

    def go_on(self) -> None:
        """Deliver the waiting frames, and all later ones."""
        self._is_held = False
        for deliver in self._deliver:
            asyncio.get_running_loop().call_soon(deliver)

    def _is_stopped(self, waiting: deque[bytes]) -> bool:
        """Return whether nothing is delivered now: ``go_on`` delivers it, or it is lost."""
        if self.is_cut:
            waiting.clear()
        return self.is_cut or self._is_held

    def outbox(self, hear: Callable[[], Callable[[bytes], None]]) -> Outbox:
        """Return an outbox whose frames go to ``hear()``."""
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
    """A lane of a worker that has no hits."""

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
    """An observer that ignores everything, like a worker's."""

    def on_job(self, _job: Any) -> None: ...

    def on_request(self, **_facts: Any) -> None: ...


class _Connection(WorkerProtocol):
    """A connection that may be made after its worker died: then the kernel ends it."""

    def __init__(self, wire: Wire, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._wire = wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._wire.is_cut:
            self.cut()


class FetchingWorker:
    """A worker in front of ``setup``'s coordinator. ``begun``: fills that the coordinator allowed."""

    def __init__(
        self,
        setup: Setup,
        *,
        wire: Wire | None = None,
        fill_bytes: int = FILL_BYTES,
        most_orders: int = 0,
        tracer: OtelTracer | None = None,
    ) -> None:
        """``most_orders``: prefetches that go to it at a time. ``tracer``: makes otel spans of its reads."""
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
        """The address to which requests are relayed."""
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
        """Accept clients. From now on ``setup.client`` connects to this worker."""
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
        """Return a client of the worker."""
        client = await Client.open(self.address, receive_bytes=receive_bytes)
        self.setup.clients.append(client)
        return client

    async def warm(self, connections: int = 2) -> None:
        """Keep connections to the server idle."""
        peer = self.gets.peer_of(ObjectRef("b", "warm"))
        assert peer is not None
        pool = self.gets.pool
        taken = [await pool.take(peer, fresh=True) for _ in range(connections)]
        for connection in taken:
            connection.exchanges = 1
            pool.put_back(connection)

    def lose(self) -> None:
        """Die: from now on nothing is heard, sent, fetched or accepted."""
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
        """Counts of the resources that are held: by work under way, or because their release was
        forgotten.
        """
        return {
            "fills": len(self.fills),
            "misses": len(self.misses),
            "extents": self.extents.taken,
            "connections": self.gets.pool.in_use,
        }

    async def settle(self) -> None:
        """Wait until nothing is under way. Check that both sides have given everything back."""
        deadline_s = asyncio.get_running_loop().time() + 5
        while not self.wire.is_cut and any(self.held.values()):
            await asyncio.sleep(0.001)
            assert asyncio.get_running_loop().time() < deadline_s, self.held
        assert len(self.fills) == 0
        await self.setup.settle()
        if self.wire.is_cut:
            return
        while any(task.done() for task in self.misses._connecting):
            await asyncio.sleep(0)  # The callback that forgets a task runs a step later.
        assert not self.misses._connecting
        assert self.wire.behind == 0

    async def close(self) -> None:
        """Stop listening, and close the connections to the server."""
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
    """Open a worker in front of ``setup``."""
    worker = FetchingWorker(setup, **options)
    await worker.listen()
    try:
        yield worker
    finally:
        await worker.close()
