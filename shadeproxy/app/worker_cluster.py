"""A worker's part in a cluster whose proxies share their pages. It relays reads of its clients to the other
proxies. It also answers requests of other proxies, if they hit this proxy's part of the cache.

Law: a worker takes no part in the protocol of leases and views. The coordinator sends it the routes. The
coordinator also writes the end of its lease into the shared table, and after that time the worker does not
answer from the cache.
"""

from collections.abc import Callable

import structlog

from shadeproxy.api.s3.auth.peers import PeerAuthenticator
from shadeproxy.api.s3.exchange import ReadReports
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.relay_read import RELAYED_BUDGET_BYTES
from shadeproxy.api.s3.worker_relays import BeginsFills, WorkerRelays
from shadeproxy.app.channel import ClusterEnds, pack_relays
from shadeproxy.app.origins import read_bounds
from shadeproxy.app.reloadable import ReloadableSettings, is_verbose, remembers
from shadeproxy.app.request_log import RequestLog
from shadeproxy.app.worker_access import SharedReadsAuthorizer
from shadeproxy.cluster.peer_reads import PeerReads
from shadeproxy.cluster.peers import Peers, peer_timeouts
from shadeproxy.cluster.relay_counts import RelayCounts
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.worker_routes import RoutesRecord, WorkerRoutes
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import PeerError
from shadeproxy.engine.worker_reads import WorkerReads

_log = structlog.get_logger(__name__)
_LEAST_BUDGET_BYTES = 4 << 20
_LEAST_CONNECTIONS = 8


class PeerWorkerProtocol(WorkerProtocol):
    """A connection of another proxy."""

    breaks_off_with_fin = True
    """True: another proxy notices a body that is too short. See ``S3Handler.breaks_off_with_fin``."""


class ClusterInWorker:
    """The parts by which one worker serves in a cluster. ``relays``: begins plain reads at other proxies, for
    the fast lane of clients.
    """

    def __init__(self, settings: Settings, ends: ClusterEnds, *, clock: Clock) -> None:
        cluster, secrets = settings.cluster, ends.secrets
        self._settings = settings
        self._clock = clock
        self._routes = WorkerRoutes(ends.node, Seals(cluster.name, secrets))
        self._counts = RelayCounts()
        processes = settings.s3.processes
        self._peers = Peers(
            ends.node,
            cluster.name,
            secrets,
            clock=clock,
            tls=bool(settings.s3.tls.cert),
            ca_file=cluster.peer_ca_file or None,
            timeouts=peer_timeouts(settings.origin.timeouts.read),
            least_patience_s=cluster.peer_timeout,
            max_connections=max(settings.origin.max_connections // processes, _LEAST_CONNECTIONS),
        )
        self.relays = PeerReads(routes=self._routes, peers=self._peers, counts=self._counts, clock=clock)
        self.is_elsewhere = self._routes.is_elsewhere
        """Returns whether another proxy caches an object."""
        self._authenticator = PeerAuthenticator(ends.node, cluster.name, secrets, clock=clock)
        self._budget_bytes = max(RELAYED_BUDGET_BYTES // processes, _LEAST_BUDGET_BYTES)
        self._begins: WorkerRelays | None = None
        self._log: RequestLog | None = None
        self._authorizer: SharedReadsAuthorizer | None = None
        self.lane: FastLane | None = None
        """The fast lane for connections of other proxies; None before ``open_lane`` was called."""

    def open_lane(self, reader: WorkerReads, reloadable: ReloadableSettings) -> None:
        """Make the fast lane for connections of other proxies. Requests are not counted here: the proxy that
        the client called counts them.
        """
        telemetry = reloadable.telemetry
        self._log = RequestLog(access_log=telemetry.access_log)
        self._authorizer = SharedReadsAuthorizer(
            reader,
            self._authenticator,
            observer=self._log,
            log=structlog.get_logger("shadeproxy.s3"),
            verbose=is_verbose(telemetry),
        )
        self.lane = FastLane(
            reader,
            self._authorizer,
            clock=self._clock,
            jobs=self._log,
            remembers=remembers(telemetry),
            shared=reader,
        )

    def begins(self, reports: ReadReports, fills: BeginsFills | None) -> WorkerRelays:
        """Return the object that begins reads at other proxies. ``reports``: gets the report of each ended
        read. ``fills``: fetches pages of objects that this proxy owns; None if the coordinator fetches them.
        """
        self._begins = WorkerRelays(
            self.relays,
            reports,
            fills,
            clock=self._clock,
            bounds=read_bounds(self._settings),
            budget_bytes=self._budget_bytes,
        )
        return self._begins

    def adopt(self, record: RoutesRecord) -> None:
        """Use new routes from now on."""
        try:
            self._routes.adopt(record)
        except PeerError as error:
            _log.warning("routes of the cluster were not understood", error=str(error))
        else:
            self._peers.retain(self._routes.others(), away=self._routes.away())

    def adopt_settings(self, reloadable: ReloadableSettings) -> None:
        """Use new settings from now on."""
        telemetry = reloadable.telemetry
        if self._authorizer is not None and self._log is not None and self.lane is not None:
            self._authorizer.verbose = is_verbose(telemetry)
            self._log.access_log = telemetry.access_log
            self.lane.forget(remembers=remembers(telemetry))

    def tell_counts(self, say: Callable[[bytes], bool]) -> None:
        """Send the counts of requests to other proxies since the last call to the coordinator."""
        if rows := self._counts.take():
            say(pack_relays(rows))

    async def aclose(self) -> None:
        """Close the connections to the other proxies."""
        if self._begins is not None:
            await self._begins.aclose()
        await self._peers.aclose()
