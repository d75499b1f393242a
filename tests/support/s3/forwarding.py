"""A worker that forwards requests, and its coordinator, in one process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.forward_handler import ForwardHandler
from shadeproxy.api.s3.head import HeadReader
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.worker_forwarder import WorkerForwarder
from shadeproxy.api.s3.worker_misses import SentKeys
from shadeproxy.api.s3.worker_path import (
    AskedCoordinator,
    CoordinatorSlots,
    ReportedOrigin,
    ReportedRequests,
    WorkerPath,
)
from shadeproxy.app.admin import Observer
from shadeproxy.app.reloadable import build_reloadable
from shadeproxy.app.request_log import RequestLog
from shadeproxy.app.worker_forwarding import WorkerForwarding
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.deadline import DEFAULT_BOUNDS
from shadeproxy.core.types import SHARED
from shadeproxy.engine.read.origin_keys import KeySender
from shadeproxy.engine.read.worker_forwards import WorkerForwards
from shadeproxy.origin.bucket_regions import BucketRegions
from shadeproxy.origin.credentials import AnonymousCredentials
from shadeproxy.origin.limit import LimitedOrigin, Slots
from shadeproxy.telemetry.otel import OtelTracer
from tests.support.s3.fetching import KnowsNothing, Wire
from tests.support.s3.scripted import Client, Setup


class Uncounted:
    """Takes counts of requests, and keeps none."""

    def count_forwarded(self, *_facts: Any) -> None: ...

    def note(self, *_facts: Any) -> None: ...

    def note_throttled(self) -> None: ...


class NoHits:
    """A fast lane without any answer."""

    parse = HeadReader().read

    def answer(self, _raw: bytes, _out: Any) -> None:
        return None


class ForwardingWorker:
    """A worker of the proxy of ``setup``, which forwards requests."""

    def __init__(self, setup: Setup, wire: Wire | None = None, tracer: OtelTracer | None = None) -> None:
        settings, clock = setup.settings, SystemClock()
        self.setup, self.wire = setup, wire or Wire()
        hints: Any = None
        limited: Any = setup.reads.limited
        counts: Any = setup.reads.counted
        assert isinstance(limited.forwards, Slots)
        self.slots = limited.forwards
        outbox = self.wire.outbox(lambda: self.forwarding.hear)
        self.forwards = WorkerForwards(
            setup.engine,
            outbox,
            KeySender(lambda: setup.reads.gets._provider_of(SHARED), outbox),
            slots=limited.forwards,
            counts=counts,
            requests=Observer(setup.proxy.stats, hints, clock, access_log=False),
        )
        reloadable = build_reloadable(settings)
        reads: Any = KnowsNothing()
        authenticator = Authenticator(reloadable.clients, anonymous=reloadable.anonymous, clock=clock)
        log = RequestLog(access_log=False)
        authorizer = RequestAuthorizer(reads, authenticator, observer=log, log=structlog.get_logger("test"))
        self.forwarding = WorkerForwarding(
            settings,
            reads,
            authenticator,
            self.wire.outbox(lambda: self.forwards.hear),
            instance=setup.reads.gets.instance,
            clock=clock,
            request_log=log,
            authorizer=authorizer,
            tracer=tracer,
            regions=BucketRegions(),
        )
        self.connections: set[WorkerProtocol] = set()
        self.relayed = 0
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Accept clients."""
        loop = asyncio.get_running_loop()
        host, _, port = self.setup.proxy.s3_address.rpartition(":")
        lane: Any = NoHits()

        async def connect(protocol: asyncio.Protocol, _peer: str) -> None:
            self.relayed += 1
            await loop.create_connection(lambda: protocol, host, int(port))

        self._server = await loop.create_server(
            lambda: WorkerProtocol(
                lane, connect, self.connections, keepalive_s=3600.0, forwards=self.forwarding.server
            ),
            "127.0.0.1",
            0,
        )
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def client(self) -> Client:
        """Return a client that is connected to the worker."""
        client = await Client.open(self.address)
        self.setup.clients.append(client)
        return client

    def lose(self) -> None:
        """Die: from now on the coordinator hears nothing of the worker, and messages to the
        worker are lost.
        """
        self.wire.is_cut = True
        self.forwards.close()

    async def settle(self) -> None:
        """Wait until no request is under way, neither in the worker nor in the proxy."""
        async with asyncio.timeout(5):
            while len(self.forwards) or self.slots.taken:
                await asyncio.sleep(0.001)
        await self.setup.settle()

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        assert self._server is not None
        self._server.close()
        for connection in list(self.connections):
            connection.cut()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.forwards.close()
        await self.forwarding.aclose()


@asynccontextmanager
async def forwarding(
    setup: Setup, wire: Wire | None = None, tracer: OtelTracer | None = None
) -> AsyncIterator[ForwardingWorker]:
    """Run a worker of the proxy of ``setup`` until the block ends."""
    worker = ForwardingWorker(setup, wire, tracer)
    await worker.listen()
    try:
        yield worker
    finally:
        await worker.close()


def server_before(proxy: Any) -> tuple[WorkerForwarder, WorkerForwards]:
    """Return the two sides that forward requests for a worker of ``proxy``: the worker's and the
    coordinator's.

    The origin of ``proxy`` is in memory.
    """
    wire, keys, clock = Wire(), SentKeys(), SystemClock()
    coordinator = AskedCoordinator(wire.outbox(lambda: forwards.hear), keys)
    outbox = wire.outbox(lambda: coordinator.hear)
    forwards = WorkerForwards(
        proxy.engine,
        outbox,
        KeySender(AnonymousCredentials, outbox),
        slots=Slots(8, max_wait_s=10.0, what="requests"),
        counts=Uncounted(),
        requests=Uncounted(),
    )
    limited = LimitedOrigin(proxy.origin, max_open=8, forwards=CoordinatorSlots(coordinator))
    path = WorkerPath(
        coordinator, ReportedOrigin(limited, coordinator.outbox, clock=clock, bounds=DEFAULT_BOUNDS)
    )
    reads: Any = KnowsNothing()
    handler = ForwardHandler(
        reads,
        path,
        proxy.handler._authenticator,
        clock=clock,
        observer=ReportedRequests(RequestLog(access_log=False), coordinator.outbox),
        log=structlog.get_logger("test"),
        base_domains=("h", "s3.local"),
    )
    return WorkerForwarder(handler, handler), forwards
