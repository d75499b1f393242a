"""One running proxy: opens all parts in order, and closes them in reverse order.

A start opens the tiers and the state, then the listeners; recovery of the tiers runs meanwhile. At a stop,
the control listener reports "draining", and new S3 connections are refused. Requests under way end while the
state is flushed. Then the control listener and everything else are closed.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from shadeproxy import __version__
from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.context import READY, Access, ControlContext
from shadeproxy.api.control.otel_calls import span_calls
from shadeproxy.api.control.server import ControlRunner
from shadeproxy.api.s3 import COMPILED
from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.server import BACKLOG, S3Server
from shadeproxy.app.admin import EngineAdmin, Observer
from shadeproxy.app.checkup import Checkup, find_doubtful_jobs
from shadeproxy.app.clients import Grants
from shadeproxy.app.clustering import Clustering, Parts
from shadeproxy.app.connection_limits import ConnectionLimit
from shadeproxy.app.control_socket import open_control_socket
from shadeproxy.app.disk_watch import watch_disks
from shadeproxy.app.draining import drain_control, drain_s3, stop_accepting
from shadeproxy.app.fitting import connections_of_pool
from shadeproxy.app.handlers import make_handler
from shadeproxy.app.limits import ClientConnections, client_connections
from shadeproxy.app.listening import bind, listen_control, listen_s3
from shadeproxy.app.opening import OpenState, PartOpener
from shadeproxy.app.origins import Providers, build_providers, name_of_origin, read_bounds
from shadeproxy.app.pinning import DurablePins
from shadeproxy.app.reload import ConfigReloader, ReloadTargets, SettingsStatus, reads_allowed
from shadeproxy.app.reloadable import ReloadableSettings, build_reloadable
from shadeproxy.app.sharing import JobSharing
from shadeproxy.app.tls import ServerTls
from shadeproxy.app.worker_openers import Openers, make_openers
from shadeproxy.app.workers import RELAY_KEEPALIVE_S, Workers
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.cores import available_cores
from shadeproxy.core.workpool import WorkPool
from shadeproxy.engine.access_records import Kind, Uses
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.read.worker_fills import PrefetchWorkers
from shadeproxy.engine.rules import Rules
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.health import OriginHealth
from shadeproxy.telemetry.history import keep_history
from shadeproxy.telemetry.lag import watch_loop
from shadeproxy.telemetry.otel import OtelTracer
from shadeproxy.telemetry.processor import keep_charging, used_cpu_s
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.medium import Calls

_log = structlog.get_logger(__name__)
_CONTROL_DRAIN_S = 5.0
_CONTROL_THREADS = 4
# With up to this many workers, the coordinator serves clients too. With more, it is busy deciding for the
# workers.
_ACCEPTS_BESIDE = 2


class Proxy:
    """A proxy. Call ``start`` once on a running loop, and ``stop`` once. ``calls``: by the name of a tier,
    the system calls on its segments, if not the kernel's.
    """

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, calls: Mapping[str, Calls] | None = None
    ) -> None:
        self.settings = settings
        self._calls = calls
        self.s3_address = self.control_address = ""
        self._clock = clock or SystemClock()
        self._health = OriginHealth(self._clock)
        self.stats = Stats(origin_health=self._health.as_json)
        self._status = "starting"
        self._instance = secrets.token_hex(8)
        self._share: Share | None = None
        self._clustering = Clustering(settings, self._clock, self.stats)
        self._settings_status = SettingsStatus(settings)
        self.reloader: ConfigReloader
        """The reloader of the settings; ``start`` makes it."""
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Open all parts. Raises ConfigError, or ShadeProxyError for a taken port, after closing the parts
        that were open.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self) -> None:
        """Drain the listeners, and close all parts."""
        self._status = "draining"
        await self._stack.aclose()

    async def _start(self) -> None:
        settings, clock = self.settings, self._clock
        reloadable = await asyncio.to_thread(build_reloadable, settings)
        token = settings.control.resolve_token()
        files = settings.s3.tls
        tls = await asyncio.to_thread(ServerTls, files.cert, files.key) if files.cert else None
        pool = WorkPool(_CONTROL_THREADS, "control")
        self._stack.push_async_callback(asyncio.to_thread, pool.shutdown)
        rules = Rules(reloadable.rules)
        opener = PartOpener(
            settings,
            self._stack,
            clock=clock,
            stats=self.stats,
            calls=self._calls,
            on_change=self._clustering.note if settings.cluster.name else None,
        )
        tracer = await opener.tracer()
        state = await opener.state(pool, rules)
        self._share = share = Share.create() if settings.s3.processes > 1 else None
        on_lease = (lambda _until_s: None) if share is None else share.show_lease
        owned = await self._clustering.prepare(state.store, rules, state.hints, opener.take_part, on_lease)
        providers = build_providers(settings, clock)
        origin, callback_reads = await opener.origin(providers, self._health, instance=self._instance)
        engine = await opener.engine(
            origin,
            state,
            rules,
            share=share,
            upstreams=self._settings_status.upstreams,
            callback_reads=callback_reads,
            prefetch_reads=(prefetch := PrefetchWorkers()).pick,
            ownership=None if owned is None else owned.objects,
            past=None if owned is None else owned.past(origin, self._stack),
        )
        pins = opener.pins(state, engine.cache)
        await (grants := Grants(state.store)).take_over(settings, engine.cache)
        authenticator = Authenticator(reloadable.clients, anonymous=reloadable.anonymous, clock=clock)
        observer = Observer(self.stats, state.hints, clock, access_log=settings.telemetry.access_log)
        handler, lane = make_handler(
            settings,
            engine,
            authenticator,
            observer,
            clock=self._clustering.clock,
            instance=self._instance,
            counts=self.stats.requests,
            tracer=tracer,
            relays=None if owned is None else owned.relays,
            callback_reads=callback_reads,
        )
        sharing = opener.sharing(state.hints, engine)
        checkup = self._make_checkup(engine, origin, providers, state, sharing, tls=tls)
        info: dict[str, Any] = {"page_size": engine.page_size, "batch": True, "locate": True}
        info |= {"policy": settings.policy.name, "origin": name_of_origin(settings)}
        info |= {"lane": "compiled" if COMPILED else "interpreted"} | ({"owners": True} if owned else {})
        access = Access(token, reads_allowed(settings))
        openers = make_openers(
            settings, engine, callback_reads, providers, observer, clock=clock, prefetch=prefetch
        )
        workers = opener.share_regions(self._make_workers(engine, reloadable, observer, tls, openers))
        targets = ReloadTargets(
            authenticator=authenticator,
            rules=rules,
            providers=providers,
            engine=engine,
            handler=handler,
            lane=lane,
            observer=observer,
            access=access,
            hint_memory=state.hint_memory,
            pins=pins,
            grants=grants,
        )
        self.reloader = ConfigReloader(
            self._settings_status, targets, workers, clock, self._clustering.reloaded
        )
        own = EngineAdmin(engine, pins, clock, fetches=opener.prefetched)
        context = await self._make_context(
            engine, lane, state, checkup, pins, pool=pool, access=access, info=info, sharing=sharing, own=own
        )
        if (path := await self._open_control(context, tracer)) is not None:
            info["socket"] = str(path)
        await self._open_s3(handler, lane, engine, state, tls=tls, workers=workers)
        self._clustering.beat(s3=self.s3_address, control=self.control_address, history=context.history)
        info["s3_endpoint"] = f"{'http' if tls is None else 'https'}://{self.s3_address}"
        self._status = READY
        _log.info(
            "ready",
            s3=info["s3_endpoint"],
            control=f"http://{self.control_address}",
            pages=len(engine.cache.residents),
            lane=info["lane"],
        )
        self._run_until_stopped(watch_loop(self.stats.loop_lag), "loop lag")
        self._run_until_stopped(keep_history(context.history, clock), "history")
        cores = min(settings.s3.processes, await asyncio.to_thread(available_cores))
        self.stats.measure_cpu(lambda: used_cpu_s(workers.numbers if workers else ()), cores=cores)
        self._run_until_stopped(keep_charging(self.stats, clock), "processor")
        self._run_until_stopped(checkup.watch(), "probe")
        self._run_until_stopped(watch_disks(engine.cache.media, clock), "disks")
        self._run_until_stopped(sharing.run(), "sharing")
        # Registered here a second time, so that long operations end before the listeners drain.
        self._stack.push_async_callback(context.operations.aclose)

    def _make_checkup(
        self,
        engine: Engine,
        origin: CountedOrigin,
        providers: Providers,
        state: OpenState,
        sharing: JobSharing,
        *,
        tls: ServerTls | None,
    ) -> Checkup:
        return Checkup(
            self._settings_status,
            origin=origin,
            health=self._health,
            providers=providers,
            media=engine.cache.media,
            state=state.store,
            stats=self.stats,
            clock=self._clock,
            status=lambda: self._status,
            doubtful_jobs=partial(find_doubtful_jobs, state.hints, engine.cache),
            missed_needs=sharing.missed,
            cluster_warnings=self._clustering.warnings,
            cluster_facts=self._clustering.facts,
            tls=tls,
        )

    @staticmethod
    def _count_reads(engine: Engine, lane: FastLane) -> None:
        engine.access_log.flush()
        lane.count_hits()

    async def _make_context(
        self,
        engine: Engine,
        lane: FastLane,
        state: OpenState,
        checkup: Checkup,
        pins: DurablePins,
        *,
        pool: WorkPool,
        access: Access,
        info: dict[str, Any],
        sharing: JobSharing,
        own: EngineAdmin,
    ) -> ControlContext:
        settings = self.settings
        parts = Parts(state.hints, state.store, state.order_builder, pins, own, pool)
        changes, admin = await self._clustering.open(parts, self._stack)
        context = ControlContext(
            version=__version__,
            hints=state.hints,
            hint_memory=state.hint_memory,
            changes=changes,
            stats=self.stats,
            count_reads=lambda: self._count_reads(engine, lane),
            clock=self._clustering.clock,
            pool=pool,
            order_builder=state.order_builder,
            admin=admin,
            list_objects=engine.list_objects,
            resident_pages=engine.cache.resident_pages,
            engine=engine,
            upstreams=self._settings_status.upstreams,
            page_size=engine.page_size,
            readiness=lambda: self._status,
            info=info,
            access=access,
            bounds=read_bounds(settings),
            log_levels=self.reloader,
            warnings=checkup.warnings,
            doctor=checkup.report,
            cluster=self._clustering.status,
            sharing=sharing,
        )
        self._stack.push_async_callback(context.operations.aclose)
        return context

    async def _open_control(self, context: ControlContext, tracer: OtelTracer | None) -> Path | None:
        """Open the control listener; return the path of its Unix socket, if it has one."""
        app = make_control_app(context, () if tracer is None else (span_calls(tracer),))
        self._control = control = ControlRunner(app, shutdown_timeout=_CONTROL_DRAIN_S)
        self._stack.push_async_callback(drain_control, control, _CONTROL_DRAIN_S)
        self.control_address = await listen_control("control.listen", control, self.settings.control.listen)
        return await self._open_socket(control)

    async def _open_s3(
        self,
        handler: S3Handler,
        lane: FastLane,
        engine: Engine,
        state: OpenState,
        *,
        tls: ServerTls | None,
        workers: Workers | None,
    ) -> None:
        """Open the S3 listener, start the workers, and open the listener for other proxies of a cluster."""
        most, peers = self._most_connections(engine), None
        if (owned := self._clustering.owned) is not None:
            most, of_peers = most.split(4)
            peers = await owned.listen(
                self._stack, engine, lane, tls, self._settings_status, most=of_peers, workers=workers
            )
        limit = self._limit_connections(most)
        s3 = S3Server(handler, lane, limiter=limit.limiter)
        self._stack.push_async_callback(drain_s3, s3, state, workers)
        listens_at = self.settings.s3.listen
        listener = None if workers is None else bind("s3.listen", listens_at)
        context, first = None if tls is None else tls.context, None if listener is None else listener.dup()
        self.s3_address = await listen_s3("s3.listen", s3, listens_at, context, bound=first)
        if workers is not None and listener is not None:
            # The workers have counted the connections that they relay.
            relay = S3Server(handler, lane, keepalive_s=RELAY_KEEPALIVE_S)
            await workers.start(listener, relay, limit, peers)
            if self.settings.s3.processes > _ACCEPTS_BESIDE:
                servers = [s3] if peers is None else [s3, peers.server]
                self._run_until_stopped(stop_accepting(servers, workers), "stop accepting")
        if tls is not None:
            adopted = None if workers is None else workers.adopt
            self._run_until_stopped(tls.watch(self._clock, adopted), "certificate")

    def _run_until_stopped(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._stack.callback(asyncio.create_task(work, name=name).cancel)

    def _most_connections(self, engine: Engine) -> ClientConnections:
        segments = sum(medium.tier.most_segments for medium in engine.cache.media)
        return client_connections(origin_connections=connections_of_pool(self.settings), segments=segments)

    def _limit_connections(self, most: ClientConnections) -> ConnectionLimit:
        processes = self.settings.s3.processes
        limit = ConnectionLimit(most, processes, clock=self._clock, counts=self.stats.requests)
        self._control.limiter = limit.limiter
        self._stack.callback(limit.close)
        limit.show(self.stats)
        self.stats.watch("tasks", lambda: float(len(asyncio.all_tasks())))
        return limit

    async def _open_socket(self, control: web.AppRunner) -> Path | None:
        """Let the control listener listen on a Unix socket too; return its path, or None if there is none.
        Raises ConfigError.
        """
        opened = await asyncio.to_thread(open_control_socket, self.settings)
        if opened is None:
            return None
        self._stack.push_async_callback(asyncio.to_thread, opened.remove)
        try:
            await web.SockSite(control, opened.socket, backlog=BACKLOG).start()
        except BaseException:
            opened.socket.close()
            raise
        return opened.path

    def _make_workers(
        self,
        engine: Engine,
        reloadable: ReloadableSettings,
        observer: Observer,
        tls: ServerTls | None,
        openers: Openers,
    ) -> Workers | None:
        """Return the workers, which accept connections; None if the proxy has none."""
        if self._share is None:
            return None
        self._stack.callback(self._share.close)

        def note(uses: Uses, kinds: list[Kind]) -> None:
            engine.note_reads(uses, kinds)
            for job in {kind.job for kind in kinds if kind.job is not None}:
                observer.on_job(job)

        return Workers(
            self.settings,
            reloadable,
            engine.cache.media,
            share=self._share,
            on_reads=note,
            on_requests=self.stats.requests.add,
            certificate=None if tls is None else tls.certificate,
            openers=openers,
        )
