"""A training loop over the real engine and prefetcher, in virtual time.

The loop is that of ``loader.py``: batches are dealt to workers, each worker reads its samples one after
another and is at most two batches ahead. The origin answers after a latency, and all bodies share one link. A
hit takes ``_HIT_S``. Law: files are opened and closed outside of the loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import JobContext, ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.engine.storage.transfers import Medium
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.base import OpenOptions, OriginRead
from shadeproxy.origin.limit import LimitedOrigin, prefetch_slots
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.policy.registry import get_policy
from shadeproxy.prefetch.prefetcher import Limits, Prefetcher
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.origin import Link
from shadeproxy_bench.studies.prefetch.virtual import VirtualClock, VirtualLoop, run

_PAGE_BYTES = 1 << 20
_RECORD_BYTES = 212  # bytes of header and metadata beside a body, as the tier counts
_SEGMENT_BYTES = 1 << 20
_INFLIGHT_BYTES = 256 << 20
_AHEAD_BYTES = 256 << 20
_CONNECTIONS = 128
_FETCHES = prefetch_slots(_CONNECTIONS)
_HIT_S = 0.0003
_BATCHES_AHEAD = 2
_BUCKET = "data"
_JOB = JobContext("train")

Order = NDArray[np.int64]


class Setting(NamedTuple):
    """A training loop and its origin. ``link_bytes_per_s``: 0 means unlimited. ``cached``: the share of the
    samples for which the cache has room.
    """

    name: str
    samples: int
    sample_bytes: int
    rate_per_s: float
    latency_s: float
    link_bytes_per_s: float = 0.0
    cached: float = 0.2
    workers: int = 8
    batch: int = 64
    epochs: int = 4


class Way(NamedTuple):
    """A way to read: with the order announced half an epoch early, or not; with prefetching, or without."""

    announced: bool
    prefetching: bool


NOTHING = Way(announced=False, prefetching=False)
EVICTION = Way(announced=True, prefetching=False)
PREFETCHING = Way(announced=True, prefetching=True)


class Found(NamedTuple):
    """Results of the epochs after the first, and the time of the first. ``needed_s``: the time that the loop
    alone takes, or the link for the bytes, whichever is longer.
    """

    first_s: float
    wall_s: float
    stall_s: float
    origin_bytes: int
    needed_s: float
    wasted: int


class _ShapedOrigin(MemoryOrigin):
    """Objects that come after a latency, over one link."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.bytes = 0
        self._latency_s = setting.latency_s
        self._link = Link(setting.link_bytes_per_s)

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        await asyncio.sleep(self._latency_s)
        async with super().open(ref, **options) as reading:
            self.bytes += reading.span.length
            await asyncio.sleep(self._link.after_s(asyncio.get_running_loop().time(), reading.span.length))
            yield reading


class _Proxy:
    """An engine with one RAM tier and a prefetcher, as ``shadeproxy serve`` composes them."""

    def __init__(self, setting: Setting, way: Way, folder: Path, clock: VirtualClock) -> None:
        self.woken = asyncio.Event()
        self.hints = HintRegistry(page_size=_PAGE_BYTES, on_orders_changed=self.woken.set)
        self.origin = _ShapedOrigin(setting)
        self.stats = Stats()
        self.prefetcher: Prefetcher | None = None
        if way.prefetching:
            self.prefetcher = Prefetcher(
                self.hints.orders,
                self.hints.expectations,
                page_size=_PAGE_BYTES,
                clock=clock,
                limits=Limits(_AHEAD_BYTES, _FETCHES, _INFLIGHT_BYTES // 2, 0),
                woken=self.woken,
            )
        room_bytes = int(setting.cached * setting.samples * (setting.sample_bytes + _RECORD_BYTES))
        tier = SegmentStore("ram", folder, room_bytes, segment_bytes=_SEGMENT_BYTES)
        ledger = Ledger(_INFLIGHT_BYTES)
        rules = Rules(())
        self.cache = PageCache(
            [Medium(tier, Source.RAM)],
            policy=get_policy("default"),
            weights=self.hints,
            next_uses=self.hints.expectations,
            pins=Pins(rules),
            stats=self.stats,
            ledger=ledger,
            rng=np.random.default_rng(0),
            observer=self.prefetcher,
        )
        self.cache.open()
        self.engine = Engine(
            LimitedOrigin(self.origin, max_open=_CONNECTIONS),
            self.cache,
            rules=rules,
            ledger=ledger,
            stats=self.stats,
            clock=clock,
            page_size=_PAGE_BYTES,
            orders=self.hints.expectations,
        )

    async def get(self, key: str, job: JobContext | None) -> None:
        request = ReadRequest(ObjectRef(_BUCKET, key), job=job)
        async with self.engine.open(request) as reading:
            async for _ in reading.body(Span(0, reading.meta.size)):
                pass
        if reading.source is not Source.ORIGIN:
            await asyncio.sleep(_HIT_S)

    async def aclose(self) -> None:
        if self.prefetcher is not None:
            await self.prefetcher.aclose()
        await self.engine.aclose()


def train(setting: Setting, way: Way, *, seed: int = 0) -> Found:
    """Train through an empty cache, and return the results."""
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    with TemporaryDirectory() as folder:
        proxy = _Proxy(setting, way, Path(folder), clock)
        try:
            return run(_train(proxy, setting, way, clock, seed), loop)
        finally:
            proxy.cache.close()


async def _train(proxy: _Proxy, setting: Setting, way: Way, clock: VirtualClock, seed: int) -> Found:
    keys = [f"k{number}" for number in range(setting.samples)]
    body = bytes(setting.sample_bytes)
    for key in keys:
        proxy.origin.put(_BUCKET, key, body)
    drawn = np.random.default_rng(seed)
    orders = [drawn.permutation(setting.samples) for _ in range(setting.epochs)]
    if way.announced:
        _register(proxy.hints, keys, clock)
        _announce(proxy.hints, 0, orders[0], clock)
    if proxy.prefetcher is not None:
        proxy.prefetcher.start(proxy.engine.prefetch_port)
    walls: list[float] = []
    stalled, read_bytes = 0.0, 0
    for epoch, order in enumerate(orders):

        def announce(coming: int = epoch + 1) -> None:
            if way.announced and coming < setting.epochs:
                _announce(proxy.hints, coming, orders[coming], clock)

        wall_s, stall_s = await _epoch(proxy, setting, [keys[one] for one in order.tolist()], announce)
        walls.append(wall_s)
        if epoch:
            stalled += stall_s
        else:
            read_bytes = proxy.origin.bytes
    proxy.engine.access_log.flush()
    found_bytes = proxy.origin.bytes - read_bytes
    link = setting.link_bytes_per_s
    loop_s = setting.samples * (setting.epochs - 1) / setting.rate_per_s
    await proxy.aclose()
    return Found(
        walls[0],
        sum(walls[1:]),
        stalled,
        found_bytes,
        max(loop_s, found_bytes / link if link else 0.0),
        proxy.stats.prefetch.wasted,
    )


def _register(hints: HintRegistry, keys: list[str], clock: VirtualClock) -> None:
    builder = ManifestBuilder("data", page_size=_PAGE_BYTES)
    for key in keys:
        builder.add(ObjectRef(_BUCKET, key), None, None)
    hints.put_dataset(builder.finish())
    hints.put_job(Job(_JOB.job, dataset="data"), clock.monotonic_s())


def _announce(hints: HintRegistry, epoch: int, order: Order, clock: VirtualClock) -> None:
    announcement = hints.check_order(_JOB.job, order.tolist(), epoch=epoch, rank=0, offset=0)
    hints.orders.put(announcement, clock.monotonic_s())
    hints.orders.settle()


async def _epoch(
    proxy: _Proxy, setting: Setting, keys: list[str], at_half: Callable[[], None]
) -> tuple[float, float]:
    """Read ``keys`` in order; return the seconds that it takes, and those in which the consumer waits."""
    loop = asyncio.get_running_loop()
    batches = [keys[at : at + setting.batch] for at in range(0, len(keys), setting.batch)]
    done = [asyncio.Event() for _ in batches]
    free = [asyncio.Semaphore(_BATCHES_AHEAD) for _ in range(setting.workers)]

    async def work(first: int) -> None:
        for number in range(first, len(batches), setting.workers):
            await free[first].acquire()
            for key in batches[number]:
                await proxy.get(key, _JOB)
            done[number].set()

    began, stall_s = loop.time(), 0.0
    async with asyncio.TaskGroup() as workers:
        for first in range(setting.workers):
            workers.create_task(work(first))
        for number, batch in enumerate(batches):
            waits = loop.time()
            await done[number].wait()
            stall_s += loop.time() - waits
            free[number % setting.workers].release()
            if number == len(batches) // 2:
                at_half()
            await asyncio.sleep(len(batch) / setting.rate_per_s)
    return loop.time() - began, stall_s
