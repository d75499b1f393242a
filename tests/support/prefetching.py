"""Announced orders that a test advances by hand, and a prefetcher that follows them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.datasets import Sample
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.order.upcoming import Outlook
from shadeproxy.prefetch.prefetcher import Prefetcher
from tests.support.engine import Bench


@dataclass
class Order:
    """The announced order of one job: ids of ``samples``, and the position of the job in it."""

    samples: list[Sample]
    coming: list[int]
    rate_per_s: float = float("nan")
    position: int = 0


@dataclass
class FakeOrders:
    """Implements ``Upcoming`` and ``NextUses`` over orders of a test. ``read`` advances a job in
    its order.
    """

    orders: dict[str, Order] = field(default_factory=dict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def outlooks(self) -> list[Outlook]:
        return [
            Outlook(name, one.rate_per_s, len(one.coming) - one.position, name)
            for name, one in self.orders.items()
        ]

    def coming(self, job: str, count: int, *, skip: int = 0) -> np.ndarray:
        order = self.orders.get(job)
        ids = [] if order is None else order.coming[order.position :]
        return np.array(ids[skip : skip + count], dtype=np.uint32)

    def samples(self, job: str, ids: np.ndarray) -> list[Sample]:
        return [self.orders[job].samples[number] for number in ids.tolist()] if job in self.orders else []

    def expect(
        self, object_hashes: np.ndarray, numbers: np.ndarray, tick: float
    ) -> tuple[np.ndarray, np.ndarray]:
        assert object_hashes.shape == numbers.shape
        assert tick >= 0
        due: dict[int, float] = {}
        for order in self.orders.values():
            for place, sample in enumerate(order.coming[order.position :]):
                due.setdefault(object_hash(order.samples[sample].ref), float(place))
        soonest = np.array([due.get(int(one), np.inf) for one in object_hashes])
        return soonest, np.zeros(len(soonest))

    def announces(self, object_hashes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        soonest, _ = self.expect(object_hashes, numbers, 0.0)
        return np.isfinite(soonest)

    def announce(self, job: str, order: Order) -> None:
        self.orders[job] = order
        self.changed()

    def withdraw(self, job: str) -> None:
        del self.orders[job]
        self.changed()

    def read(self, job: str, count: int = 1) -> None:
        self.orders[job].position += count
        self.changed()

    def changed(self) -> None:
        self.woken.set()


def whole(count: int) -> list[Sample]:
    """Return samples that are whole objects: k0, k1, ... of bucket b."""
    return [Sample(ObjectRef("b", f"k{number}"), 0, None) for number in range(count)]


async def until(condition: Callable[[], bool], *, steps: int = 20_000) -> None:
    """Let all tasks run until ``condition`` holds."""
    for _ in range(steps):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


@dataclass
class Fetching:
    """A bench, and a prefetcher that runs on it."""

    bench: Bench
    orders: FakeOrders
    prefetcher: Prefetcher

    async def idle(self) -> None:
        """Wait until no page is on its way, and no new fetch begins."""
        for _ in range(20):
            await until(lambda: not self.prefetcher.flying)
            for _ in range(5):
                await asyncio.sleep(0)

    def counts(self) -> tuple[int, int, int, int]:
        """Return how many prefetched pages were issued, used, wasted and failed."""
        self.bench.engine.access_log.flush()
        one = self.bench.stats.prefetch
        return one.issued, one.used, one.wasted, one.failed
