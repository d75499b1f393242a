"""Opens the parts behind the listeners (state, origin, cache, engine), and registers how they are closed."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.app.checkup import find_held_shares
from shadeproxy.app.clock_watch import watch_clock
from shadeproxy.app.history_file import HistoryFile
from shadeproxy.app.media import Media, tier_gauges
from shadeproxy.app.origin_share import OriginShare
from shadeproxy.app.origins import Providers, build_origin, read_bounds
from shadeproxy.app.otel import open_tracer
from shadeproxy.app.persistence import Persistence
from shadeproxy.app.pinning import DurablePins, restore_pins
from shadeproxy.app.recording import Recorder
from shadeproxy.app.reload import make_verdicts
from shadeproxy.app.sharing import JobSharing
from shadeproxy.app.used_stores import UsedStores
from shadeproxy.app.worker_fills import fill_memory_bytes
from shadeproxy.app.workers import Workers
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.off_loop import InPool
from shadeproxy.core.workpool import WorkPool
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.freshness.namespaces import Upstreams
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.ownership import Ownership
from shadeproxy.engine.page_observer import PageObserver
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.hint_memory import HintMemory
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.reuse.ghosts import BYTES
from shadeproxy.origin.base import CallbackOrigin, Origin
from shadeproxy.origin.bucket_regions import BucketRegions
from shadeproxy.origin.callback_reads import CallbackReads
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.otel_reads import OtelReads
from shadeproxy.policy.registry import get_policy
from shadeproxy.prefetch.limits import Limits
from shadeproxy.prefetch.prefetcher import Prefetcher
from shadeproxy.state.store import StateStore
from shadeproxy.telemetry.otel import OtelTracer
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.medium import Calls

_log = structlog.get_logger(__name__)

_LEARNING_RESTS = 32.0
"""After each refresh, the learner rests for this many times as long as the refresh took. So learning takes at
most 3 % of a core, however many reads there are.
"""

_INDEX_RESTS = 32.0
"""After the index of a dataset is made, the next index waits for this many times as long. Otherwise jobs that
come and go quickly could keep a core busy.
"""

_LISTED_AT_ONCE = 1000
# Most listed objects, as a multiple of the data set's own objects: its prefix may hold other objects too.
_MOST_OTHERS = 2


class OpenState(NamedTuple):
    """The restored hints and pins, and the objects that save their changes."""

    store: StateStore
    persistence: Persistence
    hints: HintRegistry
    hint_memory: HintMemory
    order_builder: OrderBuilder
    pins: Pins


def check_data_set(job: Job, hints: HintRegistry, engine: Engine) -> None:
    """Check the cached objects of the job's data set against the origin, by listing it.

    One listing request checks a thousand objects, so no read of the epoch has to check its object.
    """
    dataset = hints.datasets.get(job.dataset or "")
    if dataset is None or not len(engine.cache.residents):
        return
    for bucket, prefix, count in dataset.entries.prefixes():
        most_pages = 1 + _MOST_OTHERS * count // _LISTED_AT_ONCE
        engine.check_listed(bucket, prefix, most_pages, dataset.entries.namespace)


class PartOpener:
    """Opens the parts of one proxy. Call the methods in the order in which they stand here. ``calls``: by the
    name of a tier, the system calls on its segments, if not the kernel's. ``on_change`` is called with kind
    and name of each hint that changes.
    """

    def __init__(
        self,
        settings: Settings,
        stack: AsyncExitStack,
        *,
        clock: Clock,
        stats: Stats,
        calls: Mapping[str, Calls] | None = None,
        on_change: Callable[[str, str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._stack = stack
        self._clock = clock
        self._stats = stats
        self._calls = calls
        self._on_change = on_change
        self._engine: Engine | None = None
        self._tracer: OtelTracer | None = None
        self._regions = BucketRegions()
        self._limited: LimitedOrigin
        self._origin_share: OriginShare
        self._orders_changed = asyncio.Event()

    async def tracer(self) -> OtelTracer | None:
        """Return the tracer of this process; None if otel spans are off. Raises ConfigError."""
        self._tracer = await open_tracer(self._settings, self._clock, self._stack)
        return self._tracer

    async def state(self, pool: WorkPool, rules: Rules) -> OpenState:
        """Open the state directory and restore hints and pins. Raises ConfigError."""
        store = StateStore(self._settings.state.path, clock=self._clock)
        await asyncio.to_thread(store.open)
        self._stack.push_async_callback(asyncio.to_thread, store.close)
        self._stats.watch("refused_state_rows", lambda: float(store.refused_rows))
        self._stats.watch("damaged_state_databases", lambda: float(store.damaged_databases))
        persistence = Persistence(store, pool, self._clock)
        order_builder = OrderBuilder(pool)

        on_change = self._on_change

        def note(kind: str, name: str) -> None:
            persistence.note(kind, name)
            if on_change is not None:
                on_change(kind, name)

        def begin_epoch(job: Job) -> None:
            if self._engine is not None:
                check_data_set(job, hints, self._engine)

        def begin_run(name: str) -> None:
            if self._engine is not None:
                # Count the reads that are still in the access log now: they belong to the run that ends.
                self._engine.access_log.flush_to_statistics()
            self._stats.begin_run(name)

        hints = HintRegistry(
            dirty=persistence.note if on_change is None else note,
            page_size=self._settings.cache.page_size,
            on_epoch=begin_epoch,
            on_run=begin_run,
            on_lost=order_builder.seek,
            on_orders_changed=self._orders_changed.set,
            off_loop=InPool(pool, rests=_INDEX_RESTS),
        )
        await asyncio.to_thread(persistence.restore, hints)
        order_builder.restore(hints.orders)
        persistence.start(hints)
        self._stack.push_async_callback(persistence.stop, hints)
        pins = Pins(rules)
        await asyncio.to_thread(restore_pins, pins, store)
        hint_memory = HintMemory(hints, self._settings.control.hint_memory)
        return OpenState(store, persistence, hints, hint_memory, order_builder, pins)

    async def origin(
        self, providers: Providers, health: OriginHealth, *, instance: str
    ) -> tuple[CountedOrigin, CallbackReads | None]:
        """Build the origin. Return it, and the object that reads it by callbacks, or None if reads by
        callbacks are not possible. Raises ConfigError for a missing directory.
        """
        settings, clock = self._settings, self._clock
        built = build_origin(
            settings,
            clock=clock,
            providers=providers,
            health=health,
            instance=instance,
            tracer=self._tracer,
            regions=self._regions,
        )
        self._limited = built.limited
        self._origin_share = OriginShare(settings.origin, built.limited, built.throttled)
        origin = CountedOrigin(
            built.origin, stats=self._stats, clock=clock, health=health, bounds=read_bounds(settings)
        )
        self._stack.push_async_callback(origin.aclose)
        limited = built.limited
        self._stats.watch("origin_inflight", lambda: float(limited.open_now + limited.forwarded_now))
        self._stats.watch("origin_waiting", lambda: float(limited.waiting))
        if settings.origin.kind == "file":
            await origin.probe()  # A missing path is an error of the configuration, not an outage.
        return origin, None if built.gets is None else CallbackReads(built.gets, built.limited, origin)

    def share_regions(self, workers: Workers | None) -> Workers | None:
        """Keep the regions of buckets the same here and in all workers. Return ``workers``."""
        if workers is not None:
            workers.share_regions(self._regions)
        return workers

    def take_part(self, part: float) -> None:
        """Use the part ``part`` (0 to 1) of the origin's limits from now on. Build the origin before."""
        self._origin_share.take_part(part)

    def prefetched(self) -> int:
        """Return how many reads of the origin may be open while prefetch still begins new ones."""
        return self._limited.prefetched

    async def engine(
        self,
        origin: Origin,
        state: OpenState,
        rules: Rules,
        *,
        share: Share | None,
        upstreams: Upstreams,
        callback_reads: CallbackReads | None = None,
        prefetch_reads: Callable[[], CallbackOrigin | None] = lambda: None,
        ownership: Ownership | None = None,
        past: Origin | None = None,
    ) -> Engine:
        """Open the tiers, start their recovery, and make the engine over them. Raises ConfigError."""
        settings, clock, stats, hints = self._settings, self._clock, self._stats, state.hints
        workers_bytes = fill_memory_bytes(settings) * (settings.s3.processes - 1)
        ledger = Ledger(settings.cache.inflight - workers_bytes)
        stats.watch("inflight_bytes", lambda: float(ledger.taken_bytes))
        prefetcher = self._make_prefetcher(hints) if settings.prefetch.enabled else None
        cache = await self._cache(state, ledger, share, prefetcher)
        recorder = await self._recorder()
        reads: CallbackOrigin | None = callback_reads
        if reads is not None and self._tracer is not None:
            reads = OtelReads(reads, self._tracer, clock)
        self._engine = engine = Engine(
            origin,
            cache,
            rules=rules,
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=settings.cache.page_size,
            bounds=read_bounds(settings),
            verdicts=make_verdicts(settings),
            jobs_of=hints.jobs_of,
            orders=hints.expectations,
            recording=None if recorder is None else recorder.reads,
            upstreams=upstreams,
            callback_reads=reads,
            prefetch_reads=prefetch_reads,
            ownership=ownership,
            past=past,
        )
        stats.watch("readings", lambda: float(engine.readings))
        self._stack.push_async_callback(engine.aclose)
        self._stack.callback(asyncio.create_task(watch_clock(engine, clock), name="clock").cancel)
        if prefetcher is not None:
            prefetcher.start(engine.prefetch_port)
            self._stack.push_async_callback(prefetcher.aclose)
        return engine

    def sharing(self, hints: HintRegistry, engine: Engine) -> JobSharing:
        """Return the object that shares cache and link among the jobs. Start it afterwards."""
        media = engine.cache.media
        return JobSharing(
            hints,
            self._stats,
            self._clock,
            self._limited,
            page_bytes=self._settings.cache.page_size,
            capacity_bytes=lambda: sum(medium.tier.capacity_bytes for medium in media),
            told_bytes_per_s=lambda: self._origin_share.bytes_per_s,
            count_reads=engine.access_log.flush_to_statistics,
            held=partial(find_held_shares, hints, engine.cache),
        )

    def pins(self, state: OpenState, cache: PageCache) -> DurablePins:
        """Return the pins that calls make, and start to apply all pins to the cached pages."""
        pins = DurablePins(state.pins, state.store, self._clock, cache.renew_pins)
        pins.start()
        self._stack.push_async_callback(pins.aclose)
        return pins

    def _make_prefetcher(self, hints: HintRegistry) -> Prefetcher:
        settings = self._settings
        limits = Limits(
            ahead_bytes=settings.prefetch.ahead,
            fetches=self.prefetched,
            flying_bytes=settings.cache.inflight // 2,
            whole_bytes=settings.prefetch.whole_objects,
            may_wait=self._limited.may_wait,
            is_shared=lambda: self._limited.is_shared,
            jobs_of=hints.jobs_of,
        )
        prefetcher = Prefetcher(
            hints.orders,
            hints.expectations,
            page_size=settings.cache.page_size,
            clock=self._clock,
            limits=limits,
            woken=self._orders_changed,
        )
        self._stats.watch("prefetches", lambda: float(prefetcher.flying))
        return prefetcher

    async def _cache(
        self, state: OpenState, ledger: Ledger, share: Share | None, observer: PageObserver | None
    ) -> PageCache:
        settings, stats = self._settings, self._stats
        used = UsedStores(settings.state.path)
        await asyncio.to_thread(used.read)
        media = Media(settings, self._calls, used.was_left_out)
        self._stack.push_async_callback(asyncio.to_thread, media.close)
        learning = WorkPool(1, "learning")
        self._stack.push_async_callback(asyncio.to_thread, learning.shutdown)
        policy = get_policy(settings.policy.name, settings.policy.objective)
        cache = PageCache(
            media.media,
            policy=policy,
            weights=state.hints,
            next_uses=state.hints.expectations,
            pins=state.pins,
            stats=stats,
            ledger=ledger,
            share=share,
            off_loop=InPool(learning),
            learn_off_loop=InPool(learning, rests=_LEARNING_RESTS),
            observer=observer,
        )
        self._stack.push_async_callback(asyncio.to_thread, cache.close)
        await asyncio.to_thread(cache.open)
        await asyncio.to_thread(used.record, media.store_ids)
        if speeds := cache.transfers.disks.speeds:
            _log.info("disk read speeds", bytes_per_s=speeds)
        if policy.learns:
            await self._keep_histories(cache, learning)
        cache.start_recovery()
        cache.erasing.start(self._clock)
        self._stack.push_async_callback(cache.erasing.aclose)
        cache.shrinking.start(self._clock)
        self._stack.push_async_callback(cache.shrinking.aclose)
        self._stack.push_async_callback(cache.stop_recovery)
        for index, medium in enumerate(media.media):
            stats.watch_tier(medium.tier.name, tier_gauges(medium, cache, index))
        stats.watch("recovering_segments", lambda: float(cache.pending_segments))
        return cache

    async def _keep_histories(self, cache: PageCache, pool: WorkPool) -> None:
        settings = self._settings
        file = HistoryFile(
            cache, settings.state.path, page_size=settings.cache.page_size, pool=pool, clock=self._clock
        )
        await asyncio.to_thread(file.restore)
        histories = cache.placement.histories
        self._stats.watch("ghost_bytes", lambda: float(len(histories.ghosts) * BYTES))
        self._stats.watch("sampled_pages", lambda: float(histories.learner.sampled))
        file.start()
        self._stack.push_async_callback(file.stop)

    async def _recorder(self) -> Recorder | None:
        path = self._settings.telemetry.trace
        if not path:
            return None
        recorder = await asyncio.to_thread(Recorder, Path(path), self._clock)
        recorder.start()
        self._stack.push_async_callback(recorder.stop)
        return recorder
