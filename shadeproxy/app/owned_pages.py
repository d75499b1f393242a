"""Opens the parts by which the proxies of a cluster share their pages (cluster.pages = "owned"): the port to
ownership, the connections to the other proxies, and the listener for them.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from shadeproxy.api.s3.auth.peers import PeerAuthenticator
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.peer_handler import PeerHandler
from shadeproxy.api.s3.response import PEER_KEEPALIVE_S
from shadeproxy.api.s3.server import S3Server
from shadeproxy.app.admin import Observer
from shadeproxy.app.connection_limits import ConnectionLimit
from shadeproxy.app.draining import drain
from shadeproxy.app.handlers import make_peer_handler
from shadeproxy.app.limits import ClientConnections
from shadeproxy.app.listening import bind, listen_s3
from shadeproxy.app.peer_listening import PeerListening
from shadeproxy.app.pinning import DurablePins
from shadeproxy.app.reload import SettingsStatus
from shadeproxy.app.reloadable import is_verbose, remembers
from shadeproxy.app.tls import ServerTls
from shadeproxy.app.workers import RELAY_KEEPALIVE_S, Workers, stop_listening
from shadeproxy.cluster.membership import Keep, Membership
from shadeproxy.cluster.node_stats import NodeStats, ask_for_stats
from shadeproxy.cluster.ownership import LeaseClock, OwnedObjects
from shadeproxy.cluster.peer_reads import PeerReads
from shadeproxy.cluster.peers import Peers, PeerState, peer_timeouts
from shadeproxy.cluster.relay_counts import RelayCounts, RelayEnd
from shadeproxy.cluster.relaying_origin import RelayingOrigin
from shadeproxy.config import Settings
from shadeproxy.config.sections import Telemetry
from shadeproxy.core.clock import Clock, boot_time_s
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.rules import Freshness, Rules
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.base import Origin
from shadeproxy.telemetry.counters import ClusterCounters, RelayedRequests
from shadeproxy.telemetry.history import History
from shadeproxy.telemetry.requests import RequestCounts
from shadeproxy.telemetry.stats import Stats

RECENT_S = 600.0
"""Seconds over which ``NodeStats.recent_reads`` counts."""


class OwnedPages:
    """The parts by which one proxy shares pages. ``objects``: the objects that it owns. ``clock``: the clock
    by which page handles are judged. ``relays``: begins plain reads at other proxies. ``address``: the
    address of the listener for other proxies, "" until it is open. ``member``, ``history``: this proxy's
    membership and recent reads; None until it asks for a seat.
    """

    def __init__(
        self,
        settings: Settings,
        node: str,
        *,
        boot: str,
        rules: Rules,
        hints: HintRegistry,
        clock: Clock,
        stats: Stats,
        counters: ClusterCounters,
        take_part: Callable[[float], None] = lambda _part: None,
        on_lease: Callable[[float], None] = lambda _until_s: None,
    ) -> None:
        """``node``: the proxy's name in the cluster. ``boot``: the number of this start. ``take_part`` is
        called with the part of all objects that the proxy owns. ``on_lease`` is called with the end of each
        lease, in seconds since the machine's boot. Raises ConfigError if cluster.secret cannot be read.
        """
        cluster = settings.cluster
        self.objects = OwnedObjects(
            by_rule=answers_by_rule(settings, rules, hints), counters=counters, on_lease=on_lease
        )
        self.clock = LeaseClock(clock, self.objects)
        self._counts = counts = RelayCounts()
        stats.relayed = lambda: [RelayedRequests(*row) for row in counts.rows()]
        self.address = ""
        self.member: Membership | None = None
        self.history: History | None = None
        self._node = node
        self._settings = settings
        self._clock = clock
        self._stats = stats
        self._hints = hints
        self._take_part = take_part
        self._workers: Workers | None = None
        self._secrets = secrets = cluster.resolve_secrets()
        self._authenticator = PeerAuthenticator(node, cluster.name, secrets, clock=clock, boot=boot)
        self._peers = Peers(
            node,
            cluster.name,
            secrets,
            clock=clock,
            tls=bool(settings.s3.tls.cert),
            ca_file=cluster.peer_ca_file or None,
            timeouts=peer_timeouts(settings.origin.timeouts.read),
            least_patience_s=cluster.peer_timeout,
            max_connections=settings.origin.max_connections,
        )
        stats.skipped_peers = self._peers.skipped
        self.relays = PeerReads(routes=self.objects, peers=self._peers, counts=counts, clock=clock)
        self.pins: DurablePins | None = None
        """The pins; None until they are known. They keep only pages of objects that this proxy caches."""
        self.view_changed()
        self._engine: Engine | None = None
        self._lanes: tuple[FastLane, ...] = ()
        self._status: SettingsStatus | None = None
        self._handler: PeerHandler | None = None
        self._observer: Observer | None = None

    def past(self, origin: Origin, stack: AsyncExitStack) -> Origin:
        """Return the origin for reads past the cache and for forwarded requests. It sends a request for an
        object of another proxy to that proxy, and every other request to ``origin``.
        """
        stack.push_async_callback(self._peers.aclose)
        return RelayingOrigin(
            origin, routes=self.objects, peers=self._peers, counts=self._counts, clock=self._clock
        )

    async def listen(
        self,
        stack: AsyncExitStack,
        engine: Engine,
        lane: FastLane,
        tls: ServerTls | None,
        status: SettingsStatus,
        *,
        most: ClientConnections,
        workers: Workers | None = None,
    ) -> PeerListening | None:
        """Open the listener for the other proxies. ``lane``: the fast lane of the S3 listener. ``most``: how
        many connections the other proxies may have. ``workers`` accept on this listener too. Return the
        object that they need for that; None without workers.
        """
        observer = Observer(
            self._stats,
            self._hints,
            self._clock,
            access_log=self._settings.telemetry.access_log,
            counts=RequestCounts(),
        )
        handler, own_lane = make_peer_handler(
            self._settings,
            engine,
            self._authenticator,
            self.objects,
            observer,
            clock=self.clock,
            stats=lambda: msgspec.json.encode(self.own_stats()),
        )
        self._engine, self._lanes, self._status = engine, (lane, own_lane), status
        self._handler, self._observer = handler, observer
        # Other proxies need few connections, because each has a limited pool. The limit holds off other
        # programs, which may connect without end.
        limit = ConnectionLimit(most, self._settings.s3.processes, clock=self._clock)
        stack.callback(limit.close)
        server = S3Server(handler, own_lane, keepalive_s=PEER_KEEPALIVE_S, limiter=limit.limiter)
        stack.push_async_callback(drain, server)
        context = None if tls is None else tls.context
        listens_at = self._settings.cluster.listen
        bound = None if workers is None else bind("cluster.listen", listens_at)
        first = None if bound is None else bound.dup()
        if bound is not None:
            # The stack runs this before the drain. Otherwise workers that still have the listener open would
            # let new connections wait during the drain.
            stack.callback(stop_listening, bound)
        self.address = await listen_s3("cluster.listen", server, listens_at, context, bound=first)
        if workers is None or bound is None:
            return None
        self._workers = workers
        self._tell_routes(workers)
        relay = S3Server(handler, own_lane, keepalive_s=RELAY_KEEPALIVE_S)
        return PeerListening(
            self._node, self._secrets, bound, server, context, relay, limit, self._counts.add
        )

    def reloaded(self, telemetry: Telemetry) -> None:
        """Apply settings that were just reloaded."""
        if self._handler is not None and self._observer is not None:
            self._handler.verbose = is_verbose(telemetry)
            self._observer.access_log = telemetry.access_log
        self.forget_requests()

    def forget_requests(self) -> None:
        """Drop the remembered requests of clients and of other proxies."""
        for lane in self._lanes:
            assert self._status is not None, "it comes with the lanes"
            lane.forget(remembers=remembers(self._status.settings.telemetry))

    def distrust(self, keep: Keep | None) -> None:
        """Mark the cached pages of each object that ``keep`` does not trust any more, so that they are
        checked once before they answer. ``keep`` None: mark all.
        """
        if self._engine is not None:
            self._engine.distrust(keep)
        self.forget_requests()

    def void(self) -> None:
        """Drop page handles and remembered requests: they could answer without a check of the lease."""
        if self._engine is not None:
            self._engine.hits.forget()
        self.forget_requests()

    def view_changed(self) -> None:
        """Act on a new view. Restrict announced orders and pins to the objects that now belong to this proxy,
        and take that part of the origin's limits. Close the connections to proxies that have left, and let no
        write wait for a proxy that is away.
        """
        if (part := self.objects.part()) is not None:
            self._take_part(part)
        share = self.objects.share()
        self._hints.set_share(share)
        if self.pins is not None:
            self.pins.share_changed(share)
        self._peers.retain(self.objects.others(), away=self.objects.away())
        if self._workers is not None:
            self._tell_routes(self._workers)

    def _tell_routes(self, workers: Workers) -> None:
        if (record := self.objects.routes_record()) is not None:
            workers.tell_routes(record)

    @property
    def skipped_peers(self) -> int:
        """Number of proxies past which reads go now, because they failed."""
        return sum(self._peers.skipped().values())

    def peer_states(self) -> dict[str, PeerState]:
        """Return the state of each other proxy that this one has asked."""
        return self._peers.states()

    async def all_stats(self) -> list[NodeStats]:
        """Return the statistics of all proxies of the newest view, this one's first."""
        return [self.own_stats(), *await ask_for_stats(self._peers, self.objects.others())]

    def own_stats(self) -> NodeStats:
        """Return the statistics of this proxy."""
        if self._engine is not None:
            self._engine.access_log.flush()
        reads, origin, rows = self._stats.totals(), self._stats.origin.values(), self._counts.rows()
        tiers = [gauges() for gauges in self._stats.tier_gauges.values()]
        member, answered = self.member, [row for row in rows if row.result is RelayEnd.OK]
        return NodeStats(
            node=self._node,
            reads=reads.requests,
            hits=reads.hits_ram + reads.hits_disk,
            bytes=reads.bytes,
            recent_reads=0 if self.history is None else self.history.recent_reads(RECENT_S),
            relayed=sum(row.requests for row in answered),
            relayed_bytes=sum(row.bytes for row in answered),
            fallbacks=sum(row.requests for row in rows if row.result is RelayEnd.FALLBACK),
            origin_requests=sum(one.requests for one in origin),
            origin_bytes=sum(one.bytes for one in origin),
            used_bytes=sum(tier.used_bytes for tier in tiers),
            capacity_bytes=sum(tier.capacity_bytes for tier in tiers),
            lease_s=0.0 if member is None else round(member.lease_left_s(boot_time_s()), 3),
            view=0 if member is None or member.view is None else member.view.id.number,
            settled=0 if member is None or member.settled is None else member.settled.id.number,
        )


def answers_by_rule(settings: Settings, rules: Rules, hints: HintRegistry) -> Callable[[ObjectRef], bool]:
    """Return a function that says whether an object is answered by its freshness rule while the log does not
    answer.
    """
    cut_off = settings.cluster.cut_off
    if cut_off != "datasets":
        return lambda _ref: cut_off == "rule"
    return lambda ref: rules.of(ref).freshness is Freshness.IMMUTABLE or _is_in_use(hints, ref)


def _is_in_use(hints: HintRegistry, ref: ObjectRef) -> bool:
    """Return whether a data set of a job in use holds the object."""
    hashed = object_hash(ref)
    names = {job.dataset for job in hints.jobs if job.dataset is not None and job.in_use}
    found = (hints.datasets.get(name) for name in names)
    # The first hit of each object after the end of the lease asks this several times. A search in numpy
    # columns (``find``) would take as long as the hit.
    return any(dataset is not None and dataset.groups.find_one(hashed) >= 0 for dataset in found)
