"""A worker: a process that serves requests. Only ``workers.py`` starts it.

It answers hits, and relays to the coordinator the requests that it cannot serve itself. It ends at once when
the coordinator is gone, because the next coordinator may overwrite the cache. It ignores signals: the
coordinator handles them and tells it when to end.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NoReturn

import structlog
import uvloop

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.handshake import Handshakes
from shadeproxy.api.s3.held_answers import HeldAnswers
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.otel_handler import OtelRequests
from shadeproxy.api.s3.otel_worker_misses import OtelWorkerMisses
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.relay_connection import dial
from shadeproxy.api.s3.response import KEEPALIVE_S, PEER_KEEPALIVE_S
from shadeproxy.api.s3.timeout_answers import TimeoutAnswers
from shadeproxy.api.s3.worker_misses import SentKeys, WorkerMisses
from shadeproxy.api.s3.worker_relays import BeginsLaneReads
from shadeproxy.app.bus_errors import explain_bus_errors
from shadeproxy.app.channel import (
    ALIVE,
    CONFIRMED,
    END,
    REGIONS,
    ROUTES,
    SERVING,
    Change,
    Channel,
    FillEnds,
    ForwardEnds,
    Opening,
    first_frame,
    pack_reads,
    pack_regions,
    pack_requests,
    unpack_change,
    unpack_opening,
    unpack_regions,
    unpack_routes,
)
from shadeproxy.app.connection_limits import worker_limiter
from shadeproxy.app.limits import collect_less, raise_descriptor_limit
from shadeproxy.app.origins import build_origin, read_bounds
from shadeproxy.app.otel import open_tracer
from shadeproxy.app.reloadable import ReloadableSettings, configure_log, is_verbose, remembers
from shadeproxy.app.request_log import WorkerRequestLog
from shadeproxy.app.tls import Certificate, server_context, use_certificate
from shadeproxy.app.worker_access import SharedReadsAuthorizer
from shadeproxy.app.worker_cluster import ClusterInWorker, PeerWorkerProtocol
from shadeproxy.app.worker_forwarding import WorkerForwarding
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.types import SHARED
from shadeproxy.engine.access_records import Kind, Uses
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.read.body_files import BodyFiles
from shadeproxy.engine.read.fill_memory import FillExtents, FillMemory
from shadeproxy.engine.read.fill_messages import Outbox
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.worker_reads import WorkerReads
from shadeproxy.origin.bucket_regions import BucketRegions
from shadeproxy.telemetry.otel import OtelTracer

_FLUSH_S = 0.05
_TELL_S = 0.5
_BACKLOG = 1024
_LEAST_HELD_BYTES = 16 << 20


class WorkerProcess:
    """A worker, from its start with ``opening`` until the coordinator ends it or is gone."""

    def __init__(self, opening: Opening, tracer: OtelTracer | None = None) -> None:
        """``tracer``: makes otel spans of the requests that are served here."""
        settings, clock = opening.settings, SystemClock()
        self._opening = opening
        self._channel: Channel | None = None
        self._regions = BucketRegions()
        self._regions.on_learnt = self._tell_region
        self._servers: list[asyncio.Server] = []
        self._handshakes: list[Handshakes] = []
        self._over = asyncio.Event()
        self._connections: set[WorkerProtocol] = set()
        self._rules = Rules(opening.reloadable.rules)
        self._authenticator = Authenticator(
            opening.reloadable.clients, anonymous=opening.reloadable.anonymous, clock=clock
        )
        self._cluster = cluster = (
            None if opening.cluster is None else ClusterInWorker(settings, opening.cluster, clock=clock)
        )
        workers = max(settings.s3.processes - 1, 1)
        self._held = HeldAnswers(max(settings.cache.inflight // 2 // workers, _LEAST_HELD_BYTES))
        self._reader = WorkerReads(
            Share(opening.share),
            opening.tiers,
            rules=self._rules,
            clock=clock,
            page_size=settings.cache.page_size,
            on_flush=self._tell,
            by_verdicts=opening.reloadable.origin_decides,
            is_elsewhere=None if cluster is None else cluster.is_elsewhere,
            longest=self._held.longest,
        )
        if cluster is not None:
            cluster.open_lane(self._reader, opening.reloadable)
        telemetry, certificate = opening.reloadable.telemetry, opening.certificate
        self._tls = None if certificate is None else server_context(certificate)
        self._request_log = WorkerRequestLog(self._reader, access_log=telemetry.access_log)
        self._limiter = worker_limiter(opening.limit, clock=clock, counts=self._request_log.counts)
        self._peer_limiter = (
            None if opening.cluster is None else worker_limiter(opening.cluster.limit, clock=clock)
        )
        self._tracer = tracer
        self._spans = None if tracer is None else OtelRequests(tracer, self._request_log)
        self._authorizer = SharedReadsAuthorizer(
            self._reader,
            self._authenticator,
            observer=self._spans or self._request_log,
            log=structlog.get_logger("shadeproxy.s3"),
            base_domains=tuple(domain.lower() for domain in settings.s3.domains),
            verbose=is_verbose(telemetry),
        )
        self._fast = FastLane(
            self._reader,
            self._authorizer,
            clock=clock,
            jobs=self._request_log,
            remembers=remembers(telemetry),
            counts=self._request_log.counts,
            shared=self._reader,
            # With a tracer, relay reads to the coordinator instead, because it makes their spans.
            relays=None if cluster is None or tracer is not None else cluster.relays,
        )
        self._clock = clock
        self._late = TimeoutAnswers(self._authorizer, clock=clock, bounds=read_bounds(settings))
        self._misses: WorkerMisses | None = None
        self._begins: BeginsLaneReads | None = None
        self._forwards: WorkerForwarding | None = None

    async def run(self, end: socket.socket) -> None:
        """Accept connections until the coordinator ends this process; then let the requests under way
        finish.
        """
        self._channel = Channel(self._hear, self._die)
        await self._channel.attach(end)
        if self._opening.fills is not None:
            self._misses = await self._open_misses(self._opening.fills)
        if self._opening.forwards is not None:
            self._forwards = await self._open_forwards(self._opening.forwards)
            self._forwards.handler.verbose = self._authorizer.verbose
        self._begins = self._misses
        if self._cluster is not None:
            self._begins = self._cluster.begins(self._authorizer, self._misses)
        await self._listen(self._opening.listener, self._protocol, self._limiter)
        if self._opening.cluster is not None and self._peer_limiter is not None:
            await self._listen(self._opening.cluster.listener, self._peer_protocol, self._peer_limiter)
        if not self._over.is_set():
            self._channel.say(SERVING)
        loop, due_s = asyncio.get_running_loop(), 0.0
        while not self._over.is_set() or self._connections:
            await asyncio.sleep(_FLUSH_S)
            self._reader.flush()
            if loop.time() >= due_s:  # While turns take long, fewer of them pass.
                due_s = loop.time() + _TELL_S
                self._tell_requests(self._channel)
        self._reader.flush()
        for part in (self._misses, self._forwards, self._cluster):
            if part is not None:
                await part.aclose()
        self._tell_requests(self._channel)
        self._channel.leave()

    async def _listen(
        self, descriptor: int, make: Callable[[], WorkerProtocol], limiter: ConnectionLimiter
    ) -> None:
        """Accept connections from a listener, unless this process has been told to end."""
        listener = socket.socket(fileno=descriptor)
        if self._over.is_set():
            listener.close()
            return
        factory: Callable[[], asyncio.Protocol] = make
        if self._tls is not None:
            self._handshakes.append(Handshakes(make, self._tls, limiter))
            factory = self._handshakes[-1]
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(factory, sock=listener, backlog=_BACKLOG))
        if self._over.is_set():
            self._end()

    async def _open_misses(self, ends: FillEnds) -> WorkerMisses | None:
        """Open channel and fill memory, and return the object that fetches pages."""
        settings, keys = self._opening.settings, SentKeys()
        gets = build_origin(
            settings,
            clock=self._clock,
            providers={SHARED: keys},
            instance=ends.instance,
            regions=self._regions,
        ).gets
        assert gets is not None, "the coordinator reads by callbacks"

        def hear(frame: bytes) -> None:
            misses.hear(frame)

        channel = await Channel.open(socket.socket(fileno=ends.channel), hear, self._die)
        memory = FillMemory(ends.memory)
        make: Callable[..., WorkerMisses] = WorkerMisses
        if self._tracer is not None and self._spans is not None:
            make = partial(OtelWorkerMisses, tracer=self._tracer, spans=self._spans)
        misses = make(
            gets,
            keys,
            FillExtents(memory),
            Outbox(channel.say, self._die),
            reports=self._authorizer,
            late=self._late,
            clock=self._clock,
            page_size=settings.cache.page_size,
            bodies=BodyFiles(memory, self._opening.tiers[0].path),
        )
        return misses

    async def _open_forwards(self, ends: ForwardEnds) -> WorkerForwarding:
        """Open the channel for forwarded requests, and return the object that forwards them."""

        def hear(frame: bytes) -> None:
            forwards.hear(frame)

        channel = await Channel.open(socket.socket(fileno=ends.channel), hear, self._die)
        forwards = WorkerForwarding(
            self._opening.settings,
            self._reader,
            self._authenticator,
            Outbox(channel.say, self._die),
            instance=ends.instance,
            clock=self._clock,
            request_log=self._request_log,
            authorizer=self._authorizer,
            regions=self._regions,
            tracer=self._tracer,
        )
        return forwards

    def _protocol(self) -> WorkerProtocol:
        connection = self._fast.worker_protocol(WorkerProtocol)(
            self._fast,
            self._connect,
            self._connections,
            keepalive_s=KEEPALIVE_S,
            limiter=self._limiter,
            held=self._held,
            misses=self._begins,
            late=self._late,
            forwards=None if self._forwards is None else self._forwards.server,
        )
        return self._ended(connection)

    def _peer_protocol(self) -> WorkerProtocol:
        cluster, ends = self._cluster, self._opening.cluster
        assert cluster is not None, "only then another proxy can connect"
        assert cluster.lane is not None, "it was opened at the start"
        assert ends is not None, "as above"
        connect = partial(self._dial, ends.relay)
        return self._ended(
            cluster.lane.worker_protocol(PeerWorkerProtocol)(
                cluster.lane,
                connect,
                self._connections,
                keepalive_s=PEER_KEEPALIVE_S,
                limiter=self._peer_limiter,
                held=self._held,
            )
        )

    def _ended(self, connection: WorkerProtocol) -> WorkerProtocol:
        """End the connection, if it was accepted in the same turn of the event loop in which its server was
        closed. Return it.
        """
        if self._over.is_set():
            connection.end()
        return connection

    async def _connect(self, protocol: asyncio.Protocol, peer: str) -> None:
        await self._dial(self._opening.relay, protocol, peer)

    async def _dial(self, relay: str, protocol: asyncio.Protocol, peer: str) -> None:
        await dial(relay, protocol, peer, secure=self._tls is not None)

    def _hear(self, frame: bytes) -> None:
        if frame.startswith(ROUTES):
            if self._cluster is not None:
                self._cluster.adopt(unpack_routes(frame))
            return
        if frame.startswith(REGIONS):
            for bucket, region in unpack_regions(frame):
                self._regions.adopt(bucket, region)
            return
        if frame != END:
            self._adopt(unpack_change(frame))
            return
        self._over.set()
        self._end()

    def _end(self) -> None:
        for server in self._servers:
            server.close()
        for handshakes in self._handshakes:
            handshakes.end()
        for connection in list(self._connections):
            connection.end()

    def _adopt(self, change: Change) -> None:
        if isinstance(change, Certificate):
            assert self._tls is not None, "only a listener with TLS has a certificate"
            use_certificate(self._tls, change)
        else:
            self._adopt_settings(change)
        assert self._channel is not None, "the change came through it"
        self._channel.say(CONFIRMED)

    def _adopt_settings(self, reloadable: ReloadableSettings) -> None:
        telemetry = reloadable.telemetry
        self._authenticator.adopt(reloadable.clients, anonymous=reloadable.anonymous)
        self._rules.adopt(reloadable.rules)
        self._reader.forget(by_verdicts=reloadable.origin_decides)
        self._authorizer.verbose = is_verbose(telemetry)
        if self._forwards is not None:
            self._forwards.handler.verbose = is_verbose(telemetry)
        self._request_log.access_log = telemetry.access_log
        self._fast.forget(remembers=remembers(telemetry))
        if self._cluster is not None:
            self._cluster.adopt_settings(reloadable)
        configure_log(telemetry, worker=os.getpid())

    def _die(self) -> NoReturn:
        try:
            for connection in list(self._connections):
                connection.cut()
        finally:
            os._exit(1)

    def _tell_requests(self, channel: Channel) -> None:
        self._fast.count_hits()
        rows = self._request_log.counts.take()
        channel.say(pack_requests(rows) if rows else ALIVE)
        if self._cluster is not None:
            self._cluster.tell_counts(channel.say)

    def _tell_region(self, bucket: str, region: str) -> None:
        assert self._channel is not None, "nothing is asked before the channel is open"
        self._channel.say(pack_regions([(bucket, region)]))

    def _tell(self, uses: Uses, kinds: list[Kind]) -> None:
        assert self._channel is not None, "nothing is read before the channel is open"
        try:
            self._channel.say(pack_reads(uses, kinds))
        except UnicodeEncodeError:
            return  # The name of a job is not valid text. The reads of these 50 ms are then not counted.


def main() -> None:
    """Run a worker. Its argument is the descriptor of the channel to the coordinator."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    opening = unpack_opening(first_frame(end))
    configure_log(opening.reloadable.telemetry, worker=os.getpid())
    raise_descriptor_limit()
    explain_bus_errors()
    collect_less()
    uvloop.run(_serve(opening, end))


async def _serve(opening: Opening, end: socket.socket) -> None:
    async with AsyncExitStack() as stack:
        tracer = await open_tracer(opening.settings, SystemClock(), stack)
        await WorkerProcess(opening, tracer).run(end)
