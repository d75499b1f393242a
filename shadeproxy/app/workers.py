"""Starts the workers of a proxy, watches them, starts them again after a crash, and ends them in order.

Laws: a worker ends when its channel closes. It inherits the locks of the cache directories, so the next
coordinator cannot start there before the last worker is gone. A dying worker loses only its connections, the
reads of its last 50 ms and the counts of its last half second. A worker that is silent for some seconds is
killed: until it ends, other clients wait for the pages that it fetches, and for its memory.
"""

import asyncio
import os
import secrets
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from shadeproxy.api.s3.server import S3Server
from shadeproxy.app.channel import (
    ALIVE,
    CONFIRMED,
    END,
    REGIONS,
    RELAYS,
    REQUESTS,
    SERVING,
    Change,
    Channel,
    Opening,
    nothing,
    pack_change,
    pack_opening,
    pack_regions,
    pack_routes,
    unpack_reads,
    unpack_regions,
    unpack_relays,
    unpack_requests,
)
from shadeproxy.app.connection_limits import ConnectionLimit
from shadeproxy.app.peer_listening import PeerListening
from shadeproxy.app.reloadable import ReloadableSettings
from shadeproxy.app.tls import Certificate
from shadeproxy.app.worker_openers import NO_OPENERS, NOTHING_OPENED, Openers
from shadeproxy.cluster.worker_routes import RoutesRecord
from shadeproxy.config import Settings
from shadeproxy.engine.access_records import Kind, Uses
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.worker_reads import TierFiles
from shadeproxy.origin.bucket_regions import BucketRegions
from shadeproxy.telemetry.requests import RequestRow
from shadeproxy.tiers.store import SegmentStore

_log = structlog.get_logger(__name__)
CRADLE = """
import ctypes, gc, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM: prctl(2)
if os.getppid() != int(sys.argv[2]):
    os._exit(1)
gc.disable()  # it would walk through all modules again and again, and find nothing
from shadeproxy.app.worker import main
gc.enable()
main()
"""
"""The program of a worker. While the worker imports its modules, it does not read its channel yet. During
that time only the signal that ``prctl`` orders tells it that the coordinator has died. Without the signal,
clients would wait at a listener that no process serves. Later the worker ignores the signal.
"""
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(16 << 20), "MALLOC_MMAP_THRESHOLD_": str(8 << 20)}
"""Variables for the environment of a worker, unless the user has set them. With these, glibc keeps up to 16
MiB of freed memory.

Bodies of uploads are pieces of up to 1 MB. With the defaults, glibc gives their pages back to the kernel and
gets them again for each upload, which takes a third of a worker's CPU (ADR 31).
"""
RELAY_KEEPALIVE_S = 1e6
"""Time after which the coordinator closes idle relay connections: practically never. Only the worker closes
them, because a close by the coordinator could cross a request.
"""
_RESTART_S = 1.0
# Short, because all relayed connections have ended before.
_RELAY_END_S = 0.1
_CONFIRM_S = 5.0
# A worker sends something every half second. Steps are counted instead of seconds, because after a pause of
# the coordinator itself, the messages of that time are heard only after the timer.
_LOOK_S = 1.0
_SILENT_LOOKS = 5
# A worker that starts on a busy machine reads its modules and tables for long. Were it held to the limit of a
# running worker, each change would kill it and begin its start again.
_START_S = 60.0


@dataclass(frozen=True, eq=False, slots=True)
class _Link:
    """One worker process, and the channel to it. ``unconfirmed``: a future for each change that was sent; it
    is done when the worker uses the change, or has ended. ``serving``: set once it accepts connections.
    ``heard``: set at each of its messages.
    """

    channel: Channel
    process: asyncio.subprocess.Process
    unconfirmed: deque[asyncio.Future[None]]
    serving: asyncio.Event
    heard: asyncio.Event


class Workers:
    """All workers of the proxy. ``on_reads`` gets the reads that they report; ``on_requests`` gets their
    counts of requests.
    """

    def __init__(
        self,
        settings: Settings,
        reloadable: ReloadableSettings,
        media: Sequence[Medium],
        *,
        share: Share,
        on_reads: Callable[[Uses, list[Kind]], None],
        on_requests: Callable[[list[RequestRow]], None],
        certificate: Certificate | None,
        openers: Openers = NO_OPENERS,
    ) -> None:
        """Make the object; ``start`` starts the processes. ``certificate``: the certificate, if the listener
        uses TLS.
        """
        self._openers = openers
        self._count = settings.s3.processes - 1
        # An abstract socket: it is in no file system and ends with the process.
        self._address = f"\0shadeproxy-{secrets.token_hex(16)}"
        self._peers_address = f"{self._address}-peers"
        claims, tiers = [], []
        for medium in media:
            assert isinstance(medium.tier, SegmentStore)
            assert medium.tier.claim is not None, "tiers are opened before workers"
            claim = medium.tier.claim
            claims.append(claim.descriptor)
            tiers.append(TierFiles(claim.path, claim.store_id, medium.source, medium.load is not None))
        self.reloadable = reloadable
        """The reloadable settings that the workers use now."""
        self.serving = asyncio.Event()
        """Set once a worker accepts connections."""
        self._certificate = certificate
        self._settings = settings
        self._tiers = tuple(tiers)
        self._share = share
        self._claims = claims
        self._on_reads = on_reads
        self._on_requests = on_requests
        self._regions = BucketRegions()
        self._relays: list[S3Server] = []
        self._listener: socket.socket | None = None
        self._peers: PeerListening | None = None
        self._routes: bytes | None = None
        self._stopping = False
        self._links: set[_Link] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def numbers(self) -> list[int]:
        """The process ids of the workers that run."""
        return [link.process.pid for link in self._links]

    async def start(
        self,
        listener: socket.socket,
        relay: S3Server,
        limit: ConnectionLimit,
        peers: PeerListening | None = None,
    ) -> None:
        """Start the workers, which accept from ``listener`` too within about a second. ``relay`` serves the
        requests that they pass on. ``limit``: the limit of client connections. ``peers``: the listener for
        other proxies of a cluster, and the server for requests of other proxies.
        """
        self._listener, self._peers = listener, peers
        await self._accept(self._address, relay)
        if peers is not None:
            await self._accept(self._peers_address, peers.relay)
        self._tasks = [
            asyncio.create_task(self._keep(listener, limit, row), name="worker")
            for row in range(1, self._count + 1)
        ]

    def tell_routes(self, record: RoutesRecord) -> None:
        """Send the routes of the newest view to all workers. A worker that starts later gets them too."""
        self._routes = pack_routes(record)
        for link in self._links:
            link.channel.say(self._routes)

    def share_regions(self, regions: BucketRegions) -> None:
        """Keep ``regions`` the same in all processes. Call this before ``start``."""
        self._regions, regions.on_learnt = regions, self._tell_region

    def _tell_region(self, bucket: str, region: str) -> None:
        for link in self._links:
            link.channel.say(pack_regions([(bucket, region)]))

    async def adopt(self, change: Change) -> None:
        """Send new settings or a new certificate, and return when no worker uses older ones. A worker that
        does not confirm in time that it uses the change is killed and replaced. A worker that still starts
        has more time.
        """
        if isinstance(change, Certificate):
            self._certificate = change
        else:
            self.reloadable = change
        asked: dict[asyncio.Future[None], _Link] = {}
        for link in self._links:
            future = asyncio.get_running_loop().create_future()
            link.unconfirmed.append(future)
            asked[future] = link
            if not link.channel.say(pack_change(change)):
                _kill(link.process)
        await asyncio.gather(*(self._confirmed(*one) for one in asked.items()))

    async def _confirmed(self, future: asyncio.Future[None], link: _Link) -> None:
        """Wait until a worker uses a change, and kill the worker if that takes too long."""
        limit_s = _CONFIRM_S if link.serving.is_set() else _START_S
        _, late = await asyncio.wait([future], timeout=limit_s)
        if late:
            _kill_silent(link, limit_s)
            # Not ``await future``: a stop that cancels this task would cancel the future too.
            await asyncio.wait(late)

    async def _watch(self, link: _Link) -> None:
        """Kill the worker when it has sent nothing for some seconds."""
        await link.serving.wait()
        silent = 0
        while silent < _SILENT_LOOKS:
            await asyncio.sleep(_LOOK_S)
            silent = 0 if link.heard.is_set() else silent + 1
            link.heard.clear()
        _kill_silent(link, _SILENT_LOOKS * _LOOK_S)

    async def stop(self, limit_s: float) -> None:
        """Let the workers finish their requests, and kill workers that still run after ``limit_s``."""
        self._stopping = True
        for link in self._links:
            link.channel.say(END)
        if self._listener is not None:
            stop_listening(self._listener)
        if (peers := self._peers) is not None and not peers.server.is_accepting:
            # While clients still get answers from this proxy, it keeps its lease. So other proxies must still
            # reach it.
            await peers.server.accept(peers.listener.dup(), peers.tls)
        ending = [asyncio.create_task(relay.end_connections(limit_s)) for relay in self._relays]
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=limit_s)
            for link in self._links if late else ():
                _kill(link.process)
            await asyncio.gather(*self._tasks)
        await asyncio.gather(*ending)
        for relay in self._relays:
            await relay.shutdown(_RELAY_END_S)

    async def _accept(self, address: str, server: S3Server) -> None:
        self._relays.append(server)
        link = socket.socket(socket.AF_UNIX)
        link.bind(address)
        await server.accept(link)

    async def _keep(self, listener: socket.socket, limit: ConnectionLimit, row: int) -> None:
        """Run one worker after the other. ``row``: where each of them counts its connections."""
        while not self._stopping:
            try:
                code = await self._run(listener.fileno(), limit, row)
            except OSError as error:  # The machine is short of processes, descriptors or memory.
                _log.warning("a worker cannot be started; it is tried again", error=str(error))
            else:
                if not self._stopping:
                    _log.warning("a worker ended; another one is started", code=code)
            if not self._stopping:
                await asyncio.sleep(_RESTART_S)

    async def _run(self, listener: int, limit: ConnectionLimit, row: int) -> int:
        # Ask for the descriptor now: while this worker starts, ``stop`` may close the listener.
        cluster = None if (peers := self._peers) is None else peers.ends(self._peers_address, row)
        ours, theirs = socket.socketpair()
        unconfirmed, serving, heard = deque[asyncio.Future[None]](), asyncio.Event(), asyncio.Event()

        def hear(frame: bytes) -> None:
            heard.set()
            if frame == CONFIRMED:
                unconfirmed.popleft().set_result(None)
            elif frame == SERVING:
                self.serving.set()
                serving.set()
                opened.serve()
            elif frame != ALIVE:
                self._hear_report(frame)

        started: list[asyncio.subprocess.Process] = []
        opened, channel = NOTHING_OPENED, None
        try:
            with theirs:
                opened = await self._openers.open(lambda: _kill(started[0]))
                channel = await Channel.open(ours, hear, nothing)
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    CRADLE,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    pass_fds=(
                        theirs.fileno(),
                        self._share.descriptor,
                        listener,
                        limit.descriptor,
                        *([] if cluster is None else [cluster.listener, cluster.limit.descriptor]),
                        *self._claims,
                        *opened.inherited,
                    ),
                    stdin=asyncio.subprocess.DEVNULL,
                    env=_MALLOC | os.environ,
                )
        except BaseException:
            opened.close()
            ours.close() if channel is None else channel.close()
            raise
        finally:
            opened.close_theirs()
        started.append(process)
        link = _Link(channel, process, unconfirmed, serving, heard)
        self._links.add(link)
        opening = Opening(
            self._settings,
            self.reloadable,
            self._tiers,
            self._share.descriptor,
            listener,
            self._address,
            limit.of_worker(row),
            certificate=self._certificate,
            fills=opened.fills and opened.fills.ends,
            forwards=opened.forwards and opened.forwards.ends,
            cluster=cluster,
        )
        self._greet(channel, opening)
        watching = asyncio.create_task(self._watch(link), name="worker-watch")
        try:
            return await process.wait()
        finally:
            watching.cancel()
            self._links.discard(link)
            limit.ended(row)
            if peers is not None:
                peers.limit.ended(row)
            channel.close()
            opened.close()
            for future in unconfirmed:
                future.set_result(None)
            unconfirmed.clear()

    def _hear_report(self, frame: bytes) -> None:
        """Process what a worker reports: its counts, its reads, or the region of a bucket."""
        if frame.startswith(REQUESTS):
            self._on_requests(unpack_requests(frame))
        elif frame.startswith(REGIONS):
            for bucket, region in unpack_regions(frame):
                self._regions.learn(bucket, region)
        elif frame.startswith(RELAYS) and self._peers is not None:
            self._peers.on_relays(unpack_relays(frame))
        else:
            self._on_reads(*unpack_reads(frame))

    def _greet(self, channel: Channel, opening: Opening) -> None:
        """Send the first messages to a new worker."""
        channel.say(pack_opening(opening))
        channel.say(pack_regions(self._regions.all()))
        if self._routes is not None:
            channel.say(self._routes)
        if self._stopping:
            channel.say(END)


def stop_listening(listener: socket.socket) -> None:
    """Refuse connections from now on, also those that no process has accepted yet. Otherwise these would wait
    as long as any worker has the descriptor open, even a worker that no longer accepts.
    """
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _kill_silent(link: _Link, silent_s: float) -> None:
    _log.warning("a worker does not answer and is ended", process=link.process.pid, after_s=silent_s)
    _kill(link.process)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # It may have ended, although the coordinator does not know it yet.
        process.kill()
