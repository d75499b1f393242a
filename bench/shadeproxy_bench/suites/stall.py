"""The time for which a training loop waits for its data if an order is announced and the data is prefetched.

Objects are small where the rate matters, so that two cores suffice for loader, proxy and origin. The first
epoch, in which the cache fills, is not counted. Our figure is from several rounds. The references are from
one.
"""

from collections.abc import Iterator
from functools import cache
from statistics import median

from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.training import ALL, CACHED, LRU, ORDER, Load, Run, train

_ROUNDS = 3
_EPOCHS = 3
_LATENCY_S = 0.05
_RATE_PER_S = 1024.0
_SMALL_BYTES = 8_000
_LINK_RATE_PER_S = 256.0
_LINK_BYTES_PER_S = 8e6
_LINK_SAMPLE_BYTES = 64_000


def stalled(runs: list[Run], lru: Run) -> Measured:
    """Return the per cent of the wall time for which the consumer waited, compared with LRU without
    prefetching.
    """
    found = measured([run.stall for run in runs], [lru.stall])
    worst = max(100 * epoch.stall_s / epoch.wall_s for run in runs for epoch in run.later)
    issued, wasted = (sum(run.prefetch[name] for run in runs) for name in ("issued", "wasted"))
    note = (
        f"worst epoch {worst:.1f} %; first epochs"
        f" {median(100 * run.first.stall_s / run.first.wall_s for run in runs):.1f} %;"
        f" of {issued} prefetched pages {wasted} wasted; LRU without prefetching beside it"
    )
    return Measured(found.ours, found.reference, found.ours_spread, note=note)


def origin_bytes(load: Load, ours: Run, alone: Run) -> Measured:
    """Return the MB read from the origin in the later epochs, with prefetching and without."""
    whole = load.samples * load.sample_bytes * len(ours.later)
    note = (
        f"{ours.origin_bytes / whole:.1%} of what was read, {alone.origin_bytes / whole:.1%} by eviction"
        " alone: what lies ready takes places from what would be read again"
    )
    return Measured(ours.origin_bytes / 1e6, alone.origin_bytes / 1e6, note=note)


def link_bound(load: Load, runs: list[Run]) -> Measured:
    """Return the wall time of epochs, and the time that they need at least: to compute, or to carry the
    missed bytes over the link, whichever is longer.
    """
    carried_s = [run.origin_bytes / load.link_bytes_per_s for run in runs]
    needed_s = [max(run.compute_s, carried) for run, carried in zip(runs, carried_s, strict=True)]
    read = load.samples * load.sample_bytes * sum(len(run.later) for run in runs)
    note = (
        f"compute {runs[0].compute_s:.1f} s, missed bytes / link {median(carried_s):.1f} s;"
        f" {sum(run.origin_bytes for run in runs) / read:.1%} of what was read was missed"
    )
    return measured([run.wall_s for run in runs], needed_s, note=note)


def stall(scale: Scale) -> Iterator[Planned]:
    rounds = scale.pick(_ROUNDS, 1)
    fast = Load(scale.pick(16_384, 4096), _SMALL_BYTES, _RATE_PER_S, _LATENCY_S)
    beside = fast._replace(samples=4096)
    slow = Load(scale.pick(2048, 1024), _LINK_SAMPLE_BYTES, _LINK_RATE_PER_S, _LATENCY_S, _LINK_BYTES_PER_S)

    @cache
    def ours(load: Load) -> list[Run]:
        return [train(load, ALL, epochs=_EPOCHS) for _ in range(rounds)]

    loop = (
        f"{fast.workers} workers, batches of {fast.batch}, {_LATENCY_S * 1000:.0f} ms origin,"
        f" cache of {CACHED:.0%}"
    )
    told = f"{loop}, order announced, epochs 2 to {_EPOCHS}"
    small = f"{_SMALL_BYTES / 1000:.0f} KB, {_RATE_PER_S:.0f} samples/s"
    yield Planned(
        "stall, order announced",
        "% of wall",
        Target(2.0, at_least=False, of="ours"),
        f"{fast.samples} x {small}, {told}; LRU: {beside.samples}, epoch 2",
        lambda: stalled(ours(fast), train(beside, LRU, epochs=2)),
        ratio_is="ours / reference",
    )
    yield Planned(
        "origin bytes with prefetching",
        "MB",
        Target(1.03, at_least=False),
        f"{beside.samples} x {small}, {loop}, order announced, epochs 2 to {_EPOCHS};"
        " clairvoyant eviction without prefetching beside it",
        lambda: origin_bytes(
            beside, train(beside, ALL, epochs=_EPOCHS), train(beside, ORDER, epochs=_EPOCHS)
        ),
        ratio_is="ours / reference",
    )
    yield Planned(
        "link-bound epochs, wall",
        "s",
        Target(1.05, at_least=False),
        f"{slow.samples} x {slow.sample_bytes / 1000:.0f} KB, {slow.rate_per_s:.0f} samples/s over"
        f" {slow.link_bytes_per_s / 1e6:.0f} MB/s, {told}, against max(compute, missed bytes / link)",
        lambda: link_bound(slow, ours(slow)),
        ratio_is="ours / reference",
    )
