"""Runs epochs of one setting on the running proxy. The origin sleeps before each answer, and the loader
reports as the SDK does.

Reads wait for the origin rather than for processors, so that a busy machine hardly changes the times.
"""

import asyncio
import json
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from shadeproxy.plan.profile import Profile, read_profile
from shadeproxy_bench.announce import Order, put_order, register
from shadeproxy_bench.loader import PREFETCH_FACTOR, Epoch, Loader
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.server import Served, origin, proxy, workplace

SAMPLES = 768
SAMPLE_BYTES = 16_000
RATE_PER_S = 192.0
BATCH = 4
"""Samples in a batch. Each of 16 workers reads up to two batches ahead, so that readers are up to a sixth of
an epoch apart. If they were further apart, a cache of 5 % would lose pages before they are read. No formula
of ``shadeproxy plan`` has this loss (docs/adr/0047).
"""
LATER = 8
"""Number of epochs after the first one, which fills the cache. The time of a short epoch depends on where its
misses lie: two epochs of one run differ by up to 14 %.
"""
_JOB = "train"


class Point(msgspec.Struct, frozen=True):
    """A setting. ``cached``: the cache as a share of the data. ``link_bytes_per_s``: 0 means unlimited."""

    cached: float
    workers: int
    announced: bool
    latency_s: float
    link_bytes_per_s: float = 0.0

    @property
    def name(self) -> str:
        link = f", {self.link_bytes_per_s / 1e6:g} MB/s" if self.link_bytes_per_s else ""
        order = "announced" if self.announced else "no order"
        return f"{self.cached:.0%}, {self.workers} workers, {order}, {self.latency_s * 1000:g} ms{link}"


class Found(msgspec.Struct, frozen=True):
    """Measurements of one setting. ``hits`` (as shares of the reads) and ``origin_bytes``: for each later
    epoch.
    """

    point: Point
    first: Epoch
    later: list[Epoch]
    hits: list[float]
    origin_bytes: list[int]
    profile: Profile

    @property
    def epoch_s(self) -> float:
        """Mean seconds of a later epoch."""
        return sum(epoch.wall_s for epoch in self.later) / len(self.later)

    @property
    def spread(self) -> float:
        """Difference between the slowest and the fastest later epoch, as a share of the mean."""
        walls = [epoch.wall_s for epoch in self.later]
        return (max(walls) - min(walls)) / self.epoch_s

    @property
    def stall_share(self) -> float:
        return sum(epoch.stall_s for epoch in self.later) / sum(epoch.wall_s for epoch in self.later)

    @property
    def hit_ratio(self) -> float:
        return sum(self.hits) / len(self.hits)

    @property
    def bytes_per_epoch(self) -> float:
        return sum(self.origin_bytes) / len(self.origin_bytes)


def run_point(point: Point, *, samples: int = SAMPLES, later: int = LATER) -> Found:
    """Run the first epoch of a setting and ``later`` more, through a proxy that is empty at first."""
    with (
        workplace() as work,
        origin(work, latency_s=point.latency_s, rate=point.link_bytes_per_s) as source,
        proxy(work, source, ram_bytes=int(point.cached * samples * SAMPLE_BYTES)) as ours,
    ):
        return asyncio.run(_run(ours, point, samples, later))


async def _run(ours: Served, point: Point, samples: int, later: int) -> Found:
    pieces = [Piece(SAMPLE_BYTES, number) for number in range(samples)]
    requests = [f"GET {piece.path} HTTP/1.1\r\nHost: {ours.authority}\r\n" for piece in pieces]
    # Each setting has orders of its own, because the time of a short epoch depends on where its misses lie.
    drawn = np.random.default_rng(list(msgspec.json.encode(point)))
    orders: list[Order] = [drawn.permutation(samples).astype(np.uint32) for _ in range(later + 2)]
    await asyncio.to_thread(register, ours, pieces, [_JOB])
    if point.announced:
        await asyncio.to_thread(put_order, ours, _JOB, 0, orders[0])
    loader = Loader(ours.address, workers=point.workers, batch=BATCH, rate_per_s=RATE_PER_S)
    epochs, counts = list[Epoch](), list[tuple[int, int]]()
    for number in range(later + 1):

        async def announce(batch: int, coming: int = number + 1) -> None:
            if point.announced and batch == samples // BATCH // 2:
                await asyncio.to_thread(put_order, ours, _JOB, coming, orders[coming])

        tag = f"x-shade-job: {_JOB};epoch={number};rank=0\r\n\r\n"
        found = await loader.epoch(
            [(requests[one] + tag).encode() for one in orders[number].tolist()], announce
        )
        epochs.append(found)
        await asyncio.to_thread(_report, ours, point, number, found, samples)
        counts.append(await asyncio.to_thread(_counted, ours))
    profile = await asyncio.to_thread(_profile, ours)
    return Found(
        point,
        epochs[0],
        epochs[1:],
        [(now[0] - before[0]) / samples for before, now in pairwise(counts)],
        [now[1] - before[1] for before, now in pairwise(counts)],
        profile,
    )


def _report(ours: Served, point: Point, epoch: int, found: Epoch, samples: int) -> None:
    report = {
        "epoch": epoch,
        "rank": 0,
        "position": samples,
        "stall_s": found.stall_s,
        "compute_s": found.wall_s - found.stall_s,
        "loader": {"workers": point.workers, "batch_size": BATCH, "prefetch_factor": PREFETCH_FACTOR},
    }
    ours.call("POST", f"/v1/jobs/{_JOB}/progress", json.dumps(report).encode())


def _counted(ours: Served) -> tuple[int, int]:
    """Return the hits in RAM and the bytes read from the origin so far."""
    found: dict[str, Any] = json.loads(ours.call("GET", "/v1/stats"))
    return found["totals"]["hits_ram"], found["origin"]["bytes"]


def _profile(ours: Served) -> Profile:
    return read_profile(ours.call("GET", f"/v1/jobs/{_JOB}/profile"), "the profile of the run")
