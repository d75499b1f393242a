"""Whole epochs over the real engine in virtual time. Bytes and times with prefetching are compared with those
without it.
"""

import asyncio
from pathlib import Path
from statistics import median

import numpy as np

from shadeproxy.core.types import JobContext
from shadeproxy.hints.jobs import Job
from shadeproxy_bench.studies.prefetch.model import (
    BUCKET,
    EVICTION,
    NOTHING,
    PREFETCHING,
    Setting,
    ShapedOrigin,
    VirtualProxy,
    announce,
    read_epoch,
    register,
    train,
)
from shadeproxy_bench.studies.prefetch.virtual import VirtualClock, VirtualLoop, run

JOB = JobContext("train")


def test_prefetching_costs_hardly_any_bytes_and_hides_the_latency():
    setting = Setting("fast", 512, 8000, 128.0, 0.05, batch=8, epochs=3)
    ours, alone = train(setting, PREFETCHING), train(setting, EVICTION)
    assert ours.origin_bytes <= 1.03 * alone.origin_bytes
    assert ours.stall_s <= 0.02 * ours.wall_s


def test_a_loop_whose_workers_are_far_apart_hardly_loses_by_prefetching():
    """A loop whose workers are far apart loses almost nothing by prefetching. Eight workers have half of the
    epoch under way. So the job passes announced samples before it reads them, and their pages are evicted
    unread. The cache is small, and the link is slow.
    """
    setting = Setting("far apart", 512, 8000, 512.0, 0.02, 1e6, 0.05, batch=16, epochs=2)
    ours, plain = train(setting, PREFETCHING), train(setting, NOTHING)
    assert ours.first_s + ours.wall_s <= 1.04 * (plain.first_s + plain.wall_s)


def beside(folder: Path, *, announced: bool, size: int, bytes_per_s: float) -> tuple[list[float], float]:
    """Read an epoch with four workers that never compute, while another client reads one object after
    another. Return the seconds of each read of the other client, and those of the epoch.
    """
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    keys, order = [f"k{number}" for number in range(400)], np.random.default_rng(1).permutation(400)
    origin = ShapedOrigin(0.02, bytes_per_s)
    for key in keys:
        origin.put(BUCKET, key, bytes(size))
        origin.put(BUCKET, f"other-{key}", bytes(size))
    folder.mkdir()
    proxy = VirtualProxy(origin, folder, clock, room_bytes=200 * size, prefetching=announced)

    async def read_other(waits: list[float]) -> None:
        for key in keys:
            began_s = loop.time()
            await proxy.get(f"other-{key}", None)
            waits.append(loop.time() - began_s)
            await asyncio.sleep(0.1)

    async def read_both() -> tuple[list[float], float]:
        waits: list[float] = []
        if announced:
            register(proxy.hints, keys, Job(JOB.job, dataset="data"), clock.monotonic_s())
            announce(proxy.hints, JOB.job, 0, order, clock.monotonic_s())
        proxy.begin()
        other = asyncio.create_task(read_other(waits))
        read = [keys[one] for one in order.tolist()]
        epoch_s, _ = await read_epoch(
            proxy, JOB, read, lambda _batch: None, workers=4, batch=8, rate_per_s=1e6
        )
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await proxy.aclose()
        return waits, epoch_s

    try:
        return run(read_both(), loop)
    finally:
        proxy.cache.close()


def test_prefetching_over_a_full_link_leaves_room_for_other_clients(tmp_path):
    """Over a full link, fetches for one job make another client wait little longer than the job's own four
    readers do, and the epoch takes no longer.
    """
    link = {"size": 100_000, "bytes_per_s": 5e6}
    plain, plain_s = beside(tmp_path / "plain", announced=False, **link)
    ours, ours_s = beside(tmp_path / "ours", announced=True, **link)
    assert median(ours[len(ours) // 2 :]) <= 3 * median(plain)
    assert ours_s <= 1.02 * plain_s
