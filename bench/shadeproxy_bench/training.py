"""A training loop on servers of its own: shuffled epochs, over an origin with a stated latency and link.

The loop is a model (loader.py): workers read one sample after another, and a consumer sleeps instead of
computing. Each epoch's order is announced half an epoch early, as the SDK does. The first epoch, in which the
cache fills, is reported apart from the later ones.
"""

import asyncio
import json
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from shadeproxy_bench.announce import Order, put_order, register
from shadeproxy_bench.loader import Epoch, Loader
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.server import Served, origin, proxy, workplace

CACHED = 0.2
_RECORD_BYTES = 212  # bytes of header and metadata that the tier stores beside a body
_JOB = "train"


class Load(NamedTuple):
    """The data set, its origin, and the training loop, which computes ``rate_per_s`` samples a second.
    ``link_bytes_per_s``: 0 means unlimited.
    """

    samples: int
    sample_bytes: int
    rate_per_s: float
    latency_s: float
    link_bytes_per_s: float = 0.0
    workers: int = 8
    batch: int = 64


class Way(NamedTuple):
    """A way to read samples. ``policy``: the policy of the proxy; None: samples are read from the origin,
    without a proxy.
    """

    name: str
    policy: str | None
    announced: bool = False
    prefetching: bool = False


DIRECT = Way("direct", None)
LRU = Way("LRU", "lru")
LRU_PREFETCH = Way("LRU, prefetch", "lru", announced=True, prefetching=True)
ORDER = Way("order, no prefetch", "default", announced=True)
ALL = Way("order and prefetch", "default", announced=True, prefetching=True)


class Run(NamedTuple):
    """The epochs of one run. ``origin_bytes``: bytes read from the origin in the later epochs. ``prefetch``:
    counts of prefetched pages in the later epochs, by outcome.
    """

    first: Epoch
    later: list[Epoch]
    origin_bytes: int
    prefetch: dict[str, int]

    @property
    def wall_s(self) -> float:
        """Wall time of all epochs but the first."""
        return sum(epoch.wall_s for epoch in self.later)

    @property
    def compute_s(self) -> float:
        """Computing time of all epochs but the first."""
        return sum(epoch.compute_s for epoch in self.later)

    @property
    def stall(self) -> float:
        """Stall of all epochs but the first, in per cent of their wall time."""
        return 100 * sum(epoch.stall_s for epoch in self.later) / self.wall_s


def train(load: Load, way: Way, *, epochs: int) -> Run:
    """Train in the way ``way``. If ``way`` has a proxy, the proxy is empty at the start, and has room for a
    fifth of the data.
    """
    ram_bytes = int(CACHED * load.samples * (load.sample_bytes + _RECORD_BYTES))
    with ExitStack() as opened:
        work = opened.enter_context(workplace())
        source = opened.enter_context(origin(work, latency_s=load.latency_s, rate=load.link_bytes_per_s))
        if way.policy is None:
            return asyncio.run(_train(source, load, way, epochs))
        settings: dict[str, dict[str, Any]] = {
            "policy": {"name": way.policy},
            "prefetch": {"enabled": way.prefetching},
        }
        ours = opened.enter_context(proxy(work, source, ram_bytes=ram_bytes, more=settings))
        return asyncio.run(_train(ours, load, way, epochs))


async def _train(server: Served, load: Load, way: Way, epochs: int) -> Run:
    pieces = [Piece(load.sample_bytes, number) for number in range(load.samples)]
    requests = [f"GET {piece.path} HTTP/1.1\r\nHost: {server.authority}\r\n" for piece in pieces]
    drawn = np.random.default_rng(0)
    orders: list[Order] = [drawn.permutation(load.samples).astype(np.uint32) for _ in range(epochs)]
    if way.announced:
        await asyncio.to_thread(register, server, pieces, [_JOB])
        await asyncio.to_thread(put_order, server, _JOB, 0, orders[0])
    loader = Loader(server.address, workers=load.workers, batch=load.batch, rate_per_s=load.rate_per_s)
    half = load.samples // load.batch // 2
    found: list[Epoch] = []
    counts: list[tuple[int, dict[str, int]]] = []
    for number, order in enumerate(orders):
        tag = f"x-shade-job: {_JOB};epoch={number};rank=0\r\n\r\n" if way.announced else "\r\n"

        async def announce(batch: int, coming: int = number + 1) -> None:
            if way.announced and batch == half and coming < epochs:
                await asyncio.to_thread(put_order, server, _JOB, coming, orders[coming])

        found.append(await loader.epoch([(requests[one] + tag).encode() for one in order.tolist()], announce))
        counts.append(await asyncio.to_thread(_counted, server, load, number + 1))
    (bytes_before, before), (origin_bytes, prefetch) = counts[0], counts[-1]
    wanted = {name: count - before[name] for name, count in prefetch.items()}
    return Run(found[0], found[1:], origin_bytes - bytes_before, wanted)


def _counted(server: Served, load: Load, epochs: int) -> tuple[int, dict[str, int]]:
    """Return the bytes read from the origin so far, and the counts of prefetched pages by outcome."""
    if not server.control_url:
        return epochs * load.samples * load.sample_bytes, {}
    found: dict[str, Any] = json.loads(server.call("GET", "/v1/stats"))
    return found["origin"]["bytes"], found["prefetch"]
