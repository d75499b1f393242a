"""Finds jobs that are silent or hardly believed, and the share of the cache that their data sets hold."""

import asyncio

import numpy as np
from numpy.typing import NDArray

from shadeproxy.app.diagnosis import DoubtfulJob
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.registry import HintRegistry


class DoubtfulJobs:
    """Finds the doubtful jobs of one proxy, for ``shadeproxy doctor``."""

    def __init__(self, hints: HintRegistry, cache: PageCache) -> None:
        self._hints = hints
        self._cache = cache

    async def look(self) -> tuple[DoubtfulJob, ...]:
        """Return the jobs in use that are silent, or whose hints reads have contradicted."""
        doubtful = list(self._hints.expectations.doubtful())
        if not doubtful:
            return ()
        table = self._cache.residents
        ready = table.ready()
        hashes, record_bytes = table.object_hash[ready], table.record_bytes[ready]
        capacity_bytes = sum(medium.tier.capacity_bytes for medium in self._cache.media)
        found, held_by = [], dict[str, int]()
        for job, belief in doubtful:
            if job.dataset is None or job.dataset not in self._hints.datasets:
                continue
            if job.dataset not in held_by:
                dataset = self._hints.datasets[job.dataset]
                held_by[job.dataset] = await asyncio.to_thread(_held_bytes, dataset, hashes, record_bytes)
            held_bytes = held_by[job.dataset]
            share = held_bytes / max(capacity_bytes, 1)
            found.append(DoubtfulJob(job.name, belief.silent_reads > 0, held_bytes, share, belief.reason))
        return tuple(found)


def _held_bytes(dataset: Dataset, hashes: NDArray[np.uint64], record_bytes: NDArray[np.int64]) -> int:
    return int(record_bytes[dataset.groups.find(hashes) >= 0].sum())
