"""How long a training loop waits for its data, with an order announced and the data prefetched.

The loop is a model (loader.py): 8 workers that read one sample after another, a consumer that sleeps. Each
epoch's order is announced half an epoch early, as the SDK does. The first epoch, in which the cache fills, is
not counted. Objects are small where the rate is what matters, so that two cores carry loader, proxy and
origin.
"""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from shadeproxy.bench.announce import Order, put_order, register
from shadeproxy.bench.loader import Epoch, Loader
from shadeproxy.bench.objects import Piece
from shadeproxy.bench.plan import Planned, Scale
from shadeproxy.bench.results import Measured, Target
from shadeproxy.bench.server import Served, origin, proxy, workplace

_WORKERS = 8
_BATCH = 64
_LATENCY_S = 0.05
_CACHED = 0.2
_RECORD_BYTES = 212  # of header and metadata beside a body, as the tier counts
_JOB = "train"
_TIMEOUT_S = 30.0
# The loop's rate, the link's, and the size of a sample.
_RATE_PER_S = 1024.0
_SMALL_BYTES = 8_000
_LINK_RATE_PER_S = 256.0
_LINK_BYTES_PER_S = 8e6
_LINK_SAMPLE_BYTES = 64_000


class Load(NamedTuple):
    """What is trained on. ``link_bytes_per_s`` 0: of any speed."""

    samples: int
    sample_bytes: int
    rate_per_s: float
    link_bytes_per_s: float = 0.0


class Run(NamedTuple):
    """The epochs after the first, and what they took from the origin."""

    epochs: list[Epoch]
    origin_bytes: int
    prefetch: dict[str, int]

    @property
    def wall_s(self) -> float:
        return sum(epoch.wall_s for epoch in self.epochs)

    @property
    def stall(self) -> float:
        """Per cent of the time."""
        return 100 * sum(epoch.stall_s for epoch in self.epochs) / self.wall_s


def train(load: Load, *, epochs: int, policy: str = "default", prefetching: bool = True) -> Run:
    """Train on an empty proxy with room for a fifth of the data. LRU is told nothing."""
    settings: dict[str, dict[str, Any]] = {"policy": {"name": policy}, "prefetch": {"enabled": prefetching}}
    ram_bytes = int(_CACHED * load.samples * (load.sample_bytes + _RECORD_BYTES))
    with (
        workplace() as work,
        origin(work, latency_s=_LATENCY_S, rate=load.link_bytes_per_s) as source,
        proxy(work, source, ram_bytes=ram_bytes, more=settings) as ours,
    ):
        return asyncio.run(_train(ours, load, epochs=epochs, announced=policy != "lru"))


async def _train(ours: Served, load: Load, *, epochs: int, announced: bool) -> Run:
    pieces = [Piece(load.sample_bytes, number) for number in range(load.samples)]
    requests = [f"GET {piece.path} HTTP/1.1\r\nHost: {ours.authority}\r\n" for piece in pieces]
    drawn = np.random.default_rng(0)
    orders: list[Order] = [drawn.permutation(load.samples).astype(np.uint32) for _ in range(epochs)]
    if announced:
        await asyncio.to_thread(register, ours, pieces, [_JOB])
        await asyncio.to_thread(put_order, ours, _JOB, 0, orders[0])
    loader = Loader(ours.address, workers=_WORKERS, batch=_BATCH, rate_per_s=load.rate_per_s)
    before, found = await asyncio.to_thread(_stats, ours), list[Epoch]()
    half = load.samples // _BATCH // 2
    for number, order in enumerate(orders):
        tag = f"x-shade-job: {_JOB};epoch={number};rank=0\r\n\r\n" if announced else "\r\n"

        async def announce(batch: int, coming: int = number + 1) -> None:
            if announced and batch == half and coming < epochs:
                await asyncio.to_thread(put_order, ours, _JOB, coming, orders[coming])

        epoch = await loader.epoch([(requests[one] + tag).encode() for one in order.tolist()], announce)
        if number:
            found.append(epoch)
        else:
            before = await asyncio.to_thread(_stats, ours)
    after = await asyncio.to_thread(_stats, ours)
    prefetch = {name: after["prefetch"][name] - before["prefetch"][name] for name in after["prefetch"]}
    return Run(found, after["origin"]["bytes"] - before["origin"]["bytes"], prefetch)


def _stats(ours: Served) -> dict[str, Any]:
    with urllib.request.urlopen(f"{ours.control_url}/v1/stats", timeout=_TIMEOUT_S) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


def stalled(load: Load, ours: Run, lru: Run) -> Measured:
    """Per cent of the time that the consumer waited."""
    prefetch = ours.prefetch
    worst = max(100 * epoch.stall_s / epoch.wall_s for epoch in ours.epochs)
    note = (
        f"worst epoch {worst:.1f} %; of {prefetch['issued']} prefetched pages {prefetch['wasted']} wasted;"
        " LRU without prefetching beside it"
    )
    return Measured(ours.stall, lru.stall, note=f"{load.rate_per_s:.0f} samples/s; {note}")


def origin_bytes(ours: Run, alone: Run) -> Measured:
    return Measured(
        ours.origin_bytes / 1e6, alone.origin_bytes / 1e6, note="clairvoyant eviction alone beside it"
    )


def link_bound(load: Load, ours: Run) -> Measured:
    """Wall time against what is needed: to compute, or to carry what was missed over the link."""
    compute_s = sum(epoch.compute_s for epoch in ours.epochs)
    carried_s = ours.origin_bytes / load.link_bytes_per_s
    note = f"compute {compute_s:.1f} s, missed bytes / link {carried_s:.1f} s"
    return Measured(ours.wall_s, max(compute_s, carried_s), note=note)


def stall(scale: Scale) -> Iterator[Planned]:
    epochs = scale.pick(4, 3)
    fast = Load(scale.pick(16_384, 4096), _SMALL_BYTES, _RATE_PER_S)
    slow = Load(scale.pick(4096, 1536), _LINK_SAMPLE_BYTES, _LINK_RATE_PER_S, _LINK_BYTES_PER_S)
    ours = cache(partial(train, fast, epochs=epochs))
    loop = f"{_WORKERS} workers, batches of {_BATCH}, {_LATENCY_S * 1000:.0f} ms origin, cache of 20 %"
    how = f"{fast.samples} x {fast.sample_bytes / 1000:.0f} KB, {loop}, order announced; epochs 2 to {epochs}"
    yield Planned(
        "stall, order announced",
        "% of wall",
        Target(2.0, at_least=False, of="ours"),
        how,
        lambda: stalled(fast, ours(), train(fast, epochs=2, policy="lru", prefetching=False)),
        ratio_is="ours / reference",
    )
    yield Planned(
        "origin bytes with prefetching",
        "MB",
        None,
        how,
        lambda: origin_bytes(ours(), train(fast, epochs=epochs, prefetching=False)),
        ratio_is="ours / reference",
    )
    yield Planned(
        "link-bound epochs, wall",
        "s",
        Target(1.05, at_least=False),
        f"{slow.samples} x {slow.sample_bytes / 1000:.0f} KB, {slow.rate_per_s:.0f} samples/s over"
        f" {slow.link_bytes_per_s / 1e6:.0f} MB/s, {loop}, against max(compute, missed bytes / link)",
        lambda: link_bound(slow, train(slow, epochs=epochs)),
        ratio_is="ours / reference",
    )
