"""The runs of the study: every way to read on every origin. Each run has a proxy and an origin of its own."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from shadeproxy_bench.loader import Epoch
from shadeproxy_bench.training import ALL, DIRECT, LRU, LRU_PREFETCH, ORDER, Load, Way, train

WAYS = (DIRECT, LRU, LRU_PREFETCH, ORDER, ALL)
RATE_PER_S = 512.0
WORKERS = 8
BATCH = 16
_LINK_LATENCY_S = 0.02
_SMALL_BYTES = 8_000
_BIG_BYTES = 16_000

Axis = Literal["latency", "link"]


class Scale(msgspec.Struct, frozen=True):
    """The size of the study. ``links_bytes_per_s``: the links of the runs that have bigger samples and an
    origin 20 ms away.
    """

    samples: int = 1536
    latencies_s: tuple[float, ...] = (0.005, 0.02, 0.05, 0.1)
    links_bytes_per_s: tuple[float, ...] = (4e6, 8e6, 16e6)


class Point(msgspec.Struct, frozen=True):
    """The measured epochs of one way to read on one origin. ``first``: the first epoch, in which the cache is
    empty. ``later``: the second epoch.

    Without a proxy both are the same epoch. ``missed_bytes``: bytes that ``later`` read from the origin.
    """

    axis: Axis
    way: str
    latency_s: float
    link_bytes_per_s: float
    first: Epoch
    later: Epoch
    read_bytes: int
    missed_bytes: int

    @property
    def stall(self) -> float:
        """Stall of the later epoch, in per cent of the epoch's time."""
        return 100 * self.later.stall_s / self.later.wall_s

    @property
    def needed_s(self) -> float:
        """Time that the later epoch needs at least: to compute, or to carry the missed bytes over the link,
        whichever is longer.
        """
        carried_s = self.missed_bytes / self.link_bytes_per_s if self.link_bytes_per_s else 0.0
        return max(self.later.compute_s, carried_s)


def points(scale: Scale) -> Iterator[Point]:
    for latency_s in scale.latencies_s:
        load = Load(scale.samples, _SMALL_BYTES, RATE_PER_S, latency_s, workers=WORKERS, batch=BATCH)
        for way in WAYS:
            yield _point("latency", load, way)
    for link in scale.links_bytes_per_s:
        load = Load(
            scale.samples, _BIG_BYTES, RATE_PER_S, _LINK_LATENCY_S, link, workers=WORKERS, batch=BATCH
        )
        for way in WAYS:
            yield _point("link", load, way)


def _point(axis: Axis, load: Load, way: Way) -> Point:
    # Without a cache every epoch is like the first epoch, so run only the first.
    epochs = 1 if way is DIRECT else 2
    run = train(load, way, epochs=epochs)
    read_bytes = load.samples * load.sample_bytes
    return Point(
        axis=axis,
        way=way.name,
        latency_s=load.latency_s,
        link_bytes_per_s=load.link_bytes_per_s,
        first=run.first,
        later=run.later[-1] if run.later else run.first,
        read_bytes=read_bytes,
        missed_bytes=run.origin_bytes if run.later else read_bytes,
    )
