"""Find jobs that announced an order and fell silent, and their share of the cache."""

import asyncio
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.app.diagnosis import SilentJob
from shadeproxy.core.clock import Clock
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.order.orders import Orders

_LEAST_S = 20.0  # a shorter pause may be a checkpoint


class _Pages(NamedTuple):
    """Object hash and record length of every readable page."""

    object_hash: NDArray[np.uint64]
    record_bytes: NDArray[np.int64]


class SilentJobs:
    """Finds the silent jobs of one proxy, for ``shadeproxy doctor``."""

    def __init__(self, orders: Orders, cache: PageCache, clock: Clock) -> None:
        self._orders = orders
        self._cache = cache
        self._clock = clock

    async def look(self) -> tuple[SilentJob, ...]:
        """Return the jobs that have been silent for long and have not ended."""
        now_s = self._clock.now_s()
        self._orders.tick(now_s)
        silent = [
            (job, silence, dataset)
            for job, silence, dataset in self._orders.silences()
            if job.in_use and silence.silent_s >= max(_LEAST_S, silence.limit_s / 2)
        ]
        if not silent:
            return ()
        table = self._cache.residents
        ready = table.ready()
        pages = _Pages(table.object_hash[ready], table.record_bytes[ready])
        capacity_bytes = sum(medium.tier.capacity_bytes for medium in self._cache.media)
        found = []
        for job, silence, dataset in silent:
            held_bytes = await asyncio.to_thread(_held_bytes, dataset, pages)
            share = held_bytes / max(capacity_bytes, 1)
            left_s = max(silence.limit_s - silence.silent_s, 0.0)
            found.append(SilentJob(job.name, silence.silent_s, share, left_s))
        return tuple(found)


def _held_bytes(dataset: Dataset, pages: _Pages) -> int:
    return int(pages.record_bytes[dataset.groups.find(pages.object_hash) >= 0].sum())
