"""One running proxy: opens every part in order, and closes them in reverse order.

Start: open tiers and state, then the listeners; recovery of the tiers runs meanwhile. Stop: report "draining"
on the control listener, refuse new S3 connections, let requests under way end while the state is flushed,
then close the control listener and everything else (design section 7).
"""

import asyncio
import secrets
import socket
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from shadeproxy import __version__
from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.context import READY, ControlContext
from shadeproxy.api.control.server import ControlRunner
from shadeproxy.api.s3 import COMPILED
from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.door import Door
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.server import S3Server
from shadeproxy.app.admin import EngineAdmin, Observer
from shadeproxy.app.checkup import Checkup
from shadeproxy.app.control_socket import open_control_socket
from shadeproxy.app.epochs import check_data_sets_by_epoch
from shadeproxy.app.granted import Grants
from shadeproxy.app.limits import client_connections
from shadeproxy.app.listening import BACKLOG, bind, listen
from shadeproxy.app.live import Live, Parts, is_verbose, make_verdicts, reads_allowed, remembers
from shadeproxy.app.media import Media, tier_gauges
from shadeproxy.app.origins import build_origin, build_providers, read_bounds
from shadeproxy.app.persistence import Persistence
from shadeproxy.app.pinning import DurablePins
from shadeproxy.app.prefetching import start_prefetching
from shadeproxy.app.readers import Readers
from shadeproxy.app.recording import Recorder
from shadeproxy.app.silent_jobs import SilentJobs
from shadeproxy.app.terms import Terms, build_terms
from shadeproxy.app.tls import ServerTls
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.workpool import WorkPool
from shadeproxy.engine.cache import PageCache
from shadeproxy.engine.columns import Share
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.knowledge.knowledge import Knowledge
from shadeproxy.engine.pins import Pins
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.uses import Kind, Uses
from shadeproxy.origin.base import Origin
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.limit import prefetch_slots
from shadeproxy.policy.registry import get_policy
from shadeproxy.state.store import StateStore
from shadeproxy.telemetry.lag import watch_loop
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.medium import Calls

_log = structlog.get_logger(__name__)
_DRAIN_S = 30.0
_CONTROL_DRAIN_S = 5.0
# Time for handlers that were cancelled; aiohttp waits for it twice.
_ABORT_S = 0.1
_CONTROL_THREADS = 4
# The worker closes idle relay connections: closed from this side, one could cross a request.
_RELAY_KEEPALIVE_S = 1e6


class Proxy:
    """A proxy. ``start`` it on a running loop, ``stop`` it once. ``calls``: see ``Media``."""

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, calls: Mapping[str, Calls] | None = None
    ) -> None:
        self.settings = settings
        self._calls = calls
        self.stats = Stats()
        self.s3_address = self.control_address = ""
        self._clock = clock or SystemClock()
        self._status = "starting"
        self._instance = secrets.token_hex(8)
        self._share: Share | None = None
        self._listener: socket.socket | None = None
        self.readers: Readers | None = None
        self.live = Live(settings, self._clock)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Open everything. Raises ConfigError, or ShadeProxyError for a taken port; then all is closed."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self) -> None:
        """Drain and close everything."""
        self._status = "draining"
        if self.live.parts is not None:
            await self.live.parts.context.operations.aclose()
        await self._stack.aclose()

    # ------------------------------------------------------------------ inside

    async def _start(self) -> None:
        settings, clock = self.settings, self._clock
        terms = await asyncio.to_thread(build_terms, settings)
        authenticator = Authenticator(terms.clients, anonymous=terms.anonymous, clock=clock)
        rules = Rules(terms.rules)
        token = settings.control.resolve_token()
        files = settings.s3.tls
        tls = await asyncio.to_thread(ServerTls, files.cert, files.key) if files.cert else None
        pool = WorkPool(_CONTROL_THREADS, "control")
        self._stack.push_async_callback(asyncio.to_thread, pool.shutdown)
        state, persistence, knowledge, pins = await self._open_state(pool, rules)
        providers = build_providers(settings, clock)
        health = OriginHealth(clock)
        built = build_origin(
            settings, clock=clock, providers=providers, health=health, instance=self._instance
        )
        origin = CountedOrigin(
            built, stats=self.stats, clock=clock, health=health, bounds=read_bounds(settings)
        )
        self.stats.origin_health = health.as_json
        self._stack.push_async_callback(origin.aclose)
        if settings.origin.kind == "file":
            await origin.probe()  # a missing path is a wrong setting, not an outage
        engine = await self._open_engine(knowledge, origin, rules, pins)
        await (grants := Grants(state)).take_over(settings, engine.cache)
        observer = Observer(self.stats, knowledge, clock, access_log=settings.telemetry.access_log)
        handler = S3Handler(
            engine,
            authenticator,
            clock=clock,
            observer=observer,
            log=structlog.get_logger("shadeproxy.s3"),
            base_domains=tuple(domain.lower() for domain in settings.s3.domains),
            instance=self._instance,
            verbose=is_verbose(settings),
            bounds=read_bounds(settings),
        )
        fast = FastLane(
            engine,
            handler,
            clock=clock,
            jobs=observer,
            remembers=remembers(settings),
            own=engine.hits,
            pace=handler.pace,
        )
        scheme = "http" if tls is None else "https"
        info: dict[str, Any] = {"page_size": engine.page_size, "batch": True, "locate": True}
        checkup = Checkup(
            self.live,
            origin=origin,
            health=health,
            providers=providers,
            tiers=[medium.tier for medium in engine.cache.media],
            state=state,
            stats=self.stats,
            clock=clock,
            status=lambda: self._status,
            silent_jobs=SilentJobs(knowledge.orders, engine.cache, clock).look,
        )
        context = ControlContext(
            version=__version__,
            knowledge=knowledge,
            stats=self.stats,
            clock=clock,
            pool=pool,
            admin=EngineAdmin(engine, pins, clock, fetches=prefetch_slots(settings.origin.max_connections)),
            list_objects=engine.list_objects,
            resident_pages=engine.cache.resident_pages,
            engine=engine,
            upstreams=self.live.upstreams,
            page_size=engine.page_size,
            readiness=lambda: self._status,
            info=info,
            token=token,
            reads_allowed=reads_allowed(settings),
            bounds=read_bounds(settings),
            log_levels=self.live,
            warnings=checkup.warnings,
            doctor=checkup.report,
        )
        self._stack.push_async_callback(context.operations.aclose)
        self.live.parts = Parts(
            authenticator=authenticator,
            rules=rules,
            providers=providers,
            engine=engine,
            handler=handler,
            lane=fast,
            observer=observer,
            context=context,
            pins=pins,
            grants=grants,
        )
        control = ControlRunner(make_control_app(context), shutdown_timeout=_CONTROL_DRAIN_S)
        self._stack.push_async_callback(_drain, control, _CONTROL_DRAIN_S)
        self.control_address = await listen("control.listen", control, settings.control.listen, None)
        if (path := await self._open_socket(control)) is not None:
            info["socket"] = str(path)
        door = self._open_door(engine)
        s3 = web.ServerRunner(S3Server(handler, fast, door=door), shutdown_timeout=_DRAIN_S)
        self._stack.push_async_callback(self._drain_s3, s3, persistence, knowledge)
        if self._share is not None:
            self._listener = bind("s3.listen", settings.s3.listen)
        self.s3_address = await listen(
            "s3.listen",
            s3,
            settings.s3.listen,
            tls.context if tls is not None else None,
            bound=self._listener,
        )
        if self._share is not None:
            relay = S3Server(handler, fast, keepalive_s=_RELAY_KEEPALIVE_S, door=door)
            await self._start_readers(engine, terms, relay, observer)
        if tls is not None:
            self._run_until_stopped(tls.watch(clock), "certificate")
        info["s3_endpoint"] = f"{scheme}://{self.s3_address}"
        self._status = READY
        _log.info(
            "ready",
            s3=info["s3_endpoint"],
            control=f"http://{self.control_address}",
            pages=len(engine.cache.residents),
            lane="compiled" if COMPILED else "interpreted",
        )
        self._run_until_stopped(watch_loop(self.stats.loop_lag), "loop lag")
        self._run_until_stopped(checkup.watch(), "probe")

    def _run_until_stopped(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._stack.callback(task.cancel)

    def _open_door(self, engine: Engine) -> Door:
        tiers = (medium.tier for medium in engine.cache.media)
        most = client_connections(
            origin_connections=self.settings.origin.max_connections,
            segments=sum(tier.most_segments for tier in tiers),
        )
        door = Door(most, clock=self._clock)
        self.stats.watch("connections", lambda: float(door.inside))
        self.stats.watch("connections_left", lambda: float(most - door.inside))
        self.stats.watch("connections_refused", lambda: float(door.refused))
        self.stats.watch("tasks", lambda: float(len(asyncio.all_tasks())))
        return door

    async def _open_socket(self, control: web.AppRunner) -> Path | None:
        """Open the control listener on a Unix socket too; return its path. Raises ConfigError."""
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

    async def _start_readers(self, engine: Engine, terms: Terms, relay: S3Server, observer: Observer) -> None:
        """Start the workers, which accept connections too and relay everything but hits to ``relay``."""
        assert self._share is not None, "made for more than one worker"
        assert self._listener is not None, "bound before readers start"

        def note(uses: Uses, kinds: list[Kind]) -> None:
            engine.note_reads(uses, kinds)
            for job in {kind.job for kind in kinds if kind.job is not None}:
                observer.on_job(job)

        self.readers = Readers(
            self.settings,
            terms,
            engine.cache.media,
            share=self._share,
            listener=self._listener,
            noted=note,
        )
        self.live.readers = self.readers
        await self.readers.start(relay)

    async def _drain_s3(
        self, runner: web.ServerRunner, persistence: Persistence, knowledge: Knowledge
    ) -> None:
        # Flush the state first: a supervisor may lose patience and kill this process.
        readers = [] if self.readers is None else [self.readers.stop(_DRAIN_S)]
        await asyncio.gather(persistence.flush(knowledge), _drain(runner, _DRAIN_S), *readers)

    async def _open_state(
        self, pool: WorkPool, rules: Rules
    ) -> tuple[StateStore, Persistence, Knowledge, DurablePins]:
        state = StateStore(self.settings.state.path, clock=self._clock)
        await asyncio.to_thread(state.open)
        self._stack.push_async_callback(asyncio.to_thread, state.close)
        self.stats.watch("refused_state_rows", lambda: float(state.refused_rows))
        self.stats.watch("damaged_state_databases", lambda: float(state.damaged_databases))
        persistence = Persistence(state, pool, self._clock)
        knowledge = Knowledge(dirty=persistence.note, page_size=self.settings.cache.page_size)
        await asyncio.to_thread(persistence.restore, knowledge)
        persistence.start(knowledge)
        self._stack.push_async_callback(persistence.stop, knowledge)
        pins = DurablePins(Pins(rules), state, self._clock)
        await asyncio.to_thread(pins.restore)
        return state, persistence, knowledge, pins

    async def _open_engine(
        self, knowledge: Knowledge, origin: Origin, rules: Rules, pins: DurablePins
    ) -> Engine:
        settings, clock, stats = self.settings, self._clock, self.stats
        media = Media(settings, self._calls)
        self._stack.push_async_callback(asyncio.to_thread, media.close)
        ledger = Ledger(settings.cache.inflight)
        self._share = Share.create() if settings.s3.workers > 1 else None
        cache = PageCache(
            media.media,
            policy=get_policy(settings.policy.name, settings.policy.objective),
            weights=knowledge,
            next_uses=knowledge.orders,
            pins=pins.pins,
            stats=stats,
            ledger=ledger,
            share=self._share,
        )
        self._stack.push_async_callback(asyncio.to_thread, cache.close)
        await asyncio.to_thread(cache.open)
        cache.start_recovery()
        cache.erasing.start(clock)
        self._stack.push_async_callback(cache.erasing.aclose)
        self._stack.push_async_callback(cache.stop_recovery)
        pins.follow(cache.renew_pins)
        self._stack.push_async_callback(pins.aclose)
        for index, medium in enumerate(media.media):
            stats.watch_tier(medium.tier.name, tier_gauges(medium.tier, cache, index))
        stats.watch("recovering_segments", lambda: float(cache.awaited_segments))
        stats.watch("inflight_bytes", lambda: float(ledger.taken_bytes))
        recorder = await self._start_recording()
        engine = Engine(
            origin,
            cache,
            rules=rules,
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=settings.cache.page_size,
            bounds=read_bounds(settings),
            verdicts=make_verdicts(settings),
            jobs_of=knowledge.jobs_of,
            orders=knowledge.orders,
            recording=None if recorder is None else recorder.reads,
            upstreams=self.live.upstreams,
        )
        check_data_sets_by_epoch(knowledge, engine)
        stats.watch("readings", lambda: float(engine.readings))
        self._stack.push_async_callback(engine.aclose)
        if settings.prefetch.enabled:
            prefetcher = start_prefetching(settings, engine, knowledge.orders, clock=clock, stats=stats)
            self._stack.push_async_callback(prefetcher.aclose)
        return engine

    async def _start_recording(self) -> Recorder | None:
        path = self.settings.telemetry.trace
        if not path:
            return None
        recorder = await asyncio.to_thread(Recorder, Path(path), self._clock)
        recorder.start()
        self._stack.push_async_callback(recorder.stop)
        return recorder


async def _drain(runner: web.BaseRunner, limit_s: float) -> None:
    """Accept no more, close idle connections, wait ``limit_s`` for requests, then cut them off."""
    try:
        # aiohttp waits for its shutdown_timeout twice for each connection.
        async with asyncio.timeout(limit_s):
            await runner.cleanup()
    except TimeoutError:
        server = runner.server
        assert server is not None, "a runner without a server has nothing to wait for"
        _log.warning("requests under way were cut off", connections=len(server.connections))
        await server.shutdown(_ABORT_S)
        await runner.cleanup()
