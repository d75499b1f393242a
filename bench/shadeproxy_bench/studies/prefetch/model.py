"""A training loop over the real engine and prefetcher, in virtual time.

The loop works as in ``loader.py``: batches are dealt to workers, each worker reads its samples one after
another and is at most two batches ahead. The origin answers after a latency, and all bodies share one link. A
hit takes ``_HIT_S``. Law: files are opened and closed while the virtual loop does not run.
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
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import JobContext, ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.base import OpenOptions, OriginRead
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.limit import LimitedOrigin, prefetch_slots
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.policy.registry import get_policy
from shadeproxy.prefetch.limits import Limits
from shadeproxy.prefetch.prefetcher import Prefetcher
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.origin import Link
from shadeproxy_bench.studies.prefetch.virtual import VirtualClock, VirtualLoop, run

PAGE_BYTES = 1 << 20
RECORD_BYTES = 268  # bytes of header, metadata and catalogue that the tier counts beside a body
_SEGMENT_BYTES = 4 << 20
_INFLIGHT_BYTES = 256 << 20
_AHEAD_BYTES = 256 << 20
_CONNECTIONS = 128
_FETCHES = prefetch_slots(_CONNECTIONS)
_HIT_S = 0.0003
_BATCHES_AHEAD = 2
BUCKET = "data"
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
    """A way to read. ``announced``: each order is announced half an epoch early. ``prefetching``: the proxy
    prefetches.
    """

    announced: bool
    prefetching: bool


NOTHING = Way(announced=False, prefetching=False)
EVICTION = Way(announced=True, prefetching=False)
PREFETCHING = Way(announced=True, prefetching=True)


class Found(NamedTuple):
    """The results of the epochs after the first, and the time of the first. ``needed_s``: the time that the
    loop takes without waiting, or the time that the link takes for the bytes, whichever is longer.
    """

    first_s: float
    wall_s: float
    stall_s: float
    origin_bytes: int
    needed_s: float
    wasted: int


class ShapedOrigin(MemoryOrigin):
    """An origin whose objects come after a latency, over one link that all reads share."""

    def __init__(self, latency_s: float, link_bytes_per_s: float) -> None:
        super().__init__()
        self.bytes = 0
        self._latency_s = latency_s
        self._link = Link(link_bytes_per_s)

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        await asyncio.sleep(self._latency_s)
        async with super().open(ref, **options) as reading:
            self.bytes += reading.span.length
            await asyncio.sleep(self._link.after_s(asyncio.get_running_loop().time(), reading.span.length))
            yield reading


class VirtualProxy:
    """An engine with one RAM tier of ``room_bytes`` and a prefetcher, composed as in ``shadeproxy serve``."""

    def __init__(
        self,
        origin: ShapedOrigin,
        folder: Path,
        clock: VirtualClock,
        *,
        room_bytes: int,
        prefetching: bool = True,
        policy: str = "default",
        whole_bytes: int = 0,
    ) -> None:
        """``whole_bytes``: see ``Limits``."""
        limits = Limits(_AHEAD_BYTES, lambda: _FETCHES, _INFLIGHT_BYTES // 2, whole_bytes)
        self.woken = asyncio.Event()
        self.hints = HintRegistry(page_size=PAGE_BYTES, on_orders_changed=self.woken.set)
        self.origin = origin
        self.limited = LimitedOrigin(origin, max_open=_CONNECTIONS)
        self.stats = Stats(now_s=clock.now_s)
        self.prefetcher: Prefetcher | None = None
        if prefetching:
            self.prefetcher = Prefetcher(
                self.hints.orders,
                self.hints.expectations,
                page_size=PAGE_BYTES,
                clock=clock,
                limits=limits._replace(
                    may_wait=self.limited.may_wait,
                    is_shared=lambda: self.limited.is_shared,
                    jobs_of=self.hints.jobs_of,
                ),
                woken=self.woken,
            )
        tier = SegmentStore("ram", folder, room_bytes, segment_bytes=_SEGMENT_BYTES)
        ledger = Ledger(_INFLIGHT_BYTES)
        rules = Rules(())
        self.cache = PageCache(
            [Medium(tier, Source.RAM)],
            policy=get_policy(policy),
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
            CountedOrigin(self.limited, stats=self.stats, clock=clock),
            self.cache,
            rules=rules,
            ledger=ledger,
            stats=self.stats,
            clock=clock,
            page_size=PAGE_BYTES,
            orders=self.hints.expectations,
            jobs_of=self.hints.jobs_of,
        )

    async def get(self, key: str, job: JobContext | None, part: RangeSpec | None = None) -> None:
        """Read an object, or a part of it, in the name of ``job``. The call lasts as long as the read takes
        in virtual time.
        """
        request = ReadRequest(ObjectRef(BUCKET, key), range=part, job=job)
        async with self.engine.open(request) as reading:
            size = reading.meta.size
            async for _ in reading.body(Span(0, size) if part is None else part.resolve(size)):
                pass
        if reading.source is not Source.ORIGIN:
            await asyncio.sleep(_HIT_S)

    def begin(self) -> None:
        """Start prefetching, if this proxy prefetches."""
        if self.prefetcher is not None:
            self.prefetcher.start(self.engine.prefetch_port)

    async def aclose(self) -> None:
        if self.prefetcher is not None:
            await self.prefetcher.aclose()
        await self.engine.aclose()


def train(setting: Setting, way: Way, *, seed: int = 0) -> Found:
    """Train in the way ``way`` through a cache that is empty at first, and return the results."""
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    with TemporaryDirectory() as folder:
        origin = ShapedOrigin(setting.latency_s, setting.link_bytes_per_s)
        room_bytes = int(setting.cached * setting.samples * (setting.sample_bytes + RECORD_BYTES))
        proxy = VirtualProxy(origin, Path(folder), clock, room_bytes=room_bytes, prefetching=way.prefetching)
        try:
            return run(_train(proxy, setting, way, clock, seed), loop)
        finally:
            proxy.cache.close()


async def _train(proxy: VirtualProxy, setting: Setting, way: Way, clock: VirtualClock, seed: int) -> Found:
    keys = [f"k{number}" for number in range(setting.samples)]
    body = bytes(setting.sample_bytes)
    for key in keys:
        proxy.origin.put(BUCKET, key, body)
    drawn = np.random.default_rng(seed)
    orders = [drawn.permutation(setting.samples) for _ in range(setting.epochs)]
    if way.announced:
        register(proxy.hints, keys, Job(_JOB.job, dataset="data"), clock.monotonic_s())
        announce(proxy.hints, _JOB.job, 0, orders[0], clock.monotonic_s())
    proxy.begin()
    walls: list[float] = []
    stalled, read_bytes = 0.0, 0
    for epoch, order in enumerate(orders):

        def before(batch: int, coming: int = epoch + 1) -> None:
            if batch == setting.samples // setting.batch // 2 and way.announced and coming < setting.epochs:
                announce(proxy.hints, _JOB.job, coming, orders[coming], clock.monotonic_s())

        wall_s, stall_s = await read_epoch(
            proxy,
            _JOB,
            [keys[one] for one in order.tolist()],
            before,
            workers=setting.workers,
            batch=setting.batch,
            rate_per_s=setting.rate_per_s,
        )
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


def register(hints: HintRegistry, keys: list[str], job: Job, now_s: float) -> None:
    """Register the objects of ``keys`` as the dataset of ``job``, and then the job."""
    assert job.dataset is not None, "its name is that of the data set"
    builder = ManifestBuilder(job.dataset, page_size=PAGE_BYTES)
    for key in keys:
        builder.add(ObjectRef(BUCKET, key), None, None)
    hints.put_dataset(builder.finish())
    hints.put_job(job, now_s)


def announce(hints: HintRegistry, job: str, epoch: int, order: Order, now_s: float) -> None:
    """Announce the order of one epoch of a job that has only rank 0."""
    hints.orders.put(hints.check_order(job, order.tolist(), epoch=epoch, rank=0, offset=0), now_s)
    hints.orders.settle()


async def read_epoch(
    proxy: VirtualProxy,
    job: JobContext | None,
    keys: list[str],
    before: Callable[[int], None],
    *,
    workers: int,
    batch: int,
    rate_per_s: float,
) -> tuple[float, float]:
    """Read ``keys`` in order. Return the seconds that this takes, and the seconds for which the consumer
    waits. ``before(n)`` is called before batch n is computed.
    """
    loop = asyncio.get_running_loop()
    batches = [keys[at : at + batch] for at in range(0, len(keys), batch)]
    done = [asyncio.Event() for _ in batches]
    free = [asyncio.Semaphore(_BATCHES_AHEAD) for _ in range(workers)]

    async def work(first: int) -> None:
        for number in range(first, len(batches), workers):
            await free[first].acquire()
            for key in batches[number]:
                await proxy.get(key, job)
            done[number].set()

    began, stall_s = loop.time(), 0.0
    async with asyncio.TaskGroup() as group:
        for first in range(workers):
            group.create_task(work(first))
        for number, ready in enumerate(batches):
            waits = loop.time()
            await done[number].wait()
            stall_s += loop.time() - waits
            free[number % workers].release()
            before(number)
            await asyncio.sleep(len(ready) / rate_per_s)
    return loop.time() - began, stall_s
