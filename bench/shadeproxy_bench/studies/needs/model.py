"""Several training loops that share one engine, prefetcher and link, in virtual time.

Each loop is modelled as in the prefetch study, with a dataset of its own. Orders are announced half an epoch
early. Progress and computing time are reported once a second, as by the SDK. The result of a run depends only
on its arguments.
"""

import asyncio
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from shadeproxy.app.sharing import JobSharing
from shadeproxy.core.types import JobContext
from shadeproxy.hints.jobs import Job, Progress
from shadeproxy.hints.needs import JobNeed
from shadeproxy.policy.sharing import Demands, Room, solve
from shadeproxy_bench.studies.prefetch.model import (
    BUCKET,
    PAGE_BYTES,
    RECORD_BYTES,
    Order,
    ShapedOrigin,
    VirtualProxy,
    announce,
    read_epoch,
    register,
)
from shadeproxy_bench.studies.prefetch.virtual import VirtualClock, VirtualLoop, run

_REPORT_S = 1.0


class Loop(NamedTuple):
    """A training loop. ``begins_s``: seconds from the start of the run to the begin of this loop. ``is_job``:
    False if the loop registers no job and announces no order.
    """

    name: str
    rate_per_s: float
    samples: int
    need: JobNeed | None = None
    sample_bytes: int = 100_000
    workers: int = 8
    batch: int = 16
    begins_s: float = 0.0
    is_job: bool = True

    @property
    def data_bytes(self) -> int:
        return self.samples * self.sample_bytes


class World(NamedTuple):
    """The link, the size of the cache and the proxy's settings, which all loops of a run share."""

    link_bytes_per_s: float
    latency_s: float = 0.03
    cached: float = 0.2
    prefetching: bool = True
    policy: str = "default"
    shares: bool = True


class Ended(NamedTuple):
    """One epoch of a loop. ``slowdown``: the epoch's time, divided by the time that the epoch takes without
    waits. ``ended_s``: seconds from the start of the run to the epoch's end.
    """

    number: int
    slowdown: float
    ended_s: float


class Found(NamedTuple):
    """The result of a run. ``epochs``: the epochs of each loop. ``read_per_s`` and ``origin_per_s``: bytes a
    second that all loops read, and that came from the origin. ``summary``: the last summary of the sharing.
    """

    epochs: dict[str, list[Ended]]
    read_per_s: float
    origin_per_s: float
    summary: dict[str, Any]

    def slowdowns(self, loop: str, after: int = 2, since_s: float = 0.0) -> list[float]:
        """Return the slowdowns of a loop's epochs. The first ``after`` epochs are left out, and epochs that
        ended before ``since_s``.
        """
        return [one.slowdown for one in self.epochs[loop] if one.number >= after and one.ended_s >= since_s]


def optimum(loops: list[Loop], world: World) -> float:
    """Return the least possible slowdown of the loops without a need, if the needs of the other loops are
    kept.
    """
    demands = Demands(
        np.array([loop.rate_per_s for loop in loops]),
        np.array([_needed(loop) for loop in loops]),
        np.array([float(loop.sample_bytes) for loop in loops]),
        np.array([float(loop.data_bytes) for loop in loops]),
    )
    room = world.cached * sum(loop.data_bytes for loop in loops)
    found = solve(demands, Room(world.link_bytes_per_s, room))
    return 1 / found.others if found.others else math.inf


def _needed(loop: Loop) -> float:
    if loop.need is None:
        return math.nan
    return loop.need.samples_per_s or loop.rate_per_s / (loop.need.slowdown or 1.0)


def share(loops: list[Loop], world: World, *, lasting_s: float) -> Found:
    """Run the loops side by side for ``lasting_s``, through a cache that is empty at first."""
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    # The size of the cache is a share of the data of those loops that are jobs.
    jobs = [one for one in loops if one.is_job]
    room = int(world.cached * sum(one.samples * (one.sample_bytes + RECORD_BYTES) for one in jobs))
    with TemporaryDirectory() as folder:
        origin = ShapedOrigin(world.latency_s, world.link_bytes_per_s)
        proxy = VirtualProxy(
            origin,
            Path(folder),
            clock,
            room_bytes=room,
            prefetching=world.prefetching,
            policy=world.policy,
        )
        try:
            return run(_share(proxy, loops, world, clock, lasting_s), loop)
        finally:
            proxy.cache.close()


async def _share(
    proxy: VirtualProxy, loops: list[Loop], world: World, clock: VirtualClock, lasting_s: float
) -> Found:
    sharing = JobSharing(
        proxy.hints,
        proxy.stats,
        clock,
        proxy.limited,
        page_bytes=PAGE_BYTES,
        capacity_bytes=lambda: sum(medium.tier.capacity_bytes for medium in proxy.cache.media),
        count_reads=proxy.engine.access_log.flush_to_statistics,
    )
    for loop in loops:
        body = bytes(loop.sample_bytes)
        for key in _keys(loop):
            proxy.origin.put(BUCKET, key, body)
    proxy.begin()
    steps = asyncio.create_task(sharing.run()) if world.shares else None
    epochs: dict[str, list[Ended]] = {loop.name: [] for loop in loops}
    tasks = [
        asyncio.create_task(_train(proxy, loop, seed, epochs[loop.name], clock))
        for seed, loop in enumerate(loops)
    ]
    await asyncio.sleep(lasting_s)
    proxy.engine.access_log.flush()
    read, summary = proxy.stats.totals().bytes / lasting_s, sharing.summary()
    origin_per_s = proxy.origin.bytes / lasting_s
    for task in [*tasks, *([] if steps is None else [steps])]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await proxy.aclose()
    return Found(epochs, read, origin_per_s, summary)


def _keys(loop: Loop) -> list[str]:
    return [f"{loop.name}/{number}" for number in range(loop.samples)]


async def _train(proxy: VirtualProxy, loop: Loop, seed: int, ended: list[Ended], clock: VirtualClock) -> None:
    keys, drawn = _keys(loop), np.random.default_rng(seed)
    await asyncio.sleep(loop.begins_s)
    if loop.is_job:
        register(proxy.hints, keys, Job(loop.name, dataset=loop.name, need=loop.need), clock.now_s())
    order, number = drawn.permutation(loop.samples), 0
    if loop.is_job:
        announce(proxy.hints, loop.name, 0, order, clock.now_s())
    while True:
        coming = drawn.permutation(loop.samples)
        reports = _Reports(proxy, loop, number, coming, clock) if loop.is_job else None
        wall_s, _ = await read_epoch(
            proxy,
            JobContext(loop.name, number, 0) if loop.is_job else None,
            [keys[one] for one in order.tolist()],
            (lambda _batch: None) if reports is None else reports.before,
            workers=loop.workers,
            batch=loop.batch,
            rate_per_s=loop.rate_per_s,
        )
        if reports is not None:
            reports.tell(loop.samples)
        at_s = asyncio.get_running_loop().time()
        ended.append(Ended(number, wall_s * loop.rate_per_s / loop.samples, at_s))
        number, order = number + 1, coming


class _Reports:
    """The calls that a loop makes to the proxy in one epoch, as the SDK makes them."""

    def __init__(
        self, proxy: VirtualProxy, loop: Loop, epoch: int, coming: Order, clock: VirtualClock
    ) -> None:
        self._proxy, self._loop, self._epoch, self._coming, self._clock = proxy, loop, epoch, coming, clock
        self._told, self._told_s = 0, clock.now_s()

    def before(self, batch: int) -> None:
        """Announce the next epoch at half of this one, and report progress once a second."""
        if batch == self._loop.samples // self._loop.batch // 2:
            announce(self._proxy.hints, self._loop.name, self._epoch + 1, self._coming, self._clock.now_s())
        if self._clock.now_s() - self._told_s >= _REPORT_S:
            self.tell(batch * self._loop.batch)

    def tell(self, position: int) -> None:
        """Report progress and the computing time since the last report."""
        name, now_s = self._loop.name, self._clock.now_s()
        computed_s = (position - self._told) / self._loop.rate_per_s
        self._told, self._told_s = position, now_s
        self._proxy.hints.report_progress(name, 0, Progress(self._epoch, position), now_s)
        self._proxy.stats.record_training(name, self._epoch, stall_s=0.0, compute_s=computed_s)
