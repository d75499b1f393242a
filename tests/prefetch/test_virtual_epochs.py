"""Whole epochs over the real engine in virtual time. Bytes and times with prefetching are compared with those
without it.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from statistics import median
from typing import Any

from shadeproxy.prefetch.warm import Warm
from shadeproxy_bench.studies.prefetch.model import (
    BUCKET,
    EVICTION,
    NOTHING,
    PREFETCHING,
    Setting,
    ShapedOrigin,
    VirtualProxy,
    train,
)
from shadeproxy_bench.studies.prefetch.virtual import VirtualClock, VirtualLoop, run


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


class Beside:
    """A client that reads one object after another in virtual time, over a full link, beside other work
    of the proxy. ``waits_s``: the time of each read.
    """

    def __init__(self, folder: Path, *, size: int, bytes_per_s: float) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.keys = [f"k{number:03d}" for number in range(400)]
        origin = ShapedOrigin(0.02, bytes_per_s)
        for key in self.keys:
            origin.put(BUCKET, f"work/{key}", bytes(size))
            origin.put(BUCKET, f"other/{key}", bytes(size))
        folder.mkdir()
        room_bytes = 500 * size
        self.proxy = VirtualProxy(origin, folder, self.clock, room_bytes=room_bytes, prefetching=False)
        self.waits_s: list[float] = []

    def run(self, work: Coroutine[Any, Any, None]) -> float:
        """Read until ``work`` has ended. Return the seconds that it took."""
        try:
            return run(self._beside(work), self.loop)
        finally:
            self.proxy.cache.close()

    async def _beside(self, work: Coroutine[Any, Any, None]) -> float:
        began_s = self.loop.time()
        other = asyncio.create_task(self._read())
        await work
        took_s = self.loop.time() - began_s
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await self.proxy.aclose()
        return took_s

    async def _read(self) -> None:
        for key in self.keys:
            began_s = self.loop.time()
            await self.proxy.get(f"other/{key}", None)
            self.waits_s.append(self.loop.time() - began_s)
            await asyncio.sleep(0.1)

    async def warm(self) -> None:
        """Warm what an epoch would read."""
        engine = self.proxy.engine
        listed = {"bucket": BUCKET, "prefix": "work/", "dry_run": False}
        asked = {"clock": self.clock, "fetches": lambda: 112, **listed}
        await Warm(engine.prefetch_port, engine.list_objects, **asked).run()


LINK = {"size": 100_000, "bytes_per_s": 5e6}


def test_a_warm_over_a_full_link_leaves_room_for_clients(tmp_path):
    """A client waits little longer beside a warm than it would beside four other readers. The warm keeps the
    link full.
    """
    ours = Beside(tmp_path / "ours", **LINK)
    took_s = ours.run(ours.warm())
    assert median(ours.waits_s[len(ours.waits_s) // 2 :]) <= 0.3
    assert took_s <= 1.05 * (400 + len(ours.waits_s) + 1) * LINK["size"] / LINK["bytes_per_s"]
