"""``shadeproxy plan --place`` on a million samples. The rows show the makespan, compared with the lower bound
that holds for placing each sample by itself, and the seconds that planning takes.

The samples are drawn at random: six data sets, 600 GB, 10,372 reads a second. In half of the data sets,
samples are read at unequal rates. Devices are described and not measured.
"""

import time
from collections.abc import Iterator, Sequence
from functools import cache, partial

import numpy as np

from shadeproxy.plan.place import (
    Device,
    Groups,
    bound_of,
    cascade,
    group,
    largest_first,
    lower_bound,
    place,
)
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target

SAMPLES = 1_000_000
RAM = Device("RAM", 32e9, 20e9)
NVME = Device("NVMe", 120e9, 2e9, 200e3)
SATA = Device("SATA", 200e9, 500e6, 50e3)
HDD = Device("HDD", 2000e9, 150e6, 150)
ORIGIN = Device("origin", np.inf, 250e6, 1e5)
_ENOUGH = 0.9999
_DATASETS = (
    # share of the samples, mean bytes, reads a second, whether samples are read at different rates
    (0.30, 110e3, 3000, False),
    (0.20, 600e3, 1500, True),
    (0.25, 60e3, 4000, False),
    (0.05, 4e6, 300, True),
    (0.15, 1.2e6, 900, False),
    (0.05, 1e6, 672, True),
)


def samples() -> Groups:
    """Return the drawn samples, each as a group of its own."""
    random = np.random.default_rng(0)
    sizes, rates, dataset = [], [], []
    for number, (share, mean_bytes, reads_per_s, unequal) in enumerate(_DATASETS):
        count = round(share * SAMPLES)
        size_bytes = random.lognormal(0, 0.5, count)
        weight = random.lognormal(0, 1, count) if unequal else np.ones(count)
        sizes.append(size_bytes * mean_bytes / size_bytes.mean())
        rates.append(reads_per_s * weight / weight.sum())
        dataset.append(np.full(count, number))
    size, rate = np.concatenate(sizes), np.concatenate(rates)
    names = [f"data set {number}" for number in range(len(_DATASETS))]
    return Groups(names, np.concatenate(dataset), size, rate, rate * size)


def placed_and_bound(alone: Groups, devices: Sequence[Device]) -> tuple[float, float, Groups]:
    """Place the samples in groups. Return the makespan, the lower bound for samples placed one by one, and
    the groups.
    """
    groups = group(alone.names, alone.dataset, alone.size_bytes, alone.reads_per_s)
    placed = place(groups, devices)
    _, prices = lower_bound(groups, devices, enough=_ENOUGH * placed.makespan)
    return placed.makespan, bound_of(prices, alone, devices), groups


def near(alone: Groups, tiers: Sequence[Device]) -> Measured:
    """Return the makespan divided by its lower bound for samples placed one by one."""
    devices = [*tiers, ORIGIN]
    makespan, bound, groups = placed_and_bound(alone, devices)
    others = {"cascade": cascade(groups, devices), "largest first": largest_first(groups, devices)}
    beside = ", ".join(f"{name} {one.makespan / bound:.3f}" for name, one in others.items())
    note = f"makespan {makespan:.3f} s of work a second, {len(groups.size_bytes)} groups; {beside}"
    return Measured(makespan / bound, min(one.makespan for one in others.values()) / bound, note=note)


def seconds(alone: Groups, tiers: Sequence[Device]) -> Measured:
    """Return the seconds that grouping, placing and proving the bound take together."""
    devices = [*tiers, ORIGIN]
    began_s = time.perf_counter()
    placed_and_bound(alone, devices)
    return Measured(time.perf_counter() - began_s)


def placing(_scale: Scale) -> Iterator[Planned]:
    drawn = cache(samples)
    sets = ((RAM, NVME, SATA, HDD), (RAM, NVME, SATA), (RAM, NVME), (RAM, SATA), (RAM, HDD))
    for tiers in sets:
        yield Planned(
            f"placing on {' + '.join(one.name for one in tiers)}: makespan / bound",
            "of the bound",
            Target(1.01, at_least=False, of="ours"),
            f"{SAMPLES:,} samples of six data sets, 600 GB; the better of cascade and largest first beside",
            partial(lambda tiers: near(drawn(), tiers), tiers),
            ratio_is="ours / reference",
        )
    yield Planned(
        "placing a million samples on four devices",
        "s",
        Target(5.0, at_least=False, of="ours"),
        "coarsening, placing, proving",
        lambda: seconds(drawn(), sets[0]),
    )
